"""What the fused embedding operator cannot do on a kind of device at all, whatever memory there is."""

from service.domain.tables import DataType, Optimizer

CPU = "cpu"
"""The kind of device that is a processor; all others are GPUs."""

_ON_CPU_ONLY = "the operator's CPU mode has no {what}: measure it on cuda, or use {instead}"


def device_kind(device: str) -> str:
    """``cpu`` or ``cuda``, of a device as torch or a worker names it: ``cuda:1``, ``cpu on cores 0,1``."""
    return CPU if device.startswith(CPU) else "cuda"


def supported_optimizers(device: str) -> tuple[Optimizer, ...]:
    """Optimizers that the operator fuses on a device."""
    return tuple(o for o in Optimizer if not (device_kind(device) == CPU and o is Optimizer.ADAM))


def supported_data_types(device: str) -> tuple[DataType, ...]:
    """Precisions that the operator has on a device."""
    return tuple(t for t in DataType if not (device_kind(device) == CPU and t is DataType.BF16))


def unsupported(device: str, data_type: DataType, optimizer: Optimizer) -> list[tuple[str, str]]:
    """What the operator lacks on a device of this: each field, ``data_type`` or ``optimizer``, and a sentence."""
    found = []
    if optimizer not in supported_optimizers(device):
        found.append(("optimizer", _ON_CPU_ONLY.format(what=optimizer.value, instead=Optimizer.ADAGRAD.value)))
    if data_type not in supported_data_types(device):
        found.append(("data_type", _ON_CPU_ONLY.format(what=data_type.value, instead=DataType.FP16.value)))
    return found
