"""TorchRec's plans as JSON, in the form of its own ``ShardingPlan._serialize``, and back."""

import json
from collections.abc import Mapping
from typing import Any

from torchrec.distributed.types import (
    EmbeddingModuleShardingPlan,
    EnumerableShardingSpec,
    ParameterSharding,
    ShardingPlan,
    ShardMetadata,
)

from shardwright_client.errors import InvalidArgument
from shardwright_client.torchrec.loading import load_unlike_widths


def plan_to_json(plan: ShardingPlan) -> str:
    """A plan as JSON.

    It has types, kernels, ranks, and of each shard offsets, sizes and placement. It lacks, as TorchRec's form does,
    what constraints say of the operator (cache, rounding, bounds check, output type).
    """
    return json.dumps(
        {
            "plan": {
                path: {name: _sharding_json(sharding) for name, sharding in module.items()}
                for path, module in plan.plan.items()
            }
        }
    )


def plan_from_json(text: str) -> ShardingPlan:
    """The plan that DistributedModelParallel takes; see ``load_unlike_widths`` for checkpoints.

    Raises:
        InvalidArgument: it is not of this form; says where.
    """
    load_unlike_widths()
    try:
        modules = json.loads(text)["plan"]
        return ShardingPlan({path: _module(path, tables) for path, tables in modules.items()})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidArgument(f"no serialized ShardingPlan of TorchRec: {type(error).__name__}: {error}") from error


def _sharding_json(sharding: ParameterSharding) -> dict[str, Any]:
    described = {
        "sharding_type": sharding.sharding_type,
        "compute_kernel": sharding.compute_kernel,
        "ranks": sharding.ranks,
    }
    if sharding.sharding_spec is None:
        return described
    pieces = [
        {
            "shard_offsets": list(piece.shard_offsets),
            "shard_sizes": list(piece.shard_sizes),
            "placement": str(piece.placement),
        }
        for piece in sharding.sharding_spec.shards
    ]
    return described | {"shards": pieces}


def _module(path: str, tables: Mapping[str, Any]) -> EmbeddingModuleShardingPlan:
    module = EmbeddingModuleShardingPlan()
    for name, described in tables.items():
        try:
            module[name] = _sharding(described)
        # PyTorch raises RuntimeError for a device that it does not know.
        except (ValueError, KeyError, TypeError, RuntimeError) as error:
            raise ValueError(f"table {name!r} of module {path!r}: {type(error).__name__}: {error}") from error
    return module


def _sharding(described: Mapping[str, Any]) -> ParameterSharding:
    pieces = described.get("shards")
    spec = None if pieces is None else EnumerableShardingSpec([ShardMetadata(**piece) for piece in pieces])
    return ParameterSharding(described["sharding_type"], described["compute_kernel"], described["ranks"], spec)
