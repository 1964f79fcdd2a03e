"""How often ids repeat in a batch: from a 17-bin histogram at one batch size to any other.

The law. A histogram says which fraction of the distinct ids falls into each bin of counts. Inside a bin the counts
are taken to follow a power law as steep as the histogram is around that bin; where the number of distinct ids is
known, one shift of all slopes meets the mean count, lookups / distinct (see ``id_counts``).

- Smaller batch: each lookup stays with probability ``p``, so an id's count thins binomially (exact).
- Larger batch (extrapolation): distinct ids grow as ``r^f0`` with the batch's ratio ``r``, where ``f0`` is the
  fraction of ids seen once; that is the exact slope of the growth at the measured batch. Counts scale with what is
  left, and never more ids than rows.
- No histogram (assumption): ids follow a Zipf law over the rows.
"""

import math
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from service.domain.id_counts import (
    BIN_HIGH,
    BIN_LOW,
    bin_of,
    count_law,
    id_counts,
    largest_remainder,
    typical_mean_count,
)
from service.domain.tables import HISTOGRAM_BINS, KEPT_TABLES, Table

Array = NDArray[np.float64]

DEFAULT_ZIPF_EXPONENT = 1.05
"""Exponent over the rows where no histogram is known: the power law of NVIDIA's synthetic recommendation models."""

_SMALL_COUNT = 64
_FEW_IDS = 400
_FREQUENT = 4
_WHOLE_IDS = 2000
_ROUNDING = 1e-9
_EXPONENT_STEPS = 12


class ReuseBasis(StrEnum):
    """What a profile rests on."""

    MEASURED = "measured"
    THINNED = "thinned"
    EXTRAPOLATED = "extrapolated"
    ASSUMED = "assumed"


@dataclass(frozen=True, slots=True)
class ReuseProfile:
    """Reuse of a table's ids in one batch.

    Attributes:
        lookups: lookups in the batch.
        distinct: expected distinct ids in the batch.
        fractions: [17] fractions of the distinct ids by count; all 0 without lookups.
        basis: where it comes from.
    """

    lookups: int
    distinct: float
    fractions: Array
    basis: ReuseBasis


def reuse_profile(table: Table, batch_size: int) -> ReuseProfile:
    """Reuse of a table's ids in a batch of ``batch_size`` samples.

    A histogram that contradicts the rows or the lookups (see ``reuse_fault``) is met as nearly as it can be.
    """
    lookups = table.lookups(batch_size)
    if lookups == 0:
        return ReuseProfile(0, 0.0, np.zeros(HISTOGRAM_BINS), ReuseBasis.MEASURED)
    histogram = table.reuse_histogram
    if histogram is None or sum(histogram.fractions) == 0.0:
        distinct, fractions = _zipf_profile(table.num_embeddings, lookups, table.distinct_rows)
        return ReuseProfile(lookups, distinct, np.array(fractions), ReuseBasis.ASSUMED)
    base = max(1, table.lookups(histogram.batch_size))
    distinct, fractions, basis = _converted(
        histogram.fractions, table.num_embeddings, base, table.distinct_rows, histogram.batch_size, batch_size
    )
    # Lookups are whole numbers: in a batch of few, one more or less is much.
    return ReuseProfile(lookups, min(distinct, float(lookups)), np.array(fractions), basis)


def reuse_fault(table: Table) -> str | None:
    """Says how a table's histogram contradicts its rows, its lookups or its distinct rows, or None."""
    histogram = table.reuse_histogram
    if histogram is None or sum(histogram.fractions) == 0.0:
        return None
    lookups = table.lookups(histogram.batch_size)
    fractions = np.array(histogram.fractions)
    fewest, most = _distinct_range(fractions, lookups)
    if fewest > min(table.num_embeddings, lookups) * 1.01 or most < 0.99:
        return (
            f"the histogram needs from {fewest:.0f} to {most:.0f} distinct ids for {lookups} lookups in a batch of "
            f"{histogram.batch_size}, but the table has {table.num_embeddings} rows"
        )
    known = table.distinct_rows
    if known is not None and not fewest * 0.99 <= known <= most * 1.01:
        return f"distinct_rows is {known:.0f}, but the histogram allows only {fewest:.0f} to {most:.0f}"
    return None


