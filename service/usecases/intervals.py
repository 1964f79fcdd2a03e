"""From error laws of single costs to 90% intervals of a plan's."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from service.domain.costs import DeviceCost, DeviceCostInterval, Interval
from service.domain.plan import Problem
from service.domain.ports import BACKWARD, COMPUTE_TOTAL, FORWARD, LEVEL, CostModels, ErrorLaw, Floats, probabilities
from service.domain.tables import Table

DRAWS = 512
"""Steps that are drawn for a plan."""

COMPUTE_SHARED = 0.2
"""Correlation of the errors of two devices' compute in one step, as normal scores. Combinations that were measured one
after the other err alike by 0.12 to 0.14 (two shipped campaigns); what a whole sitting has in common comes on top."""

EXCHANGE_SHARED = 0.8
"""The same of two devices' parts in one exchange: 0.6 to 0.96 within the shipped exchanges, by number of devices. The
two directions have a fifth of that in common, which is left out."""

_DECIMALS = 4


@dataclass(frozen=True, slots=True)
class PlanIntervals:
    """90% intervals of a plan's costs, each with what is predicted inside.

    Attributes:
        devices: of each device's parts and total.
        max_cost_ms: of the largest total.
    """

    devices: tuple[DeviceCostInterval, ...]
    max_cost_ms: Interval


@dataclass(frozen=True, slots=True, eq=False)
class _Errors:
    """Normal scores of the errors of D devices in ``DRAWS`` steps; [DRAWS, D] each."""

    compute: Floats
    backward_comm: Floats
    forward_transfer: Floats


def plan_intervals(
    problem: Problem, models: CostModels, held: Sequence[Sequence[Table]], costs: Sequence[DeviceCost]
) -> PlanIntervals:
    """Intervals of a plan's costs on D devices.

    The parts that are predicted each have the interval of their own law. Waits, totals and the largest total follow
    from a fixed sample of steps: errors are drawn for all devices together, and each step is gone through as it is when
    a plan is priced. The transfer is that of the predicted waits. The same plan has the same intervals.

    Args:
        problem: what was planned.
        models: what priced it.
        held: tables (or slices) of each device; D entries.
        costs: of each device; D entries.
    """
    batch_size, errors = problem.global_batch_size, _errors(len(costs))
    forward, backward, wait, transfer, exchange = (
        np.array([getattr(cost, part) for cost in costs], dtype=np.float64)
        for part in ("forward_compute", "backward_compute", "forward_wait", "forward_transfer", "backward_comm")
    )
    widths = np.array([sum(table.output_width for table in tables) for tables in held], dtype=np.float64)
    law = models.compute.errors(np.stack([forward, backward], axis=1), held, batch_size, problem.optimizer)
    compute = (forward + backward) * law.factors(_standard(errors.compute, law, COMPUTE_TOTAL), COMPUTE_TOTAL)
    parts = [law.interval(forward, FORWARD), law.interval(backward, BACKWARD)]
    if len(costs) == 1:
        start, late, alone = compute, np.zeros_like(compute), (wait, wait)
        parts += [alone, alone, alone]
    else:
        exchanges = models.communication.errors(np.stack([transfer, exchange], axis=1), widths, batch_size)
        start = compute + exchange * exchanges.factors(_standard(errors.backward_comm, exchanges, BACKWARD), BACKWARD)
        late = transfer * exchanges.factors(_standard(errors.forward_transfer, exchanges, FORWARD), FORWARD)
        waits = _ends(start.max(axis=1, keepdims=True) - start, wait)
        parts += [waits, exchanges.interval(transfer, FORWARD), exchanges.interval(exchange, BACKWARD)]
    totals, predicted = start.max(axis=1, keepdims=True) + late, np.array([cost.total for cost in costs])
    parts.append(_ends(totals, predicted))
    rows = np.array(parts).transpose(2, 0, 1).round(_DECIMALS).tolist()
    low, high = np.round(_ends(totals.max(axis=1), predicted.max()), _DECIMALS).tolist()
    return PlanIntervals(tuple(DeviceCostInterval(*map(tuple, row)) for row in rows), (low, high))


def _standard(scores: Floats, law: ErrorLaw, cost: int) -> Floats:
    """Values of a cost's standardised law that are as improbable as normal scores."""
    quantiles = law.quantiles[cost]
    return np.asarray(np.interp(scores, _normal_scores(len(quantiles)), quantiles))


def _ends(drawn: Floats, predicted: Floats) -> tuple[Floats, Floats]:
    """Ends of the interval of what was drawn, widened to hold what is predicted; [DRAWS, ...] and [...]."""
    low, high = np.quantile(drawn, [(1.0 - LEVEL) / 2, (1.0 + LEVEL) / 2], axis=0)
    return np.minimum(low, predicted), np.maximum(high, predicted)


@lru_cache(maxsize=8)
def _errors(devices: int) -> _Errors:
    rng = np.random.default_rng(0)
    correlations = (COMPUTE_SHARED, EXCHANGE_SHARED, EXCHANGE_SHARED)
    return _Errors(*(_correlated(rng, devices, correlation) for correlation in correlations))


def _correlated(rng: np.random.Generator, devices: int, correlation: float) -> Floats:
    """Normal scores of which any two devices' have a correlation; [DRAWS, devices]."""
    shared, own = _shuffled(rng, 1), _shuffled(rng, devices)
    return np.asarray(np.sqrt(correlation) * shared + np.sqrt(1.0 - correlation) * own)


def _shuffled(rng: np.random.Generator, columns: int) -> Floats:
    """Every score once in each column: a Latin hypercube, whose columns have the law exactly; [DRAWS, columns]."""
    return rng.permuted(np.tile(_normal_scores(DRAWS)[:, None], (1, columns)), axis=0)


@lru_cache(maxsize=8)
def _normal_scores(count: int) -> Floats:
    """Values of a standard normal variable at ``probabilities(count)``; [count]."""
    return np.array([NormalDist().inv_cdf(at) for at in probabilities(count)])
