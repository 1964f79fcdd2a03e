"""Where a sharded model has its tables, and whether that is what a plan says."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from torchrec.distributed.embeddingbag import ShardedEmbeddingBagCollection
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.types import ShardingPlan

from shardwright_client.errors import InvalidArgument
from shardwright_client.plans import Plan, Shard
from shardwright_client.torchrec.errors import together
from shardwright_client.torchrec.modules import named_tables
from shardwright_client.torchrec.placements import to_shards

_Pieces = list[tuple[tuple[int, int], int]]
_REMEDY = "give the answer of the planner that planned it"


@dataclass(frozen=True, slots=True)
class Running:
    """How a model is sharded.

    Attributes:
        rank: this one, among those that the tables are on.
        ranks: how many these are.
        shards: of all of them, by table and column; tables are named as in requests.
    """

    rank: int
    ranks: int
    shards: tuple[Shard, ...]


def running(model: nn.Module) -> Running:
    """What the ShardedEmbeddingBagCollections of a model say of themselves.

    Args:
        model: after DistributedModelParallel, or with it somewhere inside.

    Raises:
        NotModelled: it shards a table as no plan of the service does.
        InvalidArgument: none is sharded.
    """
    found = dict(_collections(model))
    if not found:
        raise InvalidArgument("no sharded EmbeddingBagCollection is observed: give the DistributedModelParallel")
    sharding = ShardingPlan({path: collection.module_sharding_plan for path, collection in found.items()})
    tables = named_tables(
        [
            (path, config, None, bool(collection._is_weighted), None)
            for path, collection in found.items()
            for config in collection._embedding_bag_configs
        ]
    )
    environment = next(iter(found.values()))._env
    return Running(environment.rank, environment.world_size, to_shards(sharding, tables))


def check_runs(found: Running, plan: Plan) -> None:
    """Sees that a model runs on a plan.

    Raises:
        InvalidArgument: it does not; names the ranks, or a table.
    """
    if found.ranks != len(plan.devices):
        raise InvalidArgument(
            f"plan {plan.plan_id} is for {len(plan.devices)} ranks, but the model runs on {found.ranks}: {_REMEDY}"
        )
    planned, has = _pieces(plan.shards), _pieces(found.shards)
    for table in sorted(planned.keys() | has.keys()):
        if planned.get(table) != has.get(table):
            raise InvalidArgument(
                f"the model does not run on plan {plan.plan_id}: of table {table!r} the plan has "
                f"{_told(planned.get(table))}, the model {_told(has.get(table))}: {_REMEDY}"
            )


def _collections(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """The sharded collections by their path in the model that was planned, in the order of ``find_tables``."""
    wrappers = [module for module in model.modules() if isinstance(module, DistributedModelParallel)]
    planned = wrappers[0].module if len(wrappers) == 1 else model
    modules = [each for each in planned.named_modules() if isinstance(each[1], ShardedEmbeddingBagCollection)]
    yield from sorted(modules, key=lambda each: each[0].count("."))


def _pieces(shards: Sequence[Shard]) -> Mapping[str, _Pieces]:
    """Columns and ranks, by table."""
    pieces: dict[str, _Pieces] = {}
    for shard in sorted(shards, key=lambda shard: shard.columns):
        pieces.setdefault(shard.table, []).append((shard.columns, shard.device))
    return pieces


def _told(pieces: _Pieces | None) -> str:
    return together([f"columns {list(columns)} on rank {rank}" for columns, rank in pieces or []]) or "no columns"
