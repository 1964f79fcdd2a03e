"""Bodies of requests and answers, as the contract has them.

Requests are strict: unknown fields, numbers in strings, booleans as numbers, NaN and infinities are refused.
"""

from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from service.cost_models.data_sheets import DATA_SHEETS
from service.domain.plan import Algorithm, ShardingType
from service.domain.tables import DIM_MULTIPLE, HISTOGRAM_BINS, DataType, Optimizer
from service.domain.topology import HARDWARE_PATTERN

MAX_ROWS = 2**40
MAX_DIM = 2**16
MAX_BATCH = 2**24
MAX_POOLING = 1e6
MAX_FEATURES = 10_000
MAX_DEVICES = 1_024
MAX_EXACT_INT = 2**53 - 1
"""Largest integer that every JSON reader holds exactly."""

PLAN_ID_PATTERN = r"^[0-9a-f]{32}$"

MODELS = (
    "Versions of the cost models, <hardware>/<kind>/<number>; analytic-<number> where nothing was measured and the "
    "costs come from a data sheet."
)
"""Description of an answer's ``models``."""

EARLIER = "Plans stored by releases that had no intervals have none."
"""Said of intervals that a plan may lack."""

MAX_COST_INTERVAL = "[low, high], milliseconds: 90% interval of max_cost_ms, wider for tables unlike those measured."
"""Description of ``max_cost_interval_ms``."""

COST_INTERVALS = "90% intervals of cost_ms, wider for tables unlike those measured."
"""Description of ``cost_interval_ms``."""


class ShardingTypeName(StrEnum):
    """Every way of sharding that has a name in the field; ``ShardingType`` has those that are modelled."""

    TABLE_WISE = "table_wise"
    COLUMN_WISE = "column_wise"
    ROW_WISE = "row_wise"
    TABLE_ROW_WISE = "table_row_wise"
    TABLE_COLUMN_WISE = "table_column_wise"
    GRID_SHARD = "grid_shard"
    DATA_PARALLEL = "data_parallel"


class PoolingModeName(StrEnum):
    """Ways to combine looked-up rows; ``none`` (a sequence of rows) is not modelled."""

    SUM = "sum"
    MEAN = "mean"
    NONE = "none"


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class _Answer(BaseModel):
    model_config = ConfigDict(frozen=True)


Name = Annotated[str, Field(min_length=1, max_length=255, pattern=r"^[^\x00]*$")]
Hardware = Annotated[str, Field(pattern=HARDWARE_PATTERN, examples=["cpu-fbgemm"])]
PlanId = Annotated[str, Field(pattern=PLAN_ID_PATTERN, examples=["0f343b0931126a20f133d67c2b018a3b"])]
MemoryBytes = Annotated[int, Field(ge=1, le=MAX_EXACT_INT)]
Column = Annotated[int, Field(ge=0, le=MAX_DIM)]
Columns = Annotated[list[Column], Field(min_length=2, max_length=2, description="[start, stop), columns.")]
BatchSize = Annotated[int, Field(ge=1, le=MAX_BATCH, description="Samples in a step, over all devices.")]
OptimizerName = Annotated[Optimizer, Field(strict=False, description="Optimizer fused into the backward pass.")]


def _memory_form(value: object) -> str:
    return "each" if isinstance(value, list) else "all"


Memories = Annotated[
    Annotated[MemoryBytes, Tag("all")]
    | Annotated[Annotated[list[MemoryBytes], Field(min_length=1, max_length=MAX_DEVICES)], Tag("each")],
    Discriminator(_memory_form),
]


class ReuseHistogramBody(_Request):
    """How often the distinct ids of one batch occur: bin 0 once, bin i in (2^(i-1), 2^i], bin 16 above 2^15."""

    batch_size: BatchSize
    fractions: list[float] = Field(
        min_length=HISTOGRAM_BINS,
        max_length=HISTOGRAM_BINS,
        description="Fractions of the distinct ids; they sum to 1, or are all 0 for a table without lookups.",
    )