@lru_cache(maxsize=KEPT_TABLES)
def _converted(
    fractions: tuple[float, ...], rows: int, base: int, known: float | None, measured_batch: int, batch: int
) -> tuple[float, tuple[float, ...], ReuseBasis]:
    shares = np.array(fractions) / sum(fractions)
    distinct = _distinct(shares, rows, base, known)
    if batch == measured_batch:
        return distinct, tuple(shares), ReuseBasis.MEASURED
    if batch > measured_batch:
        return *_extrapolated(shares, distinct, rows, base, batch / measured_batch), ReuseBasis.EXTRAPOLATED
    return *_thinned(shares, distinct, base, rows, batch / measured_batch), ReuseBasis.THINNED


def _thinned(shares: Array, distinct: float, lookups: int, rows: int, keep: float) -> tuple[float, tuple[float, ...]]:
    """Binomial thinning: an expectation over the many rare ids, whole ids for the few frequent ones.

    A bin that holds half an id on average cannot occur, and the head of the law carries most lookups.
    """
    law = count_law(shares, distinct, lookups)
    from_top = np.cumsum((shares * distinct)[::-1])[::-1]
    # Bins that hold no whole id together are noise of rounding: there is nothing to count out.
    whole = (from_top[law.bins] <= _WHOLE_IDS) & (from_top.max(where=from_top <= _WHOLE_IDS, initial=0.0) >= 0.5)
    by_bin = law.ids[~whole] @ np.diff(_binomial_cdf(law.counts[~whole], keep), axis=1)
    if whole.any():
        head = np.bincount(law.bins[whole], law.ids[whole], HISTOGRAM_BINS)
        carried = round(float(law.ids[whole] @ law.counts[whole]))
        by_bin = by_bin + _thinned_head(id_counts(head / head.sum(), float(head.sum()), carried, rows), keep)
    total = float(by_bin.sum())
    by_bin[by_bin < _ROUNDING * total] = 0.0
    return total, tuple(by_bin / by_bin.sum())


def _thinned_head(counts: NDArray[np.int64], keep: float) -> Array:
    """Whole ids: the frequent ones keep their share, the rare ones' expectation is rounded."""
    frequent = counts * keep >= _FREQUENT
    by_bin = np.bincount(bin_of(np.rint(counts[frequent] * keep).astype(np.int64)), minlength=HISTOGRAM_BINS)
    rare = np.diff(_binomial_cdf(counts[~frequent].astype(float), keep), axis=1).sum(axis=0)
    left = max(round(float(rare.sum())), 0 if frequent.any() else 1)
    return np.asarray(by_bin + (largest_remainder(rare, left) if left else 0), dtype=np.float64)


def _extrapolated(
    shares: Array, distinct: float, rows: int, base: int, ratio: float
) -> tuple[float, tuple[float, ...]]:
    grown = min(distinct * ratio ** float(shares[0]), float(rows))
    scale = ratio * distinct / grown
    law = count_law(shares, distinct, base)
    position = np.log2(law.counts * scale)
    upper = np.clip(np.ceil(position - 1e-9), 0, HISTOGRAM_BINS - 1).astype(np.int64)
    by_bin = np.bincount(upper, law.ids, HISTOGRAM_BINS)
    singles = min(float(shares[0]) * distinct, by_bin.sum())
    if scale > 1.0 and grown < rows:
        by_bin *= (distinct - singles) / distinct
        by_bin[0] += singles
    return grown, tuple(by_bin / by_bin.sum())


def _distinct(shares: Array, rows: int, lookups: int, known: float | None) -> float:
    most = float(min(rows, lookups))
    if known is not None:
        return min(max(known, 1.0), most)
    # Every bin in use holds one id at least; what would need more ids than the edges allow is rounding noise.
    likely = shares[shares * _distinct_range(shares, lookups)[1] >= 1.0]
    least = 1.0 / float(likely.min()) if len(likely) else 1.0
    guess = min(max(lookups / typical_mean_count(shares), least), most)
    return guess if guess >= _FEW_IDS else _few_distinct(shares, lookups, guess, most)


def _few_distinct(shares: Array, lookups: int, guess: float, most: float) -> float:
    """With few ids the fractions are visibly multiples of 1 / distinct: the number that fits them best."""
    fewest, largest = _distinct_range(shares, lookups)
    candidates = np.arange(max(1, math.ceil(fewest - 1e-6)), max(1, int(min(largest, most, 2 * _FEW_IDS))) + 1)
    if len(candidates) == 0:
        return guess
    scaled = shares[None, :] * candidates[:, None]
    error = np.abs(np.rint(scaled) - scaled).sum(axis=1) / candidates
    good = candidates[error <= error.min() + 0.002]
    return float(good[np.argmin(np.abs(np.log(good / guess)))])


