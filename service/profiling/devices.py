"""Whether what is to be measured can be measured on a device of this machine."""

from service.cost_models.data_sheets import DATA_SHEETS
from service.domain.errors import MeasurementRefused


def refuse_device(hardware: str, device: str) -> None:
    """Raises MeasurementRefused where a device is not there, or cannot be some hardware.

    Args:
        hardware: name that costs are asked or stored under.
        device: ``cpu``, ``cuda`` or ``cuda:<n>``.
    """
    if device == "cpu":
        _refuse_gpus_on_cpu(hardware)
    else:
        _refuse_missing_gpu(device)


def _refuse_gpus_on_cpu(hardware: str) -> None:
    if hardware in DATA_SHEETS:
        raise MeasurementRefused(
            f"hardware {hardware} is a GPU, {DATA_SHEETS[hardware].product}: what it costs is not to be measured on a "
            "processor; measure on that GPU with --device cuda, or ask for hardware whose devices are processor threads"
        )


def _refuse_missing_gpu(device: str) -> None:
    import torch

    found = torch.cuda.device_count()
    if (torch.device(device).index or 0) >= found:
        raise MeasurementRefused(f"there is no {device}: this machine has {found} GPUs, numbered from 0")
