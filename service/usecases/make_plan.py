"""Planning: from a problem to shards on devices, with their predicted costs."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from service.domain.costs import max_total
from service.domain.deadline import Deadline
from service.domain.errors import InvalidRequest
from service.domain.plan import Algorithm, Problem, Shard
from service.domain.ports import CostModels
from service.domain.tables import Optimizer
from service.search.algorithms import search_of
from service.search.feasibility import check_total_memory
from service.search.precut import precut
from service.search.workspace import Workspace
from service.usecases.pricing import DeviceReport, priced
from service.usecases.validate import problem_faults


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
        models: version of each cost model, by kind.
        assumptions: what had to be assumed, one sentence each.
    """

    status: PlanStatus
    algorithm: Algorithm
    shards: tuple[Shard, ...]
    devices: tuple[DeviceReport, ...]
    max_cost_ms: float
    models: Mapping[str, str]
    assumptions: tuple[str, ...]


def make_plan(problem: Problem, models: CostModels, algorithm: Algorithm, seed: int, deadline: Deadline) -> PlanResult:
    """Plans a problem; deterministic for a seed unless the deadline cuts the search short.

    Raises:
        InvalidRequest: ``problem_faults`` finds any.
        UnsupportedAlgorithm: this version does not have the algorithm.
        Infeasible: no plan fits in memory, or none was found.
        NoPlanInTime: the deadline passed before any plan was found.
    """
    faults = problem_faults(problem)
    if faults:
        raise InvalidRequest(faults)
    search = search_of(algorithm)
    check_total_memory(problem)
    workspace = Workspace.of(problem, precut(problem), models)
    found = search(workspace, seed, deadline)
    shards, devices = priced(workspace, found.placement)
    by_memory = [f"{algorithm.value} found no placement that fits: tables were placed by memory alone"]
    return PlanResult(
        status=PlanStatus.CUT_SHORT if found.cut_short else PlanStatus.COMPLETE,
        algorithm=algorithm,
        shards=shards,
        devices=devices,
        max_cost_ms=max_total(tuple(report.cost for report in devices)),
        models=models.versions,
        assumptions=(
            *assumptions_of(problem, models, shards),
            *(by_memory if found.by_memory_alone else []),
        ),
    )


def assumptions_of(problem: Problem, models: CostModels, shards: Sequence[Shard]) -> list[str]:
    """What the compute model assumed about the tables, and what cutting them changes, one sentence each."""
    assumed = models.compute.assumptions(problem.tables, problem.global_batch_size, problem.optimizer)
    pieces = Counter(shard.table for shard in shards)
    cut = [name for name, count in pieces.items() if count > 1]
    if cut and problem.optimizer is Optimizer.ROWWISE_ADAGRAD:
        names = ", ".join(cut)
        cuts = f"each shard of {names} keeps its own row-wise optimizer state: training differs from uncut tables"
        return [*assumed, cuts]
    return list(assumed)
