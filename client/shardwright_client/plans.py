"""Plans and estimates: what is asked, and what is answered. Costs are milliseconds of one training step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from shardwright_client.json_values import Answer, FromJson
from shardwright_client.tables import Constraints, Devices, Optimizer, Table

Algorithm = Literal[
    "auto", "neuroshard", "dreamshard", "autoshard", "dim_greedy", "size_greedy", "lookup_greedy",
    "size_lookup_greedy", "random",
]  # fmt: skip
Interval = tuple[float, float]
"""[low, high] of a 90% interval, milliseconds."""


@dataclass(frozen=True, slots=True)
class CostModels(FromJson):
    """Versions of the cost models to answer with, named as answers name them; None for those that serve."""

    compute: str | None = None
    communication: str | None = None


@dataclass(frozen=True, slots=True)
class Models(CostModels):
    """Versions of the cost models and of the policy that an algorithm asks."""

    dreamshard: str | None = None
    autoshard: str | None = None


@dataclass(frozen=True, slots=True)
class PlanRequest(FromJson):
    """A planning question.

    Attributes:
        tables: what to place.
        devices: where.
        global_batch_size: samples in a step, over all devices.
        optimizer: fused into the backward pass.
        algorithm: ``auto`` improves the plans of the others.
        time_limit_ms: from arrival to answer; None for the service's default.
        seed: of what is drawn.
        launch_id: name of a launch of many ranks: all that ask the same under it are answered one plan.
        constraints: what the plan may do.
        previous_plan_id: the stored plan that is running: the answer says what moves.
        max_moved_bytes: most bytes that may move; None for any number. Needs ``previous_plan_id``.
        models: versions to answer with.
    """

    tables: Sequence[Table]
    devices: Devices
    global_batch_size: int
    optimizer: Optimizer
    algorithm: Algorithm = "auto"
    time_limit_ms: int | None = None
    seed: int = 0
    launch_id: str | None = None
    constraints: Constraints = field(default_factory=Constraints)
    previous_plan_id: str | None = None
    max_moved_bytes: int | None = None
    models: Models | None = None


@dataclass(frozen=True, slots=True)
class Shard(FromJson):
    """Where columns [start, stop) of a table go.

    Attributes:
        table: its name.
        columns: [start, stop).
        device: index of the device.
        sharding_type: ``table_wise`` or ``column_wise``; may be left out of an estimate, the columns say it.
    """

    table: str
    columns: tuple[int, int]
    device: int
    sharding_type: str | None = None

    @property
    def width(self) -> int:
        """Columns."""
        return self.columns[1] - self.columns[0]


@dataclass(frozen=True, slots=True)
class ShardsEstimateRequest(FromJson):
    """What would this placement cost?

    Attributes:
        tables: what is placed.
        devices: where.
        global_batch_size: samples in a step, over all devices.
        optimizer: fused into the backward pass.
        shards: they tile every table's columns.
        constraints: those that the placement was planned with: they say which slices that touch count as one shard.
        models: versions to answer with.
    """

    tables: Sequence[Table]
    devices: Devices
    global_batch_size: int
    optimizer: Optimizer
    shards: Sequence[Shard]
    constraints: Constraints = field(default_factory=Constraints)
    models: CostModels | None = None

    @classmethod
    def of(cls, request: PlanRequest, shards: Sequence[Shard]) -> "ShardsEstimateRequest":
        """The price of another placement for a planning question."""
        pinned = request.models and CostModels(request.models.compute, request.models.communication)
        return cls(
            request.tables, request.devices, request.global_batch_size, request.optimizer, shards, request.constraints,
            pinned,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class StoredEstimateRequest(FromJson):
    """What does a stored plan cost under the models of today?

    Attributes:
        plan_id: of the plan.
        models: versions to answer with.
    """

    plan_id: str
    models: CostModels | None = None


@dataclass(frozen=True, slots=True)
class Memory(FromJson):
    """Bytes on a device, by purpose."""

    weights: int
    optimizer: int
    buffers: int
    total: int


@dataclass(frozen=True, slots=True)
class Costs(FromJson):
    """Milliseconds of one training step's embedding part on a device."""

    forward_compute: float
    backward_compute: float
    forward_wait: float
    forward_transfer: float
    backward_comm: float
    total: float


