"""How many ids of a batch occur how often: the law inside a histogram's bins, and whole counts drawn from it."""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from service.domain.tables import HISTOGRAM_BINS

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

DEFAULT_EXPONENT = 2.0
"""Exponent inside a bin that has no neighbour in use: the tail of a Zipf law of exponent 1."""

_STEEPEST = 8.0
_WIDEST_SHIFT = 16.0
_MOST_STEPS = 60
_CLOSE_ENOUGH = 1e-6

BIN_LOW = np.array([1, *(2 ** (i - 1) + 1 for i in range(1, HISTOGRAM_BINS))], dtype=np.int64)
"""[17] smallest count of each bin."""

BIN_HIGH = np.array([2**i for i in range(HISTOGRAM_BINS)], dtype=np.int64)
"""[17] largest count of each bin; the last bin is open, its entry is only where the law's points end at first."""

_OPEN = HISTOGRAM_BINS - 1
_OPEN_SPAN = 4
_POINTS = 24
_FEW_IDS = 400


@dataclass(frozen=True, slots=True)
class CountLaw:
    """``ids[k]`` ids of ``counts[k]`` lookups each, in bin ``bins[k]``; all [K]."""

    counts: Floats
    ids: Floats
    bins: Integers


def bin_of(counts: Integers) -> Integers:
    """The bin of each positive count; [n] -> [n]."""
    return np.minimum(np.ceil(np.log2(counts)), _OPEN).astype(np.int64)


def count_law(fractions: Floats, distinct: float, lookups: float) -> CountLaw:
    """The power laws ``p(c) ~ c^-a`` inside the bins that give the ids their lookups.

    Each bin's ``a`` is the slope between its neighbours, and one shift of all of them meets the mean count. The ids
    of the open bin take what the others leave where no shift does.

    Args:
        fractions: [17] fractions of the distinct ids; they sum to 1.
        distinct: distinct ids.
        lookups: their lookups in all.
    """
    points, _, bins = _bin_points()
    slopes = _slopes(fractions)
    density = _density(slopes + _solve_shift(fractions, slopes, lookups / distinct))
    density /= np.bincount(bins, density, HISTOGRAM_BINS)[bins]
    ids = distinct * fractions[bins] * density
    counts = points.copy()
    if fractions[_OPEN] > 0:
        last = bins == _OPEN
        rest = lookups - float(ids[~last] @ counts[~last])
        counts[last] *= max(rest / float(ids[last] @ counts[last]), BIN_LOW[_OPEN] / counts[last].min())
    keep = ids > 0
    return CountLaw(counts[keep], ids[keep], bins[keep])


def typical_mean_count(fractions: Floats) -> float:
    """Mean count of the ids where their number is unknown: the bins' own slopes, unshifted."""
    return float(fractions @ _mean_counts(_slopes(fractions)))


def id_counts(fractions: Floats, distinct: float, lookups: int, rows: int) -> Integers:
    """Whole lookups of every distinct id: [about ``distinct``] positive counts.

    Their histogram is ``fractions`` up to rounding, their sum is ``lookups`` unless the bins do not allow it.
    """
    per_bin = _ids_per_bin(fractions, distinct, min(rows, lookups))
    total = int(per_bin.sum())
    law = count_law(per_bin / total, total, lookups)
    used = [i for i in range(HISTOGRAM_BINS) if per_bin[i] > 0]
    counts = [_quantiles(law.counts[law.bins == i], law.ids[law.bins == i], int(per_bin[i]), i) for i in used]
    _settle(counts, used, lookups - sum(int(c.sum()) for c in counts))
    return np.concatenate(counts)


def largest_remainder(fractions: Floats, total: int) -> Integers:
    """Whole numbers in proportion to ``fractions`` that sum to ``total``; [n] -> [n]."""
    exact = fractions / fractions.sum() * total
    whole = np.floor(exact).astype(np.int64)
    missing = total - int(whole.sum())
    whole[np.argsort(whole - exact, kind="stable")[:missing]] += 1
    return np.asarray(whole)


def _ids_per_bin(fractions: Floats, distinct: float, most: int) -> Integers:
    """Whole ids for each bin; with few ids, the number of ids near the one asked for that rounds best."""
    wanted = min(max(1, round(distinct)), most)
    if wanted > _FEW_IDS:
        return largest_remainder(fractions, wanted)
    slack = max(1, round(0.03 * wanted))
    rounded = [largest_remainder(fractions, n) for n in range(max(1, wanted - slack), min(most, wanted + slack) + 1)]

    def misfit(ids: Integers) -> tuple[float, int]:
        total = int(ids.sum())
        return round(float(np.abs(ids / total - fractions).sum()), 4), abs(total - wanted)

    return min(rounded, key=misfit)


