"""The devices that tables are placed on."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Topology:
    """Devices of one kind.

    Attributes:
        hardware: name of the hardware, the key of its cost models (for example ``cpu-fbgemm``).
        memory_bytes: bytes that the embeddings may use on each device, one entry a device.
    """

    hardware: str
    memory_bytes: tuple[int, ...]

    @property
    def device_count(self) -> int:
        """Number of devices."""
        return len(self.memory_bytes)
