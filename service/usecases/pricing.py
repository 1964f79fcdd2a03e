"""The price and the memory of shards, device by device."""

from dataclasses import dataclass

from service.domain.costs import DeviceCost, DeviceCostInterval, Interval, max_total
from service.domain.memory import Memory
from service.domain.plan import Problem, Shard, memory_on_devices, tables_on_devices
from service.domain.ports import CostModels
from service.search.simulator import price
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
    """Shards on devices and what they cost.

    Attributes:
        shards: as they are priced.
        devices: one report a device.
        max_cost_ms: predicted cost of a training step, the largest total of a device, milliseconds.
        max_cost_interval_ms: its 90% interval.
    """

    shards: tuple[Shard, ...]
    devices: tuple[DeviceReport, ...]
    max_cost_ms: float
    max_cost_interval_ms: Interval


def priced(problem: Problem, models: CostModels, shards: tuple[Shard, ...]) -> Priced:
    """What shards that tile the problem's tables come to on D devices."""
    held = tables_on_devices(problem, shards)
    costs = price(problem, models, held)
    intervals = plan_intervals(problem, models, held, costs)
    reports = zip(
        problem.topology.memory_bytes, memory_on_devices(problem, held), costs, intervals.devices, strict=True
    )
    devices = tuple(DeviceReport(i, *report) for i, report in enumerate(reports))
    return Priced(shards, devices, max_total(costs), intervals.max_cost_ms)
