"""Planning: from a problem to shards on devices, with their predicted costs."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from service.cost_models.assumptions import memory_assumptions, novelty_assumptions
from service.domain.costs import Interval
from service.domain.deadline import Deadline
from service.domain.errors import Infeasible, InvalidRequest, NoPlanInTime
from service.domain.moves import Move, held_before, moves
from service.domain.plan import Algorithm, Problem, Running, Shard, ShardingType
from service.domain.ports import CostModels
from service.domain.tables import Optimizer
from service.search.algorithms import Search, search_of
from service.search.bound import lower_bound_ms
from service.search.catalogue import no_plan_in_time
from service.search.cuts import can_be_cut
from service.search.feasibility import Found, pieces_that_fit, place_by_memory, placed_so
from service.search.layout import shards_of
from service.search.precut import posed
from service.search.proofs import check_feasible
from service.search.replan import replan
from service.search.workspace import Workspace
from service.usecases.pricing import DeviceReport, Priced, priced
from service.usecases.validate import problem_faults

_PACKING_SHARE = 0.2
"""Part of the time in which needed slices are packed, before finer ones are tried."""

_DEVICE_S, _TABLE_S = 0.001, 0.0001
"""Seconds that the intervals of one device's costs, and one table's part in the lower bound, may take."""

_LONGEST_AFTER = 0.4
"""Part of the time that is kept for what comes after the search, at most."""


class PlanStatus(StrEnum):
    """Whether the search came to its end."""

    COMPLETE = "complete"
    CUT_SHORT = "cut_short"


@dataclass(frozen=True, slots=True)
class PlanResult:
    """A plan that fits in memory.

    Attributes:
        status: ``cut_short`` where the deadline ended the search.
        algorithm: what made it.
        shards: sorted by the problem's tables and by column; slices that touch on one device are one shard.
        devices: one report a device.
        max_cost_ms: predicted cost of a training step, the largest total of a device, milliseconds.
        max_cost_interval_ms: its 90% interval.
        lower_bound_ms: what no plan's predicted cost is below.
        models: version of each cost model, by kind.
        assumptions: what had to be assumed, one sentence each.
        novelty: how far each of the problem's tables, as it is cut, is from what was measured; T entries.
        moves: what comes to devices that did not have it under the running plan; None where there is none.
    """

    status: PlanStatus
    algorithm: Algorithm
    shards: tuple[Shard, ...]
    devices: tuple[DeviceReport, ...]
    max_cost_ms: float
    max_cost_interval_ms: Interval
    lower_bound_ms: float
    models: Mapping[str, str]
    assumptions: tuple[str, ...]
    novelty: tuple[float, ...]
    moves: tuple[Move, ...] | None


def make_plan(
    problem: Problem,
    models: CostModels,
    algorithm: Algorithm,
    seed: int,
    deadline: Deadline,
    running: Running | None = None,
) -> PlanResult:
    """Plans a problem; deterministic for a seed unless the deadline cuts the search short.

    Args:
        problem: what is planned.
        models: what prices plans.
        algorithm: what searches.
        seed: of what is drawn at random.
        deadline: when the best plan so far is the answer.
        running: a plan from which the answer is to be reached; None where there is none.

    Raises:
        InvalidRequest: ``problem_faults`` finds any.
        UnsupportedAlgorithm: the algorithm needs a policy, and the models have none of it.
        Infeasible: no plan fits in memory, or none was found.
        NoPlanInTime: the deadline passed before any plan was found.
    """
    faults = problem_faults(problem)
    if faults:
        raise InvalidRequest(faults)
    search, began = search_of(algorithm, models, problem.topology.hardware), deadline.clock()
    check_feasible(problem, deadline)
    found = _placed(problem, models, search, seed, deadline, running, began)
    before = held_before(problem, running) if running else None
    plan = priced(problem, models, shards_of(found.workspace, found.placement, before))
    novelty = novelty_of(problem, models, plan.shards)
    return PlanResult(
        status=PlanStatus.CUT_SHORT if found.cut_short else PlanStatus.COMPLETE,
        algorithm=algorithm,
        shards=plan.shards,
        devices=plan.devices,
        max_cost_ms=plan.max_cost_ms,
        max_cost_interval_ms=plan.max_cost_interval_ms,
        lower_bound_ms=lower_bound_ms(problem, models, deadline),
        models=models.versions,
        assumptions=(
            *assumptions_of(problem, models, plan, novelty),
            *_stood_in(found, algorithm),
        ),
        novelty=novelty,
        moves=None if running is None else moves(problem, running, plan.shards),
    )


def _placed(
    problem: Problem,
    models: CostModels,
    search: Search,
    seed: int,
    deadline: Deadline,
    running: Running | None,
    began: float,
) -> Found:
    """The search's placement, or the one by memory alone that it starts from where it finds none in time."""
    start = _by_memory(problem, models, deadline)
    if deadline.passed():
        raise no_plan_in_time()
    # What comes after the search takes about as long as what came before it, and a little for each table and device.
    sizes = _TABLE_S * len(problem.tables) + _DEVICE_S * problem.topology.device_count
    after = deadline.clock() - began + sizes
    due = deadline.sooner(min(after, _LONGEST_AFTER * (deadline.at - began)))

    def searched(workspace: Workspace, seed: int, deadline: Deadline) -> Found:
        try:
            return search(workspace, seed, deadline)
        except Infeasible:
            return start
        except NoPlanInTime:
            return replace(start, cut_short=True)

    if running is None:
        return searched(start.workspace, seed, due)
    return replan(start.workspace, searched, running, seed, due)


