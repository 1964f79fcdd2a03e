"""From error laws of single costs to 90% intervals of a plan's."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from service.domain.costs import DeviceCost, DeviceCostInterval, Interval
from service.domain.error_law import LEVEL, ErrorLaw, normal_scores, standard_values
from service.domain.plan import Problem
from service.domain.ports import BACKWARD, COMPUTE_TOTAL, FORWARD, CostModels, Floats
from service.domain.tables import Table

DRAWS = 1024
"""Steps that are drawn for a plan: the ends of a 90% interval are off by about half a percent of probability."""

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
    batch_size = problem.global_batch_size
    forward, backward, wait, transfer, exchange = (
        np.array([getattr(cost, part) for cost in costs], dtype=np.float64)
        for part in ("forward_compute", "backward_compute", "forward_wait", "forward_transfer", "backward_comm")
    )
    widths = np.array([sum(table.output_width for table in tables) for tables in held], dtype=np.float64)
    law = models.compute.errors(np.stack([forward, backward], axis=1), held, batch_size, problem.optimizer)
    compute = (forward + backward) * _factors(law, COMPUTE_TOTAL, 0)
    parts = [law.interval(forward, FORWARD), law.interval(backward, BACKWARD)]
    if len(costs) == 1:
        start, late, alone = compute, np.zeros_like(compute), (wait, wait)
        parts += [alone, alone, alone]
    else:
        exchanges = models.communication.errors(np.stack([transfer, exchange], axis=1), widths, batch_size)
        start = compute + exchange * _factors(exchanges, BACKWARD, 1)
        late = transfer * _factors(exchanges, FORWARD, 2)
        waits = _ends(start.max(axis=1, keepdims=True) - start, wait)
        parts += [waits, exchanges.interval(transfer, FORWARD), exchanges.interval(exchange, BACKWARD)]
    totals, predicted = start.max(axis=1, keepdims=True) + late, np.array([cost.total for cost in costs])
    parts.append(_ends(totals, predicted))
    rows = np.array(parts).transpose(2, 0, 1).round(_DECIMALS).tolist()
    low, high = np.round(_ends(totals.max(axis=1), predicted.max()), _DECIMALS).tolist()
    return PlanIntervals(tuple(DeviceCostInterval(*map(tuple, row)) for row in rows), (low, high))


def _ends(drawn: Floats, predicted: Floats) -> tuple[Floats, Floats]:
    """Ends of the interval of what was drawn, widened to hold what is predicted; [DRAWS, ...] and [...]."""
    low, high = np.quantile(drawn, [(1.0 - LEVEL) / 2, (1.0 + LEVEL) / 2], axis=0)
    return np.minimum(low, predicted), np.maximum(high, predicted)


def _factors(law: ErrorLaw, cost: int, drawn: int) -> Floats:
    """Measured over predicted cost of each device in each step; [DRAWS, D]. ``drawn`` tells which scores to take."""
    standard = _standard(law.quantiles[cost].tobytes(), law.shared, drawn, len(law.scales))
    return law.factors(standard, cost)


# Three laws to a set of cost models and a number of devices: what is asked again and again has them at hand.
@lru_cache(maxsize=24)
def _standard(quantiles: bytes, shared: float, drawn: int, devices: int) -> Floats:
    """Values of a standardised law for each device in each step; [DRAWS, D]."""
    common, own = _scores(devices)[drawn]
    return standard_values(quantiles, np.sqrt(shared) * common + np.sqrt(1.0 - shared) * own)


@lru_cache(maxsize=1)
def _scores(devices: int) -> tuple[tuple[Floats, Floats], ...]:
    """Normal scores of the errors of three costs, which have nothing in common, in each step.

    Each has a part that all devices share, [DRAWS, 1], and one of each device alone, [DRAWS, D].
    """
    rng = np.random.default_rng(0)
    return tuple((_shuffled(rng, 1), _shuffled(rng, devices)) for _ in range(3))


def _shuffled(rng: np.random.Generator, columns: int) -> Floats:
    """Every score once in each column: a Latin hypercube, whose columns have the law exactly; [DRAWS, columns]."""
    return rng.permuted(np.tile(normal_scores(DRAWS)[:, None], (1, columns)), axis=0)
