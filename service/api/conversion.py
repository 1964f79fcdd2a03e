"""Between the bodies of the contract and the values of the domain."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from service.api.answers import (
    CostAnswer,
    CostIntervalAnswer,
    DeviceAnswer,
    EstimateAnswer,
    EstimatedDeviceAnswer,
    MemoryAnswer,
    MoveAnswer,
    PlanAnswer,
    ShardAnswer,
)
from service.api.schemas import (
    MAX_EXACT_INT,
    DevicesBody,
    PlanRequest,
    PoolingModeName,
    ProfilesRequest,
    ReuseHistogramBody,
    ShardingTypeName,
    ShardsEstimateRequest,
    StoredEstimateRequest,
    TableBody,
)
from service.domain.errors import Fault, UnsupportedSharding
from service.domain.moves import Move, moved_bytes
from service.domain.plan import Constraints, Problem, Running, Shard, ShardingType, content_hash
from service.domain.tables import PoolingMode, ReuseHistogram, Table
from service.domain.topology import Topology
from service.usecases.estimate import Estimate
from service.usecases.make_plan import PlanResult
from service.usecases.pricing import DeviceReport

_MODELLED = frozenset(kind.value for kind in ShardingType)


def conversion_faults(request: PlanRequest | ShardsEstimateRequest) -> list[Fault]:
    """What contradicts itself in a body and has no place in the domain's values."""
    faults = []
    memory, count = request.devices.memory_bytes, request.devices.count
    if isinstance(memory, list) and len(memory) != count:
        faults.append(Fault("/devices/memory_bytes", f"needs one entry for each of {count} devices, got {len(memory)}"))
    if isinstance(request, PlanRequest) and request.max_moved_bytes is not None and request.previous_plan_id is None:
        message = "limits what moves from a plan that is running: name that plan in previous_plan_id, or leave this out"
        faults.append(Fault("/max_moved_bytes", message))
    return faults


def shard_faults(request: ShardsEstimateRequest) -> list[Fault]:
    """Shards whose named type and columns contradict each other."""
    dims = {table.name: table.embedding_dim for table in request.tables}
    faults = []
    for i, shard in enumerate(request.shards):
        whole = shard.columns == [0, dims.get(shard.table, -1)]
        kind = shard.sharding_type
        modelled = kind is not None and kind.value in _MODELLED
        if shard.table in dims and modelled and whole != (kind is ShardingTypeName.TABLE_WISE):
            message = f"columns {shard.columns[0]} to {shard.columns[1]} are not {kind}"
            faults.append(Fault(f"/shards/{i}/sharding_type", message, shard.table))
    return faults


def refuse_unmodelled(request: object) -> None:
    """Refuses what the contract names but no cost model describes.

    Raises:
        UnsupportedSharding: with ``pointers`` to it, what was asked for and what is supported.
    """
    if isinstance(request, PlanRequest | ShardsEstimateRequest):
        kinds = {f"/constraints/sharding_types/{i}": k for i, k in enumerate(request.constraints.sharding_types)}
        _refuse({at: kind.value for at, kind in kinds.items() if kind.value not in _MODELLED})
    if isinstance(request, ShardsEstimateRequest):
        named = {f"/shards/{i}/sharding_type": s.sharding_type for i, s in enumerate(request.shards)}
        _refuse({at: kind.value for at, kind in named.items() if kind is not None and kind.value not in _MODELLED})
    if isinstance(request, PlanRequest | ShardsEstimateRequest | ProfilesRequest):
        _refuse_unpooled(request.tables)


def _refuse(asked: dict[str, str]) -> None:
    if asked:
        kinds, known = sorted(set(asked.values())), sorted(_MODELLED)
        raise UnsupportedSharding(
            f"no cost model describes {', '.join(kinds)}; {' and '.join(known)} are modelled",
            unsupported=kinds,
            supported=known,
            pointers=list(asked),
        )


def _refuse_unpooled(tables: Sequence[TableBody]) -> None:
    unpooled = [i for i, table in enumerate(tables) if table.pooling_mode is PoolingModeName.NONE]
    if unpooled:
        known = [mode.value for mode in PoolingMode]
        raise UnsupportedSharding(
            f"no cost model describes unpooled lookups; pooling_mode {' and '.join(known)} are modelled",
            unsupported=[PoolingModeName.NONE.value],
            supported=known,
            pointers=[f"/tables/{i}/pooling_mode" for i in unpooled],
            tables=[tables[i].name for i in unpooled],
        )


def posed_problem(request: PlanRequest | ShardsEstimateRequest) -> Problem:
    """The problem that a request poses; what is not modelled is left out, for ``refuse_unmodelled`` to name."""
    asked = request.constraints
    constraints = Constraints(
        sharding_types=frozenset(ShardingType(kind.value) for kind in asked.sharding_types if kind.value in _MODELLED)
        or frozenset(ShardingType),
        column_multiple=asked.column_multiple,
        min_shard_dim=asked.min_shard_dim,
        max_shard_dim=asked.max_shard_dim,
        count_buffers=asked.count_buffers,
        pin={name: tuple(devices) for name, devices in asked.pin.items()},
        colocate=tuple(map(tuple, asked.colocate)),
        separate=tuple(map(tuple, asked.separate)),
    )
    return Problem(
        tables=tuple(_table(table) for table in request.tables),
        topology=Topology(request.devices.hardware, tuple(_memories(request.devices))),
        global_batch_size=request.global_batch_size,
        optimizer=request.optimizer,
        constraints=constraints,
    )


def posed_profiles(request: ProfilesRequest) -> Problem:
    """The tables to be measured as a problem of one device, on which nothing is planned."""
    return Problem(
        tables=tuple(_table(table) for table in request.tables),
        topology=Topology(request.hardware, (MAX_EXACT_INT,)),
        global_batch_size=request.global_batch_size,
        optimizer=request.optimizer,
    )


