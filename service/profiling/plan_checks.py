"""What keeps plans from being carried out on this machine, found before anything is measured."""

from collections.abc import Sequence

import torch

from service.cost_models.assumptions import listed
from service.domain.errors import MeasurementRefused
from service.domain.plan import Problem
from service.domain.tables import DataType, Table
from service.profiling.compute_bench import ComputeBench
from service.profiling.devices import refuse_device

Held = Sequence[Sequence[Sequence[Table]]]
"""Tables, or slices of them, that each device of each plan holds."""


def refuse_problem(problem: Problem, device: str) -> None:
    """Raises MeasurementRefused where no plan of a problem can be carried out on ``cpu`` or some GPU."""
    refuse_device(problem.topology.hardware, device)
    if device == "cpu":
        _refuse_mixed_precision(problem)
    else:
        _refuse_missing_gpus(problem.topology.device_count)


def refuse_devices(bench: ComputeBench, problem: Problem, names: Sequence[str], held: Held) -> None:
    """Raises MeasurementRefused where the bench would, with the plan, the device and its tables named.

    Args:
        bench: would run the devices.
        problem: what the plans place.
        names: of the plans.
        held: by them.
    """
    for name, devices in zip(names, held, strict=True):
        for device, tables in enumerate(devices):
            if not tables:
                continue
            try:
                bench.refuse(tables, problem.global_batch_size, problem.optimizer)
            except MeasurementRefused as error:
                where = f"plan {name}, device {device} ({_described(tables)})"
                raise MeasurementRefused(f"{where}: {error.detail}", **error.data) from error


def _refuse_mixed_precision(problem: Problem) -> None:
    """On the CPU all devices share one memory for their weights, which holds numbers of one precision."""
    names: dict[DataType, list[str]] = {}
    for table in problem.tables:
        names.setdefault(table.data_type, []).append(table.name)
    if len(names) > 1:
        held = "; ".join(f"{data_type.value}: {listed(members)}" for data_type, members in names.items())
        raise MeasurementRefused(
            f"plans are carried out on cpu with one data_type for all tables, these have several: {held}; "
            "give the tables of each data_type in a request of their own"
        )


def _refuse_missing_gpus(devices: int) -> None:
    found = torch.cuda.device_count()
    if devices > found:
        raise MeasurementRefused(
            f"the exchanges of a plan of {devices} devices need as many GPUs, this machine has {found}: measure it "
            "where there are enough"
        )


def _described(tables: Sequence[Table]) -> str:
    groups: dict[str, list[str]] = {}
    for table in tables:
        groups.setdefault(f"{table.data_type.value}, {table.pooling_mode.value}", []).append(table.name)
    return "; ".join(f"{kind}: {listed(names)}" for kind, names in groups.items())
