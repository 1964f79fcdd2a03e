"""The devices that tables are placed on."""

from dataclasses import dataclass

HARDWARE_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
"""Names of hardware; they are also folders of the model store."""


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