def _by_memory(problem: Problem, models: CostModels, deadline: Deadline) -> Found:
    """A placement by memory alone: of the needed slices or, where these do not pack, of finer ones that do."""
    workspace = posed(problem, models, deadline)
    try:
        return place_by_memory(workspace, deadline.share(_PACKING_SHARE))
    except Infeasible as refused:
        if refused.data["proven"]:
            raise
    except NoPlanInTime:
        pass
    pieces = pieces_that_fit(problem, deadline)
    return placed_so(problem, models, pieces, deadline)


def novelty_of(problem: Problem, models: CostModels, shards: Sequence[Shard]) -> tuple[float, ...]:
    """How far each of the problem's tables is from what was measured: the farthest of its shards; T entries."""
    tables = {table.name: table for table in problem.tables}
    placed = sorted({(shard.table, shard.width) for shard in shards})
    slices = [tables[name].sliced(width) for name, width in placed]
    scores = models.compute.novelty(slices, problem.global_batch_size, problem.optimizer).tolist()
    farthest: dict[str, float] = {}
    for (name, _), score in zip(placed, scores, strict=True):
        farthest[name] = max(score, farthest.get(name, 0.0))
    return tuple(farthest[name] for name in tables)


def assumptions_of(problem: Problem, models: CostModels, plan: Priced, novelty: Sequence[float]) -> list[str]:
    """What the models assumed, what cutting tables changes, and which stay whole unasked, one sentence each."""
    pieces = Counter(shard.table for shard in plan.shards)
    features = {table.name: table.num_features for table in problem.tables}
    widths = np.zeros(len(plan.devices))
    for shard in plan.shards:
        widths[shard.device] += features[shard.table] * shard.width
    waits = np.array([report.cost.forward_wait for report in plan.devices])
    return [
        *memory_assumptions(problem.topology),
        *models.compute.assumptions(problem.tables, problem.global_batch_size, problem.optimizer),
        *novelty_assumptions(problem.tables, novelty),
        *models.communication.assumptions(widths, waits, problem.global_batch_size),
        *_row_wise_cuts(problem, pieces),
        *_whole_unasked(problem, pieces),
    ]


def _stood_in(found: Found, algorithm: Algorithm) -> list[str]:
    if not found.by_memory_alone and found.instead is None:
        return []
    by = "by memory alone" if found.by_memory_alone or found.instead is None else f"by {found.instead.value}"
    lacking = "in time" if found.cut_short else "that fits"
    return [f"{algorithm.value} found no placement {lacking}: tables were placed {by}"]


def _row_wise_cuts(problem: Problem, pieces: Mapping[str, int]) -> list[str]:
    cut = [name for name, count in pieces.items() if count > 1]
    if not cut or problem.optimizer is not Optimizer.ROWWISE_ADAGRAD:
        return []
    names = ", ".join(cut)
    return [f"each shard of {names} keeps its own row-wise optimizer state: training differs from uncut tables"]


def _whole_unasked(problem: Problem, pieces: Mapping[str, int]) -> list[str]:
    constraints = problem.constraints
    if ShardingType.TABLE_WISE in constraints.sharding_types:
        return []
    whole = [
        table.name
        for table in problem.tables
        if pieces[table.name] == 1 and not can_be_cut(constraints, table.embedding_dim)
    ]
    if not whole:
        return []
    return [f"table_wise is not allowed, but no cut of {', '.join(whole)} is: each is placed whole"]
