"""Bodies of requests, as the contract has them.

They are strict: unknown fields, numbers in strings, booleans as numbers, NaN and infinities are refused.
"""

from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from service.cost_models.data_sheets import DATA_SHEETS
from service.domain.plan import Algorithm
from service.domain.tables import DIM_MULTIPLE, HISTOGRAM_BINS, DataType, Optimizer
from service.domain.topology import HARDWARE_PATTERN

MAX_ROWS = 2**40
MAX_DIM = 2**16
MAX_BATCH = 2**24
MAX_POOLING = 1e6
MAX_FEATURES = 10_000
MAX_DEVICES = 1_024
MAX_OBSERVATIONS = 1_000
MAX_MS = 1e9
MAX_ENVIRONMENT = 16
MAX_EXACT_INT = 2**53 - 1
"""Largest integer that every JSON reader holds exactly."""

VERSION_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}/[a-z]+/(analytic-)?[1-9][0-9]{0,8}$"
"""Names of versions, as answers have them."""

PINNED_COST_MODELS = (
    "Versions to answer with instead of those that serve, named as answers name them; of what is left out, those that "
    "serve."
)
PINNED = f"{PINNED_COST_MODELS} They are part of the question: with others it is another plan."

NO_NUL = r"^[^\x00]*$"
PLAN_ID_PATTERN = r"^[0-9a-f]{32}$"


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


Name = Annotated[str, Field(min_length=1, max_length=255, pattern=NO_NUL)]
Hardware = Annotated[str, Field(pattern=HARDWARE_PATTERN, examples=["cpu-fbgemm"])]
VersionName = Annotated[str, Field(pattern=VERSION_PATTERN, examples=["cpu-fbgemm/compute/3"])]
PlanId = Annotated[str, Field(pattern=PLAN_ID_PATTERN, examples=["0f343b0931126a20f133d67c2b018a3b"])]
MemoryBytes = Annotated[int, Field(ge=1, le=MAX_EXACT_INT)]
Column = Annotated[int, Field(ge=0, le=MAX_DIM)]
Columns = Annotated[list[Column], Field(min_length=2, max_length=2, description="[start, stop), columns.")]
Devices = Annotated[list[Annotated[int, Field(ge=0, lt=MAX_DEVICES)]], Field(max_length=MAX_DEVICES)]
Group = Annotated[list[Name], Field(description="Names of two different tables at least.")]
BatchSize = Annotated[int, Field(ge=1, le=MAX_BATCH, description="Samples in a step, over all devices.")]
Duration = Annotated[float, Field(ge=0, le=MAX_MS)]
Step = Annotated[int, Field(ge=0, le=MAX_EXACT_INT)]
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
    pin: dict[Annotated[str, Field(max_length=255)], Devices] = Field(
        default={},
        description="Devices allowed for every slice of a table, by the table's name.",
        examples=[{"cat_0": [0, 1]}],
    )
    colocate: list[Group] = Field(
        default=[],
        description="Groups of tables; all slices of a group's tables are on one device. Groups that share a table are "
        "one.",
        examples=[[["a", "b"]]],
    )
    separate: list[Group] = Field(
        default=[],
        description="Groups of tables; no device has slices of two tables of a group.",
        examples=[[["c", "d"]]],
    )
    count_buffers: bool = Field(default=True, description="Whether a step's buffers count as memory.")


class CostModelsBody(_Request):
    """Versions of the cost models, by kind."""

    compute: VersionName | None = None
    communication: VersionName | None = None


class ModelsBody(CostModelsBody):
    """Versions of the cost models and of the policy that the algorithm asks, by kind."""

    dreamshard: VersionName | None = None
    autoshard: VersionName | None = None