class TableBody(_Request):
    """One embedding table."""

    name: Name = Field(description="Unique within the request.")
    num_embeddings: int = Field(ge=1, le=MAX_ROWS, description="Rows.")
    embedding_dim: int = Field(ge=DIM_MULTIPLE, le=MAX_DIM, multiple_of=DIM_MULTIPLE, description="Columns.")
    pooling_factor: float = Field(
        ge=0, le=MAX_POOLING, description="Mean lookups a sample, summed over the table's features; 0 is legal."
    )
    num_features: int = Field(1, ge=1, le=MAX_FEATURES, description="Features that share the table.")
    pooling_mode: PoolingModeName = Field(PoolingModeName.SUM, strict=False)
    data_type: DataType = Field(DataType.FP32, strict=False, description="Precision of the weights.")
    distinct_rows: float | None = Field(
        None,
        ge=0,
        le=MAX_ROWS,
        description="Distinct ids in one batch of the histogram's size (of the planned one without a histogram).",
    )
    reuse_histogram: ReuseHistogramBody | None = None


class DevicesBody(_Request):
    """The devices, all of one kind."""

    count: int = Field(ge=1, le=MAX_DEVICES)
    memory_bytes: Memories = Field(
        description="What the embeddings may use on a device, after your own reserve: one number, or one per device."
    )
    hardware: Hardware = Field(
        description="Key of the cost models. Known besides what was measured, from data sheets: "
        + ", ".join(DATA_SHEETS)
        + "."
    )


class ConstraintsBody(_Request):
    """What a plan may do."""

    sharding_types: list[Annotated[ShardingTypeName, Field(strict=False)]] = Field(
        default=[ShardingTypeName.TABLE_WISE, ShardingTypeName.COLUMN_WISE],
        min_length=1,
        max_length=len(ShardingTypeName),
        description="Modelled: table_wise and column_wise. The others are answered 422 unsupported_sharding.",
    )
    column_multiple: int = Field(
        default=DIM_MULTIPLE,
        ge=DIM_MULTIPLE,
        le=MAX_DIM,
        multiple_of=DIM_MULTIPLE,
        description="Widths are multiples of it.",
    )
    min_shard_dim: int = Field(
        default=DIM_MULTIPLE, ge=DIM_MULTIPLE, le=MAX_DIM, description="Narrowest slice, columns."
    )
    max_shard_dim: int = Field(
        default=1024, ge=DIM_MULTIPLE, le=MAX_DIM, description="Widest shard, columns; wider tables are cut."
    )
    count_buffers: bool = Field(default=True, description="Whether a step's buffers count as memory.")


class PlanRequest(_Request):
    """A planning question."""

    tables: list[TableBody] = Field(min_length=1)
    devices: DevicesBody
    global_batch_size: BatchSize
    optimizer: OptimizerName
    algorithm: Algorithm = Field(
        Algorithm.NEUROSHARD,
        strict=False,
        description="Those that this version lacks are answered 422 unsupported_algorithm.",
    )
    time_limit_ms: int | None = Field(
        None, ge=1, le=MAX_EXACT_INT, description="From arrival to answer; null is the service's default (2000)."
    )
    seed: int = Field(0, ge=0, le=MAX_EXACT_INT)
    constraints: ConstraintsBody = ConstraintsBody()


class ShardBody(_Request):
    """Where a range of a table's columns goes."""

    table: Name
    sharding_type: ShardingTypeName | None = Field(
        None, strict=False, description="May be left out: the columns say it."
    )
    columns: Columns
    device: int = Field(ge=0, lt=MAX_DEVICES)


class ShardsEstimateRequest(_Request):
    """What would this placement cost?"""

    tables: list[TableBody] = Field(min_length=1)
    devices: DevicesBody
    global_batch_size: BatchSize
    optimizer: OptimizerName
    constraints: ConstraintsBody = Field(
        ConstraintsBody(),
        description="Those that the placement was planned with: they say which slices that touch count as one shard.",
    )
    shards: list[ShardBody] = Field(min_length=1, description="They tile every table's columns.")


class StoredEstimateRequest(_Request):
    """What does a stored plan cost under the models of today? The stored request supplies the rest."""

    plan_id: PlanId


class MemoryAnswer(_Answer):
    """Bytes on a device, by purpose."""

    weights: int
    optimizer: int
    buffers: int
    total: int


class CostAnswer(_Answer):
    """Milliseconds of one training step's embedding part on a device."""

    forward_compute: float
    backward_compute: float
    forward_wait: float
    forward_transfer: float
    backward_comm: float
    total: float


