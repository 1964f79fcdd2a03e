"""Pricing a placement that the caller made."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from service.cost_models.assumptions import listed
from service.domain.costs import Interval
from service.domain.errors import InvalidRequest
from service.domain.plan import Problem, Shard, tiling_faults
from service.domain.ports import CostModels
from service.search.shards import shard_widths
from service.usecases.make_plan import assumptions_of, novelty_of
from service.usecases.pricing import DeviceReport, priced
from service.usecases.validate import problem_faults


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a given placement costs.

    Attributes:
        shards: as they are priced; those that touch on a device are one.
        devices: one report a device.
        max_cost_ms: predicted cost of a training step, the largest total of a device, milliseconds.
        max_cost_interval_ms: its 90% interval.
        models: version of each cost model, by kind.
        assumptions: what had to be assumed, which devices hold more than they may, and which
            constraints the shards break, one sentence each.
        novelty: how far each of the problem's tables, as it is cut, is from what was measured; T entries.
    """

    shards: tuple[Shard, ...]
    devices: tuple[DeviceReport, ...]
    max_cost_ms: float
    max_cost_interval_ms: Interval
    models: Mapping[str, str]
    assumptions: tuple[str, ...]
    novelty: tuple[float, ...]


def estimate(problem: Problem, models: CostModels, shards: Sequence[Shard]) -> Estimate:
    """Prices shards as ``make_plan`` would.

    Shards that touch on one device count as one, where the constraints allow one that wide. A device that holds too
    much is priced too, and named in the assumptions.

    Raises:
        InvalidRequest: the problem has faults, or the shards do not place every column of it exactly once.
    """
    faults = problem_faults(problem) or tiling_faults(problem.tables, problem.topology.device_count, shards)
    if faults:
        raise InvalidRequest(faults)
    plan = priced(problem, models, _merged(problem, shards))
    novelty = novelty_of(problem, models, plan.shards)
    return Estimate(
        shards=plan.shards,
        devices=plan.devices,
        max_cost_ms=plan.max_cost_ms,
        max_cost_interval_ms=plan.max_cost_interval_ms,
        models=models.versions,
        assumptions=(
            *assumptions_of(problem, models, plan, novelty),
            *_overfull(plan.devices),
            *_broken(problem, plan.shards),
        ),
        novelty=novelty,
    )


def _merged(problem: Problem, shards: Sequence[Shard]) -> tuple[Shard, ...]:
    """The shards by table and column; those that touch on a device are one, as far as the constraints allow it."""
    index = {table.name: i for i, table in enumerate(problem.tables)}
    merged: list[Shard] = []
    for shard in sorted(shards, key=lambda shard: (index[shard.table], shard.start)):
        table, last = problem.tables[index[shard.table]], merged[-1] if merged else None
        if last and (last.table, last.device, last.stop) == (shard.table, shard.device, shard.start):
            columns = shard.stop - last.start
            if len(shard_widths(problem.constraints, table.embedding_dim, columns)) == 1:
                merged[-1] = Shard(shard.table, last.start, shard.stop, shard.device)
                continue
        merged.append(shard)
    return tuple(merged)


def _overfull(devices: Sequence[DeviceReport]) -> list[str]:
    return [
        f"device {report.device} holds {report.memory.total} bytes, "
        f"{report.memory.total - report.memory_limit_bytes} more than its limit: this placement does not fit"
        for report in devices
        if report.memory.total > report.memory_limit_bytes
    ]


def _broken(problem: Problem, shards: Sequence[Shard]) -> list[str]:
    """Constraints on where tables go that a placement does not keep."""
    on: dict[str, set[int]] = defaultdict(set)
    for shard in shards:
        on[shard.table].add(shard.device)
    asked = problem.constraints
    return [
        *(
            f"{name} is pinned to devices {list(devices)}, but is on {sorted(on[name])}: this placement breaks the pin"
            for name, devices in asked.pin.items()
            if not on[name] <= set(devices)
        ),
        *(
            f"{listed(group)} are to be on one device together, but are on several: this placement breaks colocate"
            for group in asked.colocate
            if len(set().union(*(on[name] for name in group))) > 1
        ),
        *(
            f"{listed(group)} are to be kept apart, but some share a device: this placement breaks separate"
            for group in asked.separate
            if sum(len(on[name]) for name in group) > len(set().union(*(on[name] for name in group)))
        ),
    ]
