"""Shardwright's shards as TorchRec's ShardingPlan, and back."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.sharding_plan import placement
from torchrec.distributed.types import (
    EmbeddingModuleShardingPlan,
    EnumerableShardingSpec,
    ParameterSharding,
    ShardingPlan,
    ShardMetadata,
)

from shardwright_client.errors import InvalidArgument
from shardwright_client.plans import Shard
from shardwright_client.torchrec.errors import NotModelled
from shardwright_client.torchrec.loading import load_unlike_widths
from shardwright_client.torchrec.modules import ModuleTable, told_table

TABLE_WISE: Final = "table_wise"
COLUMN_WISE: Final = "column_wise"
_PASSED_ON = ("cache_params", "enforce_hbm", "stochastic_rounding", "bounds_check_mode", "output_dtype")
"""Constraints that TorchRec's planner hands on to the operator."""


def to_sharding_plan(
    shards: Sequence[Shard],
    tables: Sequence[ModuleTable],
    compute_device: str,
    local_world_size: int,
    constraints: Mapping[str, ParameterConstraints] | None = None,
) -> ShardingPlan:
    """A plan that DistributedModelParallel takes; the plan's devices are the ranks.

    The tables of a module are ``table_wise`` where each is in one piece, else all of them ``column_wise``, whatever the
    widths and wherever they are: TorchRec looks up and exchanges each type apart, and copies the outputs together. All
    have the kernel whose optimizer is fused into the backward pass.

    Args:
        shards: of a plan.
        tables: those that were asked for.
        compute_device: ``cpu`` or ``cuda``.
        local_world_size: ranks of a host, whose devices are numbered from 0.
        constraints: by the table's name in its module; what they say of the operator is handed on.

    Raises:
        InvalidArgument: the shards do not tile every table's columns, are of other tables, or a rank has slices of a
            table that are not equally wide, of which TorchRec cannot make one parameter.
    """
    load_unlike_widths()
    by_table: dict[str, list[Shard]] = {table.name: [] for table in tables}
    for shard in shards:
        if shard.table not in by_table:
            raise InvalidArgument(f"the plan places table {shard.table!r}, which the model does not have")
        by_table[shard.table].append(shard)
    cut = {table.path for table in tables if len(by_table[table.name]) > 1}
    plan: dict[str, EmbeddingModuleShardingPlan] = {}
    for table in tables:
        of_table = sorted(by_table[table.name], key=lambda shard: shard.columns)
        _check_tiles(table, of_table)
        _check_widths(table, of_table)
        sharding_type = COLUMN_WISE if table.path in cut else TABLE_WISE
        sharding = _parameter_sharding(table, of_table, sharding_type, compute_device, local_world_size)
        constraint = (constraints or {}).get(table.table)
        for name in _PASSED_ON if constraint else ():
            setattr(sharding, name, getattr(constraint, name))
        plan.setdefault(table.path, EmbeddingModuleShardingPlan())[table.table] = sharding
    return ShardingPlan(plan)


def to_shards(plan: ShardingPlan, tables: Sequence[ModuleTable]) -> tuple[Shard, ...]:
    """The shards of TorchRec's plan, by table and column.

    Args:
        plan: of the tables, table-wise and column-wise.
        tables: of the model.

    Raises:
        NotModelled: it shards a table otherwise, or keeps its weights elsewhere than on the device.
        InvalidArgument: it lacks a table, has others, or is none.
    """
    if not isinstance(plan, ShardingPlan):
        raise InvalidArgument(f"plan must be a ShardingPlan of TorchRec, not {type(plan).__name__}")
    planned = {(path, name) for path, module in plan.plan.items() for name in module}
    known = {(table.path, table.table): table for table in tables}
    if planned != set(known):
        path, name = min(planned ^ set(known))
        lacking = "the plan lacks" if (path, name) in known else "the model lacks"
        raise InvalidArgument(f"{lacking} {told_table(path, name)}: are they of one model?")
    return tuple(shard for table in tables for shard in _table_shards(table, plan.plan[table.path][table.table]))


def _parameter_sharding(
    table: ModuleTable, shards: Sequence[Shard], sharding_type: str, compute_device: str, local_world_size: int
) -> ParameterSharding:
    pieces = [
        ShardMetadata(
            shard_offsets=[0, shard.columns[0]],
            shard_sizes=[table.num_embeddings, shard.width],
            placement=placement(compute_device, shard.device, local_world_size),
        )
        for shard in shards
    ]
    return ParameterSharding(
        sharding_type=sharding_type,
        compute_kernel=EmbeddingComputeKernel.FUSED.value,
        ranks=[shard.device for shard in shards],
        sharding_spec=EnumerableShardingSpec(pieces),
    )


def _table_shards(table: ModuleTable, sharding: Any) -> list[Shard]:
    if sharding.sharding_type not in (TABLE_WISE, COLUMN_WISE):
        raise NotModelled(
            f"{table.told} is sharded {sharding.sharding_type}: Shardwright models {TABLE_WISE} and {COLUMN_WISE} (the "
            "service would answer unsupported_sharding). Plan with ParameterConstraints(sharding_types=["
            f"{TABLE_WISE!r}, {COLUMN_WISE!r}]) to compare"
        )
    if sharding.compute_kernel != EmbeddingComputeKernel.FUSED.value:
        raise NotModelled(
            f"{table.told} has compute kernel {sharding.compute_kernel}: modelled is fused, on the device"
        )
    if sharding.sharding_spec is None:
        raise InvalidArgument(f"the plan says {sharding.sharding_type} of {table.told}, but not where its shards are")
    shards = [
        Shard(
            table.name,
            (piece.shard_offsets[1], piece.shard_offsets[1] + piece.shard_sizes[1]),
            piece.placement.rank(),
            # By its columns: TorchRec also calls a table in one piece column-wise.
            TABLE_WISE if piece.shard_sizes[1] == table.embedding_dim else COLUMN_WISE,
        )
        for piece in sharding.sharding_spec.shards
    ]
    shards.sort(key=lambda shard: shard.columns)
    _check_tiles(table, shards)
    return shards


def _check_tiles(table: ModuleTable, shards: Sequence[Shard]) -> None:
    ends = [0, *(shard.columns[1] for shard in shards)]
    begins = [*(shard.columns[0] for shard in shards), table.embedding_dim]
    if begins != ends or any(first >= last for first, last in pairwise(ends)):
        columns = [list(shard.columns) for shard in shards]
        raise InvalidArgument(
            f"the plan's shards {columns} do not tile the {table.embedding_dim} columns of {table.told}"
        )


def _check_widths(table: ModuleTable, shards: Sequence[Shard]) -> None:
    widths: dict[int, set[int]] = {}
    for shard in shards:
        widths.setdefault(shard.device, set()).add(shard.width)
    for rank, found in sorted(widths.items()):
        if len(found) > 1:
            columns = [list(shard.columns) for shard in shards if shard.device == rank]
            raise InvalidArgument(
                f"rank {rank} has slices {columns} of {table.told}, which are not equally wide: TorchRec makes one "
                "parameter of them and would reach into other tables. Ask with "
                f'request={{"constraints": {{"max_shard_dim": {table.embedding_dim}}}}}, so that what a rank has of it '
                "may be one slice"
            )