Interval = Annotated[list[float], Field(min_length=2, max_length=2)]


class CostIntervalAnswer(_Answer):
    """90% intervals of a device's costs: nine in ten measured costs are within theirs."""

    forward_compute: Interval = Field(description="[low, high], milliseconds: of the lookups.")
    backward_compute: Interval = Field(description="[low, high], milliseconds: of the gradients and updates.")
    forward_wait: Interval = Field(description="[low, high], milliseconds: of the wait for the last device to start.")
    forward_transfer: Interval = Field(description="[low, high], milliseconds: of the exchange of pooled vectors.")
    backward_comm: Interval = Field(description="[low, high], milliseconds: of the exchange of gradients.")
    total: Interval = Field(description="[low, high], milliseconds: of the total, which errors of the parts make up.")


def _may_lack(name: str) -> ConfigDict:
    """Configuration of an answer that is made with a field, but was stored without it by earlier releases."""

    def without(schema: dict[str, Any]) -> None:
        schema["required"].remove(name)

    return ConfigDict(json_schema_extra=without)


class _Device(_Answer):
    """What a placement puts on one device."""

    device: int
    memory_limit_bytes: int
    memory_bytes: MemoryAnswer
    cost_ms: CostAnswer
    cost_interval_ms: CostIntervalAnswer = Field(description=COST_INTERVALS)


class DeviceAnswer(_Device):
    """What a plan puts on one device."""

    model_config = _may_lack("cost_interval_ms")

    cost_interval_ms: CostIntervalAnswer = Field(description=f"{COST_INTERVALS} {EARLIER}")


class EstimatedDeviceAnswer(_Device):
    """What a given placement puts on one device."""


class ShardAnswer(_Answer):
    """Where a range of a table's columns goes."""

    table: str
    sharding_type: ShardingType
    columns: Columns
    device: int


class PlanAnswer(_Answer):
    """A plan with its predicted costs."""

    model_config = _may_lack("max_cost_interval_ms")

    plan_id: str
    status: str = Field(description="complete, or cut_short by the time limit.", examples=["complete"])
    saved: bool = Field(description="False where the database was away: the plan cannot be fetched by its id.")
    algorithm: str = Field(examples=["neuroshard"])
    shards: list[ShardAnswer]
    devices: list[DeviceAnswer]
    max_cost_ms: float = Field(description="The largest total over the devices.")
    max_cost_interval_ms: Interval = Field(description=f"{MAX_COST_INTERVAL} {EARLIER}")
    models: dict[str, str] = Field(description=MODELS)
    assumptions: list[str] = Field(description="What the service had to assume.")
    planning_ms: float = Field(description="From arrival to the plan, when it was made.")


class EstimateAnswer(_Answer):
    """Predicted costs of a placement."""

    devices: list[EstimatedDeviceAnswer]
    max_cost_ms: float = Field(description="The largest total over the devices.")
    max_cost_interval_ms: Interval = Field(description=MAX_COST_INTERVAL)
    models: dict[str, str] = Field(description=MODELS)
    assumptions: list[str] = Field(description="What the service had to assume.")


class HealthAnswer(_Answer):
    """The process is alive."""

    status: str = Field(examples=["ok"])


class ReadinessAnswer(_Answer):
    """Whether the service can do all of its work."""

    ready: bool
    checks: dict[str, str] = Field(
        description="Each part, and ok or what is missing; not everything that is missing makes it not ready.",
        examples=[{"models": "ok", "database": "ok", "planner": "1 of 2 planning processes"}],
    )


class FaultAnswer(_Answer):
    """One thing wrong with a request."""

    pointer: str = Field(description="JSON pointer (RFC 6901) to the field at fault.")
    message: str
    table: str | None = Field(description="Name of the table concerned, where there is one.")


class Problem(BaseModel):
    """RFC 9457 problem details; further members are this error's data."""

    model_config = ConfigDict(extra="allow", frozen=True)

    type: str = Field(examples=["urn:shardwright:problem:invalid_request"])
    title: str
    status: int
    detail: str
    instance: str = Field(description="The request's id, as in X-Request-ID.")
    pointer: str | None = Field(None, description="JSON pointer to the field at fault, where it is one field.")
    faults: list[FaultAnswer] | None = Field(None, description="Of invalid_request: everything that is wrong.")
