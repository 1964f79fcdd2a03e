"""A placement's price and memory, device by device."""

from dataclasses import dataclass

from service.domain.costs import DeviceCost
from service.domain.memory import Memory
from service.domain.plan import Shard, memory_on_devices
from service.search.simulator import shards_of, simulate
from service.search.workspace import Integers, Workspace


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """What one device holds and costs under a plan.

    Attributes:
        device: its index.
        memory_limit_bytes: what the embeddings may use.
        memory: what they use.
        cost: predicted cost of a training step.
    """

    device: int
    memory_limit_bytes: int
    memory: Memory
    cost: DeviceCost


def priced(workspace: Workspace, placement: Integers) -> tuple[tuple[Shard, ...], tuple[DeviceReport, ...]]:
    """The shards that a placement [S] comes to once slices are merged, and a report on each of the D devices."""
    shards = shards_of(workspace, placement)
    costs = simulate(workspace, placement[None]).devices(0)
    memory = memory_on_devices(workspace.problem, shards)
    limits = workspace.problem.topology.memory_bytes
    reports = zip(limits, memory, costs, strict=True)
    return shards, tuple(DeviceReport(i, *report) for i, report in enumerate(reports))