@dataclass(frozen=True, slots=True)
class CostIntervals(FromJson):
    """90% intervals of a device's costs, milliseconds."""

    forward_compute: Interval
    backward_compute: Interval
    forward_wait: Interval
    forward_transfer: Interval
    backward_comm: Interval
    total: Interval


@dataclass(frozen=True, slots=True)
class Device(FromJson):
    """What a placement puts on one device.

    Attributes:
        device: its index.
        memory_limit_bytes: what the embeddings may use.
        memory_bytes: what they use.
        cost_ms: predicted.
        cost_interval_ms: None of plans that an earlier service stored without.
    """

    device: int
    memory_limit_bytes: int
    memory_bytes: Memory
    cost_ms: Costs
    cost_interval_ms: CostIntervals | None = None


@dataclass(frozen=True, slots=True)
class Move(FromJson):
    """Columns [start, stop) of a table that come to a device which did not have them.

    Attributes:
        table: its name.
        columns: [start, stop).
        from_device: device that had them; a plan for fewer devices may have no such device.
        to_device: device that gets them.
        bytes: of their weights and optimizer state.
    """

    table: str
    columns: tuple[int, int]
    from_device: int
    to_device: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Estimate(Answer):
    """Predicted costs of a placement.

    Attributes:
        devices: by index.
        max_cost_ms: the largest total over the devices.
        max_cost_interval_ms: of ``max_cost_ms``.
        models: versions of the models, by kind.
        assumptions: what the service had to assume, in sentences.
    """

    devices: tuple[Device, ...]
    max_cost_ms: float
    max_cost_interval_ms: Interval
    models: Mapping[str, str]
    assumptions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Plan(Answer):
    """A plan with its predicted costs.

    Attributes:
        plan_id: the same question, with the same models, has the same.
        status: ``complete``, or ``cut_short`` by the time limit.
        saved: False where the service's database was away: the plan cannot be fetched by its id.
        algorithm: that made it.
        shards: they tile every table's columns.
        devices: by index.
        max_cost_ms: the largest total over the devices.
        models: versions of the models, by kind.
        assumptions: what the service had to assume, in sentences.
        planning_ms: from arrival to the plan, when it was made.
        max_cost_interval_ms: of ``max_cost_ms``; None of plans that an earlier service stored without.
        lower_bound_ms: no plan's ``max_cost_ms`` is below this; None of plans that an earlier service stored without.
        moved_bytes: of all moves; None without a previous plan.
        moves: what moves from the previous plan; None without one.
    """

    plan_id: str
    status: str
    saved: bool
    algorithm: str
    shards: tuple[Shard, ...]
    devices: tuple[Device, ...]
    max_cost_ms: float
    models: Mapping[str, str]
    assumptions: tuple[str, ...]
    planning_ms: float
    max_cost_interval_ms: Interval | None = None
    lower_bound_ms: float | None = None
    moved_bytes: int | None = None
    moves: tuple[Move, ...] | None = None

    def shards_of(self, device: int) -> tuple[Shard, ...]:
        """The shards of a device, by its index, in the plan's order."""
        return tuple(shard for shard in self.shards if shard.device == device)


@dataclass(frozen=True, slots=True)
class ListedPlan(Answer):
    """A stored plan in short.

    Attributes:
        plan_id: to get all of it with.
        created_at: by the service's clock; later where a better plan took the place of one.
        hardware: key of the cost models.
        algorithm: that made it.
        status: ``complete``, or ``cut_short`` by the time limit.
        max_cost_ms: the largest total over the devices.
    """

    plan_id: str
    created_at: datetime
    hardware: str
    algorithm: str
    status: str
    max_cost_ms: float


@dataclass(frozen=True, slots=True)
class PlansPage(Answer):
    """A page of the stored plans, the newest first.

    Attributes:
        plans: on the page.
        next_cursor: to ask for the next page with; None on the last one.
    """

    plans: tuple[ListedPlan, ...]
    next_cursor: str | None
