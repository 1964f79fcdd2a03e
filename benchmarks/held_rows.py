"""Measurements held in memory."""

from collections.abc import Sequence

from service.domain.measurements import CommunicationMeasurement, ComputeMeasurement
from service.domain.ports import MeasurementStore


class HeldRows(MeasurementStore):
    """A measurement store that is gone with the process."""

    def __init__(
        self, compute: Sequence[ComputeMeasurement] = (), communication: Sequence[CommunicationMeasurement] = ()
    ) -> None:
        self.rows = list(compute)
        self.exchanges = list(communication)

    def add_compute(self, measurement: ComputeMeasurement) -> bool:
        """Keeps one measurement."""
        self.rows.append(measurement)
        return True

    def measured_indices(self, campaign: str) -> set[int]:
        """Indices of a campaign."""
        return {row.index for row in self.rows if row.campaign == campaign}

    def compute(self, hardware: str) -> list[ComputeMeasurement]:
        """All of one hardware, ordered by campaign and index."""
        return sorted((r for r in self.rows if r.hardware == hardware), key=lambda row: (row.campaign, row.index))

    def add_communication(self, measurement: CommunicationMeasurement) -> bool:
        """Keeps one measurement."""
        self.exchanges.append(measurement)
        return True

    def communication(self, hardware: str) -> list[CommunicationMeasurement]:
        """All of one hardware, ordered by campaign and index."""
        return sorted((r for r in self.exchanges if r.hardware == hardware), key=lambda row: (row.campaign, row.index))
