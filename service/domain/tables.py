"""Embedding tables: what a caller specifies, and the 17-bin reuse histogram."""

import math
from dataclasses import dataclass, fields
from enum import StrEnum
from operator import attrgetter
from typing import Any

HISTOGRAM_BINS = 17
"""Bins of a reuse histogram: bin 0 counts distinct ids looked up once, bin i those in (2^(i-1), 2^i],
bin 16 all above 2^15 (AutoShard, KDD 2022)."""

DIM_MULTIPLE = 4
"""FBGEMM needs embedding dims, and so widths of slices, in multiples of 4."""

KEPT_TABLES = 8_192
"""Tables of which a process keeps what it worked out: more than a request may have by default, in a few megabytes."""


class DataType(StrEnum):
    """Precision of a table's weights."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"

    @property
    def item_bytes(self) -> int:
        """Bytes of one weight."""
        return 4 if self is DataType.FP32 else 2


class PoolingMode(StrEnum):
    """How the looked-up rows of one sample are combined."""

    SUM = "sum"
    MEAN = "mean"


class Optimizer(StrEnum):
    """Optimizer fused into the backward pass."""

    SGD = "sgd"
    ROWWISE_ADAGRAD = "rowwise_adagrad"
    ADAGRAD = "adagrad"
    ADAM = "adam"


@dataclass(frozen=True, slots=True)
class ReuseHistogram:
    """How often the distinct ids of one batch occur.

    Attributes:
        batch_size: samples in the batch that was counted.
        fractions: ``HISTOGRAM_BINS`` fractions of the distinct ids; they sum to 1, or are all 0 when the table
            got no lookups.
    """

    batch_size: int
    fractions: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """One embedding table, or one column slice of it (``embedding_dim`` is then the slice's width).

    Attributes:
        name: unique within a request.
        num_embeddings: rows.
        embedding_dim: columns.
        pooling_factor: mean lookups a sample, summed over the table's features; 0 is legal.
        num_features: features that share the table; the pooled output is ``num_features * embedding_dim`` wide.
        pooling_mode: sum or mean.
        data_type: precision of the weights.
        distinct_rows: distinct ids in one batch of the histogram's batch size (of the planned batch where there
            is no histogram); None where unknown.
        reuse_histogram: None where unknown.
    """

    name: str
    num_embeddings: int
    embedding_dim: int
    pooling_factor: float
    num_features: int = 1
    pooling_mode: PoolingMode = PoolingMode.SUM
    data_type: DataType = DataType.FP32
    distinct_rows: float | None = None
    reuse_histogram: ReuseHistogram | None = None

    @property
    def output_width(self) -> int:
        """Columns of the pooled output: what dim caps and traffic count."""
        return self.num_features * self.embedding_dim

    @property
    def row_bytes(self) -> int:
        """Bytes of one row of weights."""
        return self.embedding_dim * self.data_type.item_bytes

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights."""
        return self.num_embeddings * self.row_bytes

    def lookups(self, batch_size: int) -> int:
        """Lookups in one batch of ``batch_size`` samples, rounded to a whole number."""
        return round(self.pooling_factor * batch_size)

    def nameless(self) -> "Table":
        """The same table without its name: equal for equal configurations."""
        return self._with("", self.embedding_dim)

    def sliced(self, width: int) -> "Table":
        """The same table with ``width`` columns."""
        return self._with(self.name, width)

    def workload(self) -> "Table":
        """The same table without its name and width: equal for all slices of equal configurations."""
        return self._with("", 0)

    def __reduce__(self) -> tuple[type["Table"], tuple[Any, ...]]:
        # Tables go to planning processes by the hundred; a slotted dataclass's own way takes four times as long.
        return Table, _fields(self)

    def _with(self, name: str, width: int) -> "Table":
        # Several times as fast as dataclasses.replace, which pricing a plan would call a thousand times.
        _, rows, _, *others = _fields(self)
        return Table(name, rows, width, *others)


_fields = attrgetter(*(field.name for field in fields(Table)))


def histogram_faults(fractions: tuple[float, ...]) -> str | None:
    """Says what is wrong with a histogram's fractions, or None."""
    if len(fractions) != HISTOGRAM_BINS:
        return f"needs {HISTOGRAM_BINS} fractions, got {len(fractions)}"
    if not all(math.isfinite(f) and 0.0 <= f <= 1.0 for f in fractions):
        return "every fraction must be a number from 0 to 1"
    total = sum(fractions)
    if total != 0.0 and abs(total - 1.0) > 0.01:
        return f"the fractions must sum to 1 (or be all 0 for a table without lookups), they sum to {total:.4g}"
    return None
