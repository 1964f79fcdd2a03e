"""Bodies of answers, as the contract has them."""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from service.api.schemas import Columns
from service.domain.plan import ShardingType

MODELS = (
    "Versions of the cost models, <hardware>/<kind>/<number>; analytic-<number> where nothing was measured and the "
    "costs come from a data sheet. Of a plan by a trained policy its version too, under the algorithm's name."
)
"""Description of an answer's ``models``."""

EARLIER = "Plans stored by releases that had no intervals have none."
"""Said of intervals that a plan may lack."""

MAX_COST_INTERVAL = "[low, high], milliseconds: 90% interval of max_cost_ms, wider for tables unlike those measured."
"""Description of ``max_cost_interval_ms``."""

COST_INTERVALS = "90% intervals of cost_ms, wider for tables unlike those measured."
"""Description of ``cost_interval_ms``."""


def answer_json(answer: BaseModel | Mapping[str, Any]) -> bytes:
    """An answer as JSON in UTF-8."""
    if isinstance(answer, BaseModel):
        answer = answer.model_dump(mode="json")
    return json.dumps(answer, ensure_ascii=False, allow_nan=False).encode()


class _Answer(BaseModel):
    model_config = ConfigDict(frozen=True)


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


def _may_lack(*names: str) -> ConfigDict:
    """Configuration of an answer that is made with some fields, but was stored without them by earlier releases."""

    def without(schema: dict[str, Any]) -> None:
        schema["required"] = [name for name in schema["required"] if name not in names]

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


class MoveAnswer(_Answer):
    """Columns of a table that come to a device which did not have them."""

    table: str
    columns: Columns
    from_device: int = Field(description="Device that had them; a plan for fewer devices may have no such device.")
    to_device: int
    bytes: int = Field(description="Bytes of their weights and optimizer state.")


class PlanAnswer(_Answer):
    """A plan with its predicted costs."""

    model_config = _may_lack("max_cost_interval_ms", "lower_bound_ms")

    plan_id: str
    status: str = Field(description="complete, or cut_short by the time limit.", examples=["complete"])
    saved: bool = Field(description="False where the database was away: the plan cannot be fetched by its id.")
    algorithm: str = Field(examples=["neuroshard"])
    shards: list[ShardAnswer]
    devices: list[DeviceAnswer]
    max_cost_ms: float = Field(description="The largest total over the devices.")
    max_cost_interval_ms: Interval = Field(description=f"{MAX_COST_INTERVAL} {EARLIER}")
    lower_bound_ms: float = Field(
        description="No plan's max_cost_ms is below this, by the same models. Plans stored by releases that had no "
        "bound have none."
    )
    moved_bytes: int | None = Field(None, description="Bytes of all moves; null without a previous plan.")
    moves: list[MoveAnswer] | None = Field(
        None, description="What moves from the previous plan, by table and column; null without one."
    )
    models: dict[str, str] = Field(description=MODELS)
    assumptions: list[str] = Field(description="What the service had to assume.")
    planning_ms: float = Field(description="From arrival to the plan, when it was made.")


class UnderWayAnswer(_Answer):
    """A plan that is being made."""

    plan_id: str
    status: Literal["planning"] = "planning"
    cancelled_after_s: float = Field(description="Seconds without a GET after which the plan is cancelled.")


class ListedPlanAnswer(_Answer):
    """A stored plan in short."""

    plan_id: str
    created_at: datetime = Field(description="When it was stored; later where a better one took the place of one.")
    hardware: str
    algorithm: str
    status: str = Field(description="complete, or cut_short by the time limit.", examples=["complete"])
    max_cost_ms: float


class PlansAnswer(_Answer):
    """Stored plans, the newest first."""

    plans: list[ListedPlanAnswer]
    next_cursor: str | None = Field(description="For the next call, where there are more.")


class DeviceTraffic(_Answer):
    """Bytes of all moves to and from one device."""

    device: int
    bytes_in: int
    bytes_out: int


class PlanDiffAnswer(_Answer):
    """What it takes to get from one plan to another, and what it is worth."""

    from_plan_id: str
    to_plan_id: str
    from_max_cost_ms: float = Field(description="Predicted when the plan was made, with its models.")
    to_max_cost_ms: float = Field(description="Predicted when the plan was made, with its models.")
    max_cost_difference_ms: float = Field(description="to_max_cost_ms less from_max_cost_ms.")
    moved_bytes: int = Field(description="Bytes of all moves.")
    moves: list[MoveAnswer] = Field(description="What moves, by table and column.")
    devices: list[DeviceTraffic] = Field(description="Every device that either plan has.")
    removed_tables: list[str] = Field(description="Names of tables that only the first plan has.")
    added_tables: list[str] = Field(description="Names of tables that only the second plan has.")
    changed_tables: list[str] = Field(
        description="Names of tables that both have, with other rows, dim or precision: they cannot be moved."
    )


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

    pointer: str = Field(description="JSON pointer (RFC 6901) to the field at fault; empty for the body itself.")
    message: str
    table: str | None = Field(description="Name of the table concerned, where there is one.")
    parameter: str | None = Field(description="Name of the query parameter at fault, where it is one.")


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
