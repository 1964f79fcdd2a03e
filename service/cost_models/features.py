"""Features of a table at a batch size: NeuroShard's twenty, and physical quantities of the lookup operator."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from service.domain.ports import Embeddings
from service.domain.reuse import reuse_profile
from service.domain.tables import HISTOGRAM_BINS, Table

FEATURES_VERSION = 1
"""Raised when a column's meaning changes; a model refuses features of another version."""

_CACHE_LINE_BYTES = 64

FEATURE_NAMES = (
    "log2_dim",
    "log2_rows",
    "log2_pooling",
    "log2_batch",
    *(f"reuse_bin_{i}" for i in range(HISTOGRAM_BINS)),
    "log2_lookups",
    "log2_distinct",
    "distinct_share",
    "log2_gathered_lines",
    "log2_distinct_lines",
    "log2_weight_bytes",
    "log2_output_bytes",
    "log2_bags",
)
"""Columns of ``table_features``, in order."""


def table_features(tables: Sequence[Table], batch_size: int) -> Embeddings:
    """Features of T tables (or slices) at a global batch size; [T, len(FEATURE_NAMES)], not standardised.

    Lines are 64-byte cache lines: a row narrower than one costs about as much as a full one, which is why cuts are
    not free. The reuse histogram is converted to ``batch_size`` first.
    """
    rows = [_features(table.nameless(), batch_size) for table in tables]
    return np.array(rows, dtype=np.float32).reshape(len(tables), len(FEATURE_NAMES))


@lru_cache(maxsize=65536)
def _features(table: Table, batch_size: int) -> tuple[float, ...]:
    profile = reuse_profile(table, batch_size)
    lines = -(-table.row_bytes // _CACHE_LINE_BYTES)
    bags = batch_size * table.num_features
    lookups = float(profile.lookups)
    physical = (
        _log2(lookups),
        _log2(profile.distinct),
        profile.distinct / lookups if lookups else 0.0,
        _log2(lookups * lines),
        _log2(profile.distinct * lines),
        _log2(table.weight_bytes),
        _log2(4.0 * bags * table.embedding_dim),
        _log2(bags),
    )
    published = (
        _log2(table.embedding_dim),
        _log2(table.num_embeddings),
        _log2(table.pooling_factor),
        _log2(batch_size),
        *(float(f) for f in profile.fractions),
    )
    return published + physical


def _log2(value: float) -> float:
    """log2(1 + value): defined for tables without lookups."""
    return float(np.log2(1.0 + value))
