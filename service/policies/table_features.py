"""Features of a table as AutoShard and DreamShard see it: dim, rows, pooling factor, size and reuse histogram."""

from collections.abc import Sequence

import numpy as np

from service.domain.ports import Floats
from service.domain.reuse import reuse_profile
from service.domain.tables import HISTOGRAM_BINS, Table

POLICY_FEATURES_VERSION = 1
"""Raised when a column's meaning changes; a policy refuses features of another version."""

POLICY_FEATURE_NAMES = (
    "dim",
    "log2_rows",
    "pooling_factor",
    "log2_weight_bytes",
    *(f"reuse_{i}" for i in range(HISTOGRAM_BINS)),
)
"""Columns of ``policy_features``, in order. Rows and sizes span five orders of magnitude: by logarithms, so that one
large table does not make all others alike."""

_WIDTHS = (len(POLICY_FEATURE_NAMES) - HISTOGRAM_BINS, HISTOGRAM_BINS)


def policy_features(tables: Sequence[Table], batch_size: int) -> Floats:
    """Features of T tables (or slices) at a global batch size, not standardised; [T, 21].

    The histogram is that of the batch that is planned, see ``service.domain.reuse``.
    """
    sizes = [
        (table.embedding_dim, np.log2(table.num_embeddings), table.pooling_factor, np.log2(table.weight_bytes))
        for table in tables
    ]
    reuse = [reuse_profile(table, batch_size).fractions for table in tables]
    columns = (np.array(sizes, dtype=np.float64), np.array(reuse, dtype=np.float64))
    return np.concatenate(
        [part.reshape(len(tables), width) for part, width in zip(columns, _WIDTHS, strict=True)], axis=1
    )