def given_shards(request: ShardsEstimateRequest) -> tuple[Shard, ...]:
    """The shards to price, in the order given."""
    return tuple(Shard(body.table, body.columns[0], body.columns[1], body.device) for body in request.shards)


def _memories(devices: DevicesBody) -> list[int]:
    memory = devices.memory_bytes
    return memory if isinstance(memory, list) else [memory] * devices.count


def _table(body: TableBody) -> Table:
    unpooled = body.pooling_mode is PoolingModeName.NONE
    return Table(
        name=body.name,
        num_embeddings=body.num_embeddings,
        embedding_dim=body.embedding_dim,
        pooling_factor=body.pooling_factor,
        num_features=body.num_features,
        pooling_mode=PoolingMode.SUM if unpooled else PoolingMode(body.pooling_mode.value),
        data_type=body.data_type,
        distinct_rows=body.distinct_rows,
        reuse_histogram=_histogram(body.reuse_histogram),
    )


def _histogram(body: ReuseHistogramBody | None) -> ReuseHistogram | None:
    return ReuseHistogram(body.batch_size, tuple(body.fractions)) if body else None


def pinned_versions(request: PlanRequest | ShardsEstimateRequest | StoredEstimateRequest) -> dict[str, str]:
    """Names of the versions that a request asks for, by kind."""
    named = request.models.model_dump(mode="json") if request.models else {}
    return {kind: name for kind, name in named.items() if name is not None}


def request_content(request: PlanRequest) -> dict[str, Any]:
    """The request with every default filled in, in one spelling: equal questions have equal content, whoever asks."""
    content = request.model_dump(mode="json", exclude={"launch_id", "models"})
    # Without any it is the content of before there were any, and so has the plan's id of then.
    if pinned := pinned_versions(request):
        content["models"] = pinned
    content["devices"]["memory_bytes"] = _memories(request.devices)
    constraints = content["constraints"]
    constraints["sharding_types"] = sorted(set(constraints["sharding_types"]))
    constraints["pin"] = {name: sorted(set(devices)) for name, devices in sorted(constraints["pin"].items())}
    for field in ("colocate", "separate"):
        constraints[field] = sorted(map(sorted, constraints[field]))
    return content


def plan_id_of(content: Mapping[str, Any], models: Mapping[str, str], running: Running | None) -> str:
    """The id of the plan that answers a question.

    Args:
        content: of the request.
        models: versions and digest of the cost models.
        running: the previous plan. Its shards count besides its id, under which a better plan may take the place of
            one that was cut short.
    """
    shards = {} if running is None else {"running": list(map(asdict, running.shards))}
    return content_hash({"request": content, "models": models, **shards})


def plan_answer(result: PlanResult, dims: dict[str, int], plan_id: str, planning_ms: float) -> PlanAnswer:
    """The answer to a planning question, as yet unsaved.

    Args:
        result: the plan.
        dims: width of every table, by name.
        plan_id: its id.
        planning_ms: from the request's arrival to the plan.
    """
    return PlanAnswer(
        plan_id=plan_id,
        status=result.status.value,
        saved=False,
        algorithm=result.algorithm.value,
        shards=[_shard_answer(shard, dims) for shard in result.shards],
        devices=[DeviceAnswer(**_on_device(report)) for report in result.devices],
        max_cost_ms=result.max_cost_ms,
        max_cost_interval_ms=list(result.max_cost_interval_ms),
        lower_bound_ms=result.lower_bound_ms,
        moved_bytes=None if result.moves is None else moved_bytes(result.moves),
        moves=None if result.moves is None else move_answers(result.moves),
        models=dict(result.models),
        assumptions=list(result.assumptions),
        planning_ms=planning_ms,
    )


def estimate_answer(estimate: Estimate) -> EstimateAnswer:
    """The answer to an estimate."""
    return EstimateAnswer(
        devices=[EstimatedDeviceAnswer(**_on_device(report)) for report in estimate.devices],
        max_cost_ms=estimate.max_cost_ms,
        max_cost_interval_ms=list(estimate.max_cost_interval_ms),
        models=dict(estimate.models),
        assumptions=list(estimate.assumptions),
    )


def move_answers(made: Iterable[Move]) -> list[MoveAnswer]:
    """What moves from where to where."""
    return [
        MoveAnswer(
            table=move.table,
            columns=[move.start, move.stop],
            from_device=move.origin,
            to_device=move.device,
            bytes=move.bytes,
        )
        for move in made
    ]


def _shard_answer(shard: Shard, dims: dict[str, int]) -> ShardAnswer:
    whole = shard.width == dims[shard.table]
    kind = ShardingType.TABLE_WISE if whole else ShardingType.COLUMN_WISE
    return ShardAnswer(table=shard.table, sharding_type=kind, columns=[shard.start, shard.stop], device=shard.device)


def _on_device(report: DeviceReport) -> dict[str, Any]:
    """Fields of a device's answer."""
    memory, cost = report.memory, report.cost
    return {
        "device": report.device,
        "memory_limit_bytes": report.memory_limit_bytes,
        "memory_bytes": MemoryAnswer(
            weights=memory.weights, optimizer=memory.optimizer, buffers=memory.buffers, total=memory.total
        ),
        "cost_ms": CostAnswer(
            forward_compute=cost.forward_compute,
            backward_compute=cost.backward_compute,
            forward_wait=cost.forward_wait,
            forward_transfer=cost.forward_transfer,
            backward_comm=cost.backward_comm,
            total=cost.total,
        ),
        "cost_interval_ms": CostIntervalAnswer(**asdict(report.interval)),
    }
