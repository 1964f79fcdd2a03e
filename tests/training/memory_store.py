"""A measurement store in memory."""

from service.domain.measurements import CommunicationMeasurement, ComputeMeasurement


class Memory:
    """Measurements held in memory."""

    def __init__(self, compute: list[ComputeMeasurement], communication: list[CommunicationMeasurement]) -> None:
        self._compute, self._communication = compute, communication

    def add_compute(self, measurement: ComputeMeasurement) -> bool:
        self._compute.append(measurement)
        return True

    def add_communication(self, measurement: CommunicationMeasurement) -> bool:
        self._communication.append(measurement)
        return True

    def measured_indices(self, campaign: str) -> set[int]:
        return {m.index for m in self._compute if m.campaign == campaign}

    def compute(self, hardware: str) -> list[ComputeMeasurement]:
        return [m for m in self._compute if m.hardware == hardware]

    def communication(self, hardware: str) -> list[CommunicationMeasurement]:
        return [m for m in self._communication if m.hardware == hardware]
