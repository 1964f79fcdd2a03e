"""What planners answer to a problem, ours and TorchRec's alike: priced by our models, with the time that it took."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from benchmarks.torchrec_plans import COLUMN_TYPES, TorchRecPlan, available, torchrec_plan
from service.domain.deadline import Deadline
from service.domain.errors import Infeasible, NoPlanInTime
from service.domain.plan import Algorithm, Problem, Shard
from service.domain.ports import CostModels
from service.search.algorithms import SEARCHES
from service.usecases.estimate import estimate
from service.usecases.make_plan import PlanStatus, make_plan

TORCHREC, TORCHREC_DEFAULTS = "torchrec", "torchrec_defaults"

WIDTHS = (None, 64, 32, 16)
"""Least columns of TorchRec's slices, each tried: it does not search over them. None is its default, 128."""

ALGORITHMS = tuple(algorithm for algorithm in Algorithm if algorithm in SEARCHES and algorithm is not Algorithm.RANDOM)
"""Our algorithms in this version, but for random placement."""


class Outcome(StrEnum):
    """What came of asking a planner."""

    PLANNED = "planned"
    CUT_SHORT = "cut short"
    PROVEN = "proven infeasible"
    NOT_FOUND = "no plan found"
    NOT_IN_TIME = "no plan in time"
    OVERFULL = "does not fit"
    NOT_PRICED = "cannot be priced"


@dataclass(frozen=True, slots=True)
class Answer:
    """A planner's answer.

    Attributes:
        outcome: ``OVERFULL`` where a device holds too much as we count memory; ``NOT_PRICED`` where tables are sharded
            in ways that our models do not describe.
        seconds: that planning took.
        cost_ms: predicted by our models, milliseconds; NaN where there is no price.
        bound_ms: what no plan's cost is below; NaN where that was not told.
        shards: the placement; empty where there is none.
        reason: why there is no plan, in a word.
        sharding_types: number of tables of each, where TorchRec planned.
    """

    outcome: Outcome
    seconds: float
    cost_ms: float = math.nan
    bound_ms: float = math.nan
    shards: tuple[Shard, ...] = ()
    reason: str = ""
    sharding_types: Mapping[str, int] = field(default_factory=dict)

    @property
    def priced(self) -> bool:
        """Whether there is a plan with a price."""
        return self.outcome in (Outcome.PLANNED, Outcome.CUT_SHORT)

    @property
    def planned(self) -> bool:
        """Whether there is a plan."""
        return self.priced or self.outcome is Outcome.NOT_PRICED

    @property
    def answered(self) -> bool:
        """Whether there is a plan, or a proof that there can be none."""
        return self.planned or self.outcome is Outcome.PROVEN


Planner = Callable[[Problem], Answer]


def ours(algorithm: Algorithm, models: CostModels, limit_s: float = math.inf) -> Planner:
    """One of our algorithms, within a time limit."""

    def plan(problem: Problem) -> Answer:
        started = time.perf_counter()
        try:
            found = make_plan(problem, models, algorithm, 0, Deadline.after(limit_s))
        except Infeasible as refused:
            outcome = Outcome.PROVEN if refused.data["proven"] else Outcome.NOT_FOUND
            return Answer(outcome, time.perf_counter() - started, reason=refused.data["reason"])
        except NoPlanInTime:
            return Answer(Outcome.NOT_IN_TIME, time.perf_counter() - started)
        seconds = time.perf_counter() - started
        outcome = Outcome.CUT_SHORT if found.status is PlanStatus.CUT_SHORT else Outcome.PLANNED
        return Answer(outcome, seconds, found.max_cost_ms, found.lower_bound_ms, found.shards)

    return plan


def torchrec(models: CostModels, widths: Sequence[int | None] = WIDTHS, timeout_s: int | None = None) -> Planner:
    """TorchRec, tables whole or cut by columns: a run for each least width, the plan that is cheapest by our models.

    ``seconds`` are those of all runs together.
    """

    def plan(problem: Problem) -> Answer:
        runs = [torchrec_plan(problem, COLUMN_TYPES, width, timeout_s) for width in widths]
        answers = [_priced(problem, run, models) for run in runs]
        priced = [answer for answer in answers if answer.priced]
        best = min(priced, key=lambda answer: answer.cost_ms) if priced else answers[0]
        return replace(best, seconds=sum(run.seconds for run in runs))

    return plan


def torchrec_defaults(models: CostModels, timeout_s: int | None = None) -> Planner:
    """TorchRec with all its default sharding types, kernels in HBM."""
    return lambda problem: _priced(problem, torchrec_plan(problem, None, timeout_s=timeout_s), models)


def _priced(problem: Problem, plan: TorchRecPlan, models: CostModels) -> Answer:
    if plan.refused:
        return Answer(Outcome.NOT_FOUND, plan.seconds, reason=plan.refused)
    types = plan.sharding_types
    if not plan.shards:
        return Answer(Outcome.NOT_PRICED, plan.seconds, sharding_types=types)
    found = estimate(problem, models, plan.shards)
    if any(report.memory.total > report.memory_limit_bytes for report in found.devices):
        return Answer(Outcome.OVERFULL, plan.seconds, shards=found.shards, sharding_types=types)
    return Answer(Outcome.PLANNED, plan.seconds, found.max_cost_ms, shards=found.shards, sharding_types=types)


def planners(models: CostModels, limit_s: float = math.inf, timeout_s: int | None = None) -> dict[str, Planner]:
    """All planners by name; TorchRec's, table- and column-wise, where it is installed.

    Args:
        models: price all plans.
        limit_s: time limit of ours.
        timeout_s: when TorchRec stops proposing, in each of its runs.
    """
    found = {algorithm.value: ours(algorithm, models, limit_s) for algorithm in ALGORITHMS}
    return {**found, TORCHREC: torchrec(models, timeout_s=timeout_s)} if available() else found
