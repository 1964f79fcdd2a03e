"""The work of a slice of a table in amounts that add up over the tables of a device: the analytic embedding."""

import numpy as np

from service.domain.id_counts import BIN_HIGH, BIN_LOW
from service.domain.memory import optimizer_bytes
from service.domain.ports import Floats, Integers
from service.domain.reuse import ReuseProfile, reuse_profile
from service.domain.tables import HISTOGRAM_BINS, Optimizer, Table

TABLES, LOOKUPS, BAGS, DISTINCT, OUTPUT_BYTES, GRADIENT_FIRST, GRADIENT_AGAIN, STATE_BYTES = range(8)
"""Columns of an embedding: counts of tables, lookups, bags and rows touched; bytes of pooled output; bytes of gradients
that are read for the first time, and that were read before; bytes of optimizer state, read and written."""

ROWS_FIRST = slice(8, 8 + HISTOGRAM_BINS)
"""Columns of bytes of rows read for the first time, by the histogram bin of how often the row is looked up."""

ROWS_AGAIN = slice(ROWS_FIRST.stop, ROWS_FIRST.stop + HISTOGRAM_BINS)
"""Columns of bytes of rows read again, by the same bins."""

EMBEDDING_SIZE = ROWS_AGAIN.stop
"""Columns of an embedding."""

_FLOAT_BYTES = 4
_TYPICAL_COUNTS = np.sqrt(BIN_LOW * BIN_HIGH.astype(np.float64))


def work_of(table: Table, columns: Integers, batch_size: int, optimizer: Optimizer, sector_bytes: int) -> Floats:
    """Work of slices of a table; [W] -> [W, EMBEDDING_SIZE]."""

    def whole_sectors(size: Integers) -> Integers:
        return -(-size // sector_bytes) * sector_bytes

    profile = reuse_profile(table, batch_size)
    row = whole_sectors(columns * table.data_type.item_bytes)
    gradient = whole_sectors(columns * _FLOAT_BYTES)
    moments = 2 if optimizer is Optimizer.ADAM else 1
    none, one = (optimizer_bytes(table.sliced(width), optimizer) // table.num_embeddings for width in (0, 1))
    state = moments * whole_sectors((none + columns * (one - none)) // moments)
    bags = batch_size * table.num_features
    read_bags = min(bags, profile.lookups)
    work = np.zeros((len(columns), EMBEDDING_SIZE))
    work[:, TABLES] = 1
    work[:, LOOKUPS] = profile.lookups
    work[:, BAGS] = bags
    work[:, DISTINCT] = profile.distinct
    work[:, OUTPUT_BYTES] = bags * columns * _FLOAT_BYTES
    work[:, GRADIENT_FIRST] = read_bags * gradient
    work[:, GRADIENT_AGAIN] = (profile.lookups - read_bags) * gradient
    work[:, STATE_BYTES] = 2 * profile.distinct * state
    work[:, ROWS_FIRST] = row[:, None] * (profile.distinct * profile.fractions)
    work[:, ROWS_AGAIN] = row[:, None] * _repeats(profile)
    return work


def _repeats(profile: ReuseProfile) -> Floats:
    """Lookups of ids that occurred before, by bin; [17]. Their sum is exact, the shares are by typical counts."""
    weights = profile.fractions * (_TYPICAL_COUNTS - 1)
    if not weights.any():
        weights = profile.fractions
    total = float(weights.sum())
    return np.asarray(weights * (max(profile.lookups - profile.distinct, 0.0) / total if total else 0.0))
