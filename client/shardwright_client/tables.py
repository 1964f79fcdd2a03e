"""Tables, devices and constraints of requests; names and meanings are those of the service's openapi.yaml."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from shardwright_client.json_values import FromJson

Optimizer = Literal["sgd", "rowwise_adagrad", "adagrad", "adam"]
DataType = Literal["fp32", "fp16", "bf16"]
PoolingMode = Literal["sum", "mean", "none"]
ShardingType = Literal[
    "table_wise", "column_wise", "row_wise", "table_row_wise", "table_column_wise", "grid_shard", "data_parallel"
]
"""Every way of sharding that has a name in the field; the service models the first two."""

GIB = 1024**3


@dataclass(frozen=True, slots=True)
class ReuseHistogram(FromJson):
    """How often the distinct ids of one batch occur.

    Attributes:
        batch_size: samples in the batch that was counted.
        fractions: 17 fractions of the distinct ids, which sum to 1: bin 0 occurs once, bin i in (2^(i-1), 2^i] times,
            bin 16 more than 2^15 times. All 0 for a table without lookups.
    """

    batch_size: int
    fractions: Sequence[float]


@dataclass(frozen=True, slots=True)
class Table(FromJson):
    """One embedding table.

    Attributes:
        name: unique within the request.
        num_embeddings: rows.
        embedding_dim: columns, a multiple of 4.
        pooling_factor: mean lookups a sample, summed over the table's features; 0 is legal.
        num_features: features that share the table.
        pooling_mode: how the rows of a sample are combined.
        data_type: precision of the weights.
        distinct_rows: distinct ids in one batch of the histogram's size (of the planned one without a histogram); None
            where unknown.
        reuse_histogram: None where unknown.
    """

    name: str
    num_embeddings: int
    embedding_dim: int
    pooling_factor: float
    num_features: int = 1
    pooling_mode: PoolingMode = "sum"
    data_type: DataType = "fp32"
    distinct_rows: float | None = None
    reuse_histogram: ReuseHistogram | None = None


@dataclass(frozen=True, slots=True)
class Devices(FromJson):
    """The devices, all of one kind.

    Attributes:
        count: how many.
        memory_bytes: what the embeddings may use on a device, after your own reserve: one number, or one per device.
        hardware: key of the cost models, for example ``cpu-fbgemm`` or ``h100``.
    """

    count: int
    memory_bytes: int | Sequence[int]
    hardware: str

    @classmethod
    def with_gib(cls, count: int, gib: float, hardware: str) -> "Devices":
        """Devices with so many GiB for embeddings each."""
        return cls(count, int(gib * GIB), hardware)


@dataclass(frozen=True, slots=True)
class Constraints(FromJson):
    """What a plan may do.

    Attributes:
        sharding_types: those allowed.
        column_multiple: widths of slices are multiples of it.
        min_shard_dim: narrowest slice, columns.
        max_shard_dim: widest shard, columns; wider tables are cut.
        pin: devices allowed for every slice of a table, by the table's name.
        colocate: groups of names; all slices of a group's tables are on one device.
        separate: groups of names; no device has slices of two tables of a group.
        count_buffers: whether a step's buffers count as memory.
    """

    sharding_types: Sequence[ShardingType] = ("table_wise", "column_wise")
    column_multiple: int = 4
    min_shard_dim: int = 4
    max_shard_dim: int = 1024
    pin: Mapping[str, Sequence[int]] = field(default_factory=dict)
    colocate: Sequence[Sequence[str]] = ()
    separate: Sequence[Sequence[str]] = ()
    count_buffers: bool = True