class PlanRequest(_Request):
    """A planning question."""

    tables: list[TableBody] = Field(min_length=1)
    devices: DevicesBody
    global_batch_size: BatchSize
    optimizer: OptimizerName
    algorithm: Algorithm = Field(
        Algorithm.AUTO,
        strict=False,
        description="auto ranks plans by what they can be expected to cost, since predictions err, and takes none "
        "above those that it started from. dreamshard and autoshard place tables by a policy that was trained for the "
        "hardware, whole and as NeuroShard's outer search cuts them, whichever is predicted to cost less; hardware "
        "without such a policy is answered 422 unsupported_algorithm, with how to train one.",
    )
    time_limit_ms: int | None = Field(
        None, ge=1, le=MAX_EXACT_INT, description="From arrival to answer; null is the service's default (2000)."
    )
    seed: int = Field(0, ge=0, le=MAX_EXACT_INT)
    launch_id: Name | None = Field(
        None,
        description="Your name for a launch of many ranks. The first plan stored for it and the rest of the request is "
        "what all ranks are answered, through whichever replica, whatever the time limit cut short or whichever "
        "models serve since; ranks that ask at once wait for one plan. Where the database is away: 503. Errors are not "
        "kept.",
    )
    constraints: ConstraintsBody = ConstraintsBody()
    previous_plan_id: PlanId | None = Field(
        None,
        description="The stored plan that is running: the answer says what moves. Devices are told by their index, "
        "also where their number or hardware differs from before; columns on devices that are gone must move. Tables "
        "that the plan lacks, or has with other rows, dim or precision, are new and do not move. A plan that was "
        "cut_short may have given way to a better one: what runs is taken to be what GET /plans/{plan_id} answers.",
    )
    max_moved_bytes: int | None = Field(
        None,
        ge=0,
        le=MAX_EXACT_INT,
        description="Most bytes of weights and optimizer state that may come to devices that did not have them; null "
        "for any number. Needs previous_plan_id.",
    )
    models: ModelsBody | None = Field(None, description=PINNED)


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
    models: CostModelsBody | None = Field(None, description=PINNED_COST_MODELS)


class StoredEstimateRequest(_Request):
    """What does a stored plan cost under the models of today? The stored request supplies the rest."""

    plan_id: PlanId
    models: CostModelsBody | None = Field(None, description=PINNED_COST_MODELS)


class DecisionRequest(_Request):
    """Why another version is to serve; ``{}`` will do."""

    reason: str = Field("", max_length=1_000, pattern=NO_NUL, description="For people; kept with the promotion.")


class ObservationBody(_Request):
    """Mean embedding times of a rank over a range of steps, milliseconds a step."""

    rank: int = Field(ge=0, lt=MAX_DEVICES, description="The plan's device.")
    steps: list[Step] = Field(min_length=2, max_length=2, description="[start, stop), ascending.")
    forward_compute_ms: Duration = Field(description="Lookups and pooling.")
    backward_compute_ms: Duration = Field(description="Gradients with the fused optimizer.")
    forward_comm_ms: Duration | None = Field(
        None, description="The forward exchange, from this rank's own start to its end: wait and transfer."
    )
    backward_comm_ms: Duration | None = Field(None, description="The backward exchange.")
    total_ms: Duration | None = Field(None, description="All of a step's embedding part.")


def _named_by_name(schema: dict[str, Any]) -> None:
    """Members by ``Name``: pydantic's schema says nothing of members whose name does not match the pattern."""
    (schema["additionalProperties"],) = schema.pop("patternProperties").values()
    schema["propertyNames"] = {"minLength": 1, "maxLength": 255, "pattern": NO_NUL}
    schema["maxProperties"] = MAX_ENVIRONMENT


class ObservationsRequest(_Request):
    """What a launcher measured while a plan ran."""

    launch_id: Name | None = Field(
        None,
        description="The launch that was measured, by the caller's own name for it. What it was answered is compared, "
        "should the plan have given way to a better one. Without it, and for a launch that never asked POST /plan by "
        "this name or is kept no longer, that is the plan as it is stored.",
    )
    observations: list[ObservationBody] = Field(
        min_length=1,
        max_length=MAX_OBSERVATIONS,
        description="Of one plan. The first that is stored for a launch, rank and step range stays: posting again is "
        "safe.",
    )
    environment: dict[Name, Annotated[str, Field(max_length=255, pattern=NO_NUL)]] = Field(
        default={},
        json_schema_extra=_named_by_name,
        description="Of the machine; at most 16 strings. Retraining takes observations only whose bench (how times are "
        "taken, a whole number) and device are those of the measurements that it trains on.",
        examples=[{"device": "AMD EPYC, 1 thread", "bench": "1", "torch": "2.13.0"}],
    )


class ProfilesRequest(_Request):
    """Tables to measure on the worker pool, each alone."""

    tables: list[TableBody] = Field(min_length=1)
    hardware: Hardware = Field(description="What to measure on: some live worker must serve it.")
    global_batch_size: BatchSize
    optimizer: OptimizerName