def _quantiles(points: Floats, ids: Floats, number: int, index: int) -> Integers:
    """``number`` counts spread over a bin as the law says."""
    cumulative = np.cumsum(ids) / ids.sum()
    centres = cumulative - 0.5 * np.diff(cumulative, prepend=0.0)
    values = np.rint(np.interp((np.arange(number) + 0.5) / number, centres, points)).astype(np.int64)
    return np.maximum(values, BIN_LOW[index]) if index == _OPEN else np.clip(values, BIN_LOW[index], BIN_HIGH[index])


def _settle(counts: list[Integers], bins: list[int], missing: int) -> None:
    """Adds (or takes, where negative) lookups inside the bins' edges, largest counts first, until none is missing."""
    for values, index in sorted(zip(counts, bins, strict=True), key=lambda pair: -pair[1]):
        if missing == 0:
            return
        upward = np.full(len(values), missing) if index == _OPEN else BIN_HIGH[index] - values
        room = upward if missing > 0 else values - BIN_LOW[index]
        # In proportion to the counts, which keeps the law's shape, then greedily where the edges cut that short.
        for share in (np.ceil(values / values.sum() * abs(missing)).astype(np.int64), room):
            step = _at_most(np.minimum(share, room), abs(missing)) * (1 if missing > 0 else -1)
            np.add(values, step, out=values)
            room = room - np.abs(step)
            missing -= int(step.sum())


def _at_most(shares: Integers, total: int) -> Integers:
    """The shares, the last ones cut so that they sum to ``total`` at most."""
    before = np.minimum(np.cumsum(shares), total)
    return np.diff(before, prepend=0)


@lru_cache(maxsize=1)
def _bin_points() -> tuple[Floats, Floats, Integers]:
    """Counts inside every bin and how many counts each stands for: exact while bins are narrow."""
    points, weights, bins = [], [], []
    for i, low in enumerate(BIN_LOW):
        high = BIN_HIGH[i] * (_OPEN_SPAN if i == _OPEN else 1)
        if high - low < _POINTS:
            values = np.arange(low, high + 1, dtype=float)
            width = np.ones(len(values))
        else:
            edges = np.geomspace(low - 0.5, high + 0.5, _POINTS + 1)
            values, width = np.sqrt(edges[1:] * edges[:-1]), np.diff(edges)
        points.append(np.clip(values, low, high))
        weights.append(width)
        bins.append(np.full(len(values), i))
    return np.concatenate(points), np.concatenate(weights), np.concatenate(bins)


def _slopes(fractions: Floats) -> Floats:
    """[17] exponent of each bin: the slope of the density between its neighbours, in logarithms of counts."""
    used = np.flatnonzero(fractions > 0)
    slopes = np.full(HISTOGRAM_BINS, DEFAULT_EXPONENT)
    if len(used) < 2:
        return slopes
    centres = np.log(np.sqrt(BIN_LOW * BIN_HIGH.astype(float)))
    density = np.log(fractions[used] / (BIN_HIGH - BIN_LOW + 1)[used])
    left, right = np.maximum(np.arange(len(used)) - 1, 0), np.minimum(np.arange(len(used)) + 1, len(used) - 1)
    fall = -(density[right] - density[left]) / (centres[used[right]] - centres[used[left]])
    slopes[used] = np.clip(fall, -_STEEPEST, _STEEPEST)
    return slopes


def _density(exponents: Floats) -> Floats:
    """Unnormalised ids at every point of the bins under [17] exponents."""
    points, weights, bins = _bin_points()
    # Scaled to each bin's low end, or steep exponents underflow.
    return np.asarray(weights * (points / BIN_LOW[bins]) ** -exponents[bins])


def _mean_counts(exponents: Floats) -> Floats:
    points, _, bins = _bin_points()
    density = _density(exponents)
    total = np.bincount(bins, density, HISTOGRAM_BINS)
    return np.asarray(np.bincount(bins, density * points, HISTOGRAM_BINS) / total)


def _solve_shift(fractions: Floats, slopes: Floats, mean: float) -> float:
    """Shift of all slopes whose mean count is ``mean``; the nearer end of [-16, 16] where none is."""

    def excess(shift: float) -> float:
        return math.log(float(fractions @ _mean_counts(slopes + shift)) / mean)

    low, high = -_WIDEST_SHIFT, _WIDEST_SHIFT
    above, below = excess(low), excess(high)
    if above <= 0 or below >= 0:
        return low if above <= 0 else high
    for _ in range(_MOST_STEPS):
        # False position, with the Illinois rule against an end that stays.
        middle = low + (high - low) * above / (above - below)
        found = excess(middle)
        if abs(found) < _CLOSE_ENOUGH:
            break
        if found > 0:
            low, above, below = middle, found, below / 2
        else:
            high, below, above = middle, found, above / 2
    return middle
