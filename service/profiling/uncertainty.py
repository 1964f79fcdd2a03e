"""Which combinations a compute model knows little of, spread out so that they tell different things."""

from collections.abc import Sequence

import numpy as np

from service.domain.ports import COMPUTE_TOTAL, ComputeCostModel, Floats
from service.domain.reuse import reuse_profile
from service.domain.tables import DataType, Optimizer
from service.profiling.combinations import Combination

_MOST_NOVELTY = 4.0
_CONSTANT = 1e-6

APART = 0.5
"""Combinations further apart than this are not alike at all, in deviations of the candidates, see ``spread_out``."""


def most_uncertain(
    compute: ComputeCostModel,
    candidates: Sequence[Combination],
    count: int,
    before: Sequence[Combination],
    rng: np.random.Generator,
) -> list[int]:
    """``count`` candidates, drawn in proportion to how little the model knows of them, and spread out.

    Drawn and not the largest: those are the oddest, and a model that learns from them alone gets worse on the rest.

    Args:
        compute: the model.
        candidates: what to choose from.
        count: how many; all where there are no more.
        before: what was chosen earlier and the model has not learnt from.
        rng: draws.

    Returns:
        Positions of the candidates, in the order in which they were chosen.
    """
    if not candidates:
        return []
    points = _descriptions([*candidates, *before])
    # The largest of scores times such factors are draws without replacement (Efraimidis and Spirakis, 2006).
    scores = uncertainties(compute, candidates) / rng.exponential(size=len(candidates))
    return spread_out(scores, points[: len(candidates)], count, points[len(candidates) :])


def uncertainties(compute: ComputeCostModel, combinations: Sequence[Combination]) -> Floats:
    """How little a model knows of each of N combinations; [N], above 0.

    The width of the 90% interval of the logarithm of the total, times one more than the mean novelty of the tables.
    The width alone would choose what is noisy; novelty tells what is new.
    """
    return np.array([_uncertainty(compute, combination) for combination in combinations])


def _uncertainty(compute: ComputeCostModel, combination: Combination) -> float:
    tables, batch_size, optimizer = combination.tables, combination.batch_size, combination.optimizer
    costs = compute.head(compute.encode(tables, batch_size, optimizer).sum(axis=0, keepdims=True))
    law = compute.errors(costs, [tables], batch_size, optimizer)
    low, high = law.interval(costs.sum(axis=1), COMPUTE_TOTAL)
    novelty = np.minimum(compute.novelty(tables, batch_size, optimizer), _MOST_NOVELTY).mean()
    return float(np.log(high / low)[0] * (1.0 + novelty))


def _descriptions(combinations: Sequence[Combination]) -> Floats:
    """What combinations are compared by; [N, F].

    Logarithms of the batch size, the number of tables, their lookups, distinct rows, bytes gathered, weights and
    output, and one column for each optimizer and precision.
    """
    return np.array([_description(combination) for combination in combinations])


def _description(combination: Combination) -> list[float]:
    tables, batch_size = combination.tables, combination.batch_size
    profiles = [reuse_profile(table, batch_size) for table in tables]
    sizes = (
        batch_size,
        len(tables),
        sum(profile.lookups for profile in profiles),
        sum(profile.distinct for profile in profiles),
        sum(profile.lookups * table.row_bytes for profile, table in zip(profiles, tables, strict=True)),
        sum(table.weight_bytes for table in tables),
        batch_size * sum(table.output_width for table in tables),
    )
    kinds = (
        *(combination.optimizer is optimizer for optimizer in Optimizer),
        *(tables[0].data_type is data_type for data_type in DataType),
    )
    return [*(float(np.log2(1.0 + size)) for size in sizes), *map(float, kinds)]


def spread_out(scores: Floats, candidates: Floats, count: int, before: Floats) -> list[int]:
    """Positions of up to ``count`` of N candidates with large scores that are unlike each other and those before.

    One after the other: that with the largest score times its distance to the nearest one chosen so far, where
    distances above ``APART`` count as that. A distance is the root mean square difference over the columns that vary,
    in deviations of the candidates.

    Args:
        scores: [N], above 0.
        candidates: [N, F].
        count: how many to choose.
        before: [M, F].
    """
    scale = candidates.std(axis=0)
    varying = scale > _CONSTANT
    points, earlier = (values[:, varying] / scale[varying] for values in (candidates, before))
    nearest = np.full(len(points), APART)
    for other in earlier:
        nearest = np.minimum(nearest, _distances(points, other))
    left = np.ones(len(points), dtype=np.bool_)
    found: list[int] = []
    for _ in range(min(count, len(points))):
        best = int(np.argmax(np.where(left, scores * nearest, -1.0)))
        found.append(best)
        left[best] = False
        nearest = np.minimum(nearest, _distances(points, points[best]))
    return found


def _distances(points: Floats, other: Floats) -> Floats:
    """Of N points to another one; [N]."""
    return np.asarray(np.sqrt(np.square(points - other).sum(axis=1) / max(points.shape[1], 1)))
