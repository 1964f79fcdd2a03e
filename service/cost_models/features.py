"""Features of a table at a batch size: physical quantities of the lookup operator, and what its width adds.

They come in three groups. Those that *grow*, with the lookups, and the *free* ones say nothing of the table's width:
they are the same for all slices of a table. Those of *width* are non-decreasing in it, and never larger for a table
than for its slices together. A model that weighs the first and the last by non-negative numbers alone, and multiplies
them, never prices more work lower, nor a table above its slices (see ``service.cost_models.compute``).
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from service.domain.id_counts import BIN_HIGH
from service.domain.ports import Embeddings, Floats, Integers
from service.domain.reuse import reuse_profile
from service.domain.tables import KEPT_TABLES, DataType, Optimizer, PoolingMode, Table

FEATURES_VERSION = 2
"""Raised when a column's meaning changes; a model refuses features of another version."""

_CACHE_LINE_BYTES = 64

_SELDOM = (2, 16)
_HALF_LINE_BYTES = _CACHE_LINE_BYTES // 2
_CAPS_BYTES = (16, 32, 64, 128, 256, 512, 1_024, 2_048)
_WIDTH_UNIT = 256.0
_FLOAT_BYTES = 4

GROWING_NAMES = (
    "log2_lookups",
    "log2_distinct",
    "log2_bags",
    "log2_batch",
    *(f"log2_lookups_up_to_{most}_an_id" for most in _SELDOM),
)
"""They grow with the lookups of a table, whatever their reuse."""

FREE_NAMES = ("log2_rows", "rowwise_adagrad", "adagrad", "adam", "fp16", "bf16", "mean_pooling")
"""Rows, and what is or is not."""

WIDTH_NAMES = (
    "one",
    "output_bytes",
    *(f"output_bytes_up_to_{cap}" for cap in _CAPS_BYTES),
    "row_lines_bytes",
    "row_half_lines_bytes",
)
"""Of a pooled vector and a row, in units of 256 bytes: a row narrower than a cache line costs about as much as one."""

FEATURE_NAMES = (*GROWING_NAMES, *FREE_NAMES, *WIDTH_NAMES)
"""Columns of ``table_features``, in order."""

GROWING = slice(0, len(GROWING_NAMES))
WORK = slice(0, len(GROWING_NAMES) + len(FREE_NAMES))
WIDTH = slice(WORK.stop, len(FEATURE_NAMES))
"""Groups of columns; ``WORK`` is all that says nothing of the width."""


def table_features(tables: Sequence[Table], batch_size: int, optimizer: Optimizer) -> Embeddings:
    """Features of T tables (or slices) at a global batch size; [T, len(FEATURE_NAMES)], not standardised."""
    work = [_work(table.workload(), batch_size, optimizer) for table in tables]
    columns = np.array(work, dtype=np.float32).reshape(len(tables), WORK.stop)
    dims, item_bytes = np.array([(t.embedding_dim, t.data_type.item_bytes) for t in tables]).reshape(-1, 2).T
    return np.concatenate([columns, width_features(dims, item_bytes).astype(np.float32)], axis=1)


@lru_cache(maxsize=KEPT_TABLES)
def _work(table: Table, batch_size: int, optimizer: Optimizer) -> tuple[float, ...]:
    """Growing and free features of a table without a width."""
    profile = reuse_profile(table, batch_size)
    lookups, bags = float(profile.lookups), float(batch_size * table.num_features)
    # An id that is looked up more often than that finds its row in a cache from then on.
    often = [min(lookups, float(profile.distinct * (profile.fractions @ np.minimum(BIN_HIGH, n)))) for n in _SELDOM]
    growing = np.log2(1.0 + np.array([lookups, profile.distinct, bags, float(batch_size), *often]))
    kinds = (
        *(optimizer is kind for kind in (Optimizer.ROWWISE_ADAGRAD, Optimizer.ADAGRAD, Optimizer.ADAM)),
        *(table.data_type is kind for kind in (DataType.FP16, DataType.BF16)),
        table.pooling_mode is PoolingMode.MEAN,
    )
    return (*growing.tolist(), float(np.log2(1.0 + table.num_embeddings)), *map(float, kinds))


def width_features(columns: Integers, item_bytes: Integers) -> Floats:
    """Features of slices of this many columns, of weights of this many bytes; [...] each -> [..., len(WIDTH_NAMES)]."""
    output, row = columns * np.float64(_FLOAT_BYTES), columns * item_bytes.astype(np.float64)
    lines = [np.ceil(row / unit) * unit for unit in (_CACHE_LINE_BYTES, _HALF_LINE_BYTES)]
    found = [output, *(np.minimum(output, cap) for cap in _CAPS_BYTES), *lines]
    return np.stack([np.ones_like(output), *(each / _WIDTH_UNIT for each in found)], axis=-1)
