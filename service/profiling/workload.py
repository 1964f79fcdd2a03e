"""Index streams of one batch that have a given pooling factor and reuse histogram when measured back."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.domain.id_counts import bin_of, id_counts
from service.domain.reuse import reuse_profile
from service.domain.tables import HISTOGRAM_BINS, Table

Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class IndexStream:
    """Lookups of one table in one batch, in FBGEMM's layout.

    Attributes:
        indices: [L] int64 row numbers, the bags one after the other.
        offsets: [num_features * batch_size + 1] int64 starts of the bags, feature by feature.
    """

    indices: Integers
    offsets: Integers


def index_stream(table: Table, batch_size: int, rng: np.random.Generator) -> IndexStream:
    """Draws one batch of lookups of a table.

    The counts of the ids are fixed by the table's reuse profile; which rows they are, their order and which bags
    get one lookup more than others is random.
    """
    counts = _counts(table, batch_size)
    rows = _distinct_rows(table.num_embeddings, len(counts), rng)
    indices = np.repeat(rows, counts)
    rng.shuffle(indices)
    return IndexStream(indices, _offsets(len(indices), table.num_features * batch_size, rng))


def measured_histogram(indices: Integers) -> tuple[float, ...]:
    """The 17-bin reuse histogram of a batch's indices; all 0 without lookups."""
    if len(indices) == 0:
        return (0.0,) * HISTOGRAM_BINS
    counts = np.unique(indices, return_counts=True)[1]
    fractions = np.bincount(bin_of(counts), minlength=HISTOGRAM_BINS) / len(counts)
    return tuple(float(f) for f in fractions)


def _counts(table: Table, batch_size: int) -> Integers:
    profile = reuse_profile(table, batch_size)
    if profile.lookups == 0:
        return np.zeros(0, dtype=np.int64)
    return id_counts(profile.fractions, profile.distinct, profile.lookups, table.num_embeddings)


def _distinct_rows(rows: int, number: int, rng: np.random.Generator) -> Integers:
    """``number`` different row numbers in random order."""
    if number > rows // 4:
        return rng.permutation(rows)[:number].astype(np.int64)
    chosen = np.unique(rng.integers(0, rows, size=number + number // 8 + 16))
    while len(chosen) < number:
        chosen = np.unique(np.concatenate([chosen, rng.integers(0, rows, size=number)]))
    rng.shuffle(chosen)
    return chosen[:number]


def _offsets(lookups: int, bags: int, rng: np.random.Generator) -> Integers:
    lengths = np.full(bags, lookups // bags, dtype=np.int64)
    lengths[rng.permutation(bags)[: lookups % bags]] += 1
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])
