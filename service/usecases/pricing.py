"""A placement's price and memory, device by device."""

from dataclasses import dataclass

from service.domain.costs import DeviceCost, DeviceCostInterval, Interval, max_total
from service.domain.memory import Memory
from service.domain.plan import Shard, memory_on_devices, tables_on_devices
from service.search.simulator import shards_of, simulate
from service.search.workspace import Integers, Workspace
from service.usecases.intervals import plan_intervals


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """What one device holds and costs under a plan.

    Attributes:
        device: its index.
        memory_limit_bytes: what the embeddings may use.
        memory: what they use.
        cost: predicted cost of a training step.
        interval: 90% intervals of its parts and total.
    """

    device: int
    memory_limit_bytes: int
    memory: Memory
    cost: DeviceCost
    interval: DeviceCostInterval


@dataclass(frozen=True, slots=True)
class Priced:
    """A placement and what it costs.

    Attributes:
        shards: what its slices come to once they are merged.
        devices: one report a device.
        max_cost_ms: predicted cost of a training step, the largest total of a device, milliseconds.
        max_cost_interval_ms: its 90% interval.
    """

    shards: tuple[Shard, ...]
    devices: tuple[DeviceReport, ...]
    max_cost_ms: float
    max_cost_interval_ms: Interval


def priced(workspace: Workspace, placement: Integers) -> Priced:
    """What a placement [S] comes to on D devices."""
    problem, shards = workspace.problem, shards_of(workspace, placement)
    costs = simulate(workspace, placement[None]).devices(0)
    intervals = plan_intervals(problem, workspace.models, tables_on_devices(problem, shards), costs)
    reports = zip(
        problem.topology.memory_bytes, memory_on_devices(problem, shards), costs, intervals.devices, strict=True
    )
    devices = tuple(DeviceReport(i, *report) for i, report in enumerate(reports))
    return Priced(shards, devices, max_total(costs), intervals.max_cost_ms)