def _distinct_range(shares: Array, lookups: int) -> tuple[float, float]:
    """Fewest and most distinct ids that the bins' edges allow."""
    high = BIN_HIGH.astype(float)
    high[-1] = max(lookups, BIN_HIGH[-1])
    return lookups / float(shares @ high), lookups / float(shares @ BIN_LOW)


def _binomial_cdf(counts: Array, keep: float) -> Array:
    """P(Binomial(count, keep) <= edge) at the edges 0, 1, 2, 4, .., 2^15 and infinity; [K, 18]."""
    steps = np.arange(_SMALL_COUNT)
    with np.errstate(divide="ignore", invalid="ignore"):
        falling = np.log(np.maximum(counts[:, None] - steps, 0.0) / (steps + 1.0))
    chosen = np.concatenate([np.zeros((len(counts), 1)), np.cumsum(falling, axis=1)], axis=1)
    k = np.arange(_SMALL_COUNT + 1)
    log_mass = chosen + k * math.log(keep) + (counts[:, None] - k) * math.log1p(-keep)
    mean = counts * keep
    return _cdf_at_edges(log_mass, mean, np.sqrt(mean * (1 - keep)))


def _poisson_cdf(mean: Array) -> Array:
    """P(Poisson(mean) <= edge) at the same edges; [K, 18]."""
    k = np.arange(_SMALL_COUNT + 1)
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(k[1:]))])
    log_mass = k * np.log(mean)[:, None] - mean[:, None] - log_factorial
    return _cdf_at_edges(log_mass, mean, np.sqrt(mean))


def _cdf_at_edges(log_mass: Array, mean: Array, deviation: Array) -> Array:
    """Exact from the mass at 0..64 where nearly all of it lies there, normal with continuity correction elsewhere."""
    edges = np.array([0, *BIN_HIGH[:-1]])
    cumulative = np.cumsum(np.exp(log_mass), axis=1)
    exact = cumulative[:, np.minimum(edges, _SMALL_COUNT).astype(np.int64)]
    spread = np.maximum(deviation, 1e-9)[:, None]
    normal = 0.5 * (1 + _erf((edges + 0.5 - mean[:, None]) / (spread * math.sqrt(2))))
    small = (mean <= _SMALL_COUNT / 4)[:, None]
    cdf = np.where(small, np.minimum(exact, 1.0), normal)
    return np.concatenate([cdf, np.ones((len(mean), 1))], axis=1)


def _erf(x: Array) -> Array:
    """Error function within 1.5e-7 (Abramowitz and Stegun 7.1.26)."""
    t = 1 / (1 + 0.3275911 * np.abs(x))
    series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    return np.asarray(np.sign(x) * (1 - series * np.exp(-x * x)))


@lru_cache(maxsize=KEPT_TABLES)
def _zipf_profile(rows: int, lookups: int, known: float | None) -> tuple[float, tuple[float, ...]]:
    exponent = DEFAULT_ZIPF_EXPONENT
    if known is not None:
        low, high = 0.0, 4.0
        for _ in range(_EXPONENT_STEPS):
            exponent = (low + high) / 2
            low, high = (exponent, high) if zipf_bins(rows, lookups, exponent)[0] > known else (low, exponent)
    distinct, by_bin = zipf_bins(rows, lookups, exponent)
    if known is not None:
        distinct = min(max(known, 1.0), float(min(rows, lookups)))
    return distinct, tuple(by_bin / by_bin.sum())


def zipf_bins(rows: int, lookups: int, exponent: float, shift: float = 0.0) -> tuple[float, Array]:
    """Expected distinct ids, and [17] ids by bin, of Poisson counts around a Zipf-Mandelbrot law over the rows.

    Args:
        rows: rows that can be looked up; the popularity of rank k is ``(k + shift)^-exponent``.
        lookups: lookups in the batch.
        exponent: 0 is uniform.
        shift: flattens the head; 0 is the plain Zipf law.
    """
    edges = np.unique(np.rint(np.geomspace(1, rows + 1, 200)))
    ranks = np.diff(edges)
    middle = np.sqrt(edges[:-1] * (edges[1:] - 1))
    share = (middle + shift) ** -exponent
    mean = np.maximum(lookups * share / float(ranks @ share), 1e-12)
    by_bin = ranks @ np.diff(_poisson_cdf(mean), axis=1)
    distinct = float(min(by_bin.sum(), lookups, rows))
    return max(distinct, 1.0), np.asarray(by_bin)
