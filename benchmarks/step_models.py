"""A task's tables as TorchRec's module, its lookups as TorchRec's features, and the planners' plans of it."""

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import nn
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology
from torchrec.distributed.types import ShardingPlan
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from benchmarks.search_tasks import HARDWARE
from benchmarks.step_tasks import RANK_BYTES, RANKS, Batch, StepTask
from benchmarks.torchrec_plans import COLUMN_TYPES
from service.domain.plan import Problem
from service.domain.tables import Table
from shardwright_client import Client, Estimate
from shardwright_client.torchrec import NotModelled, ShardwrightPlanner

LEARNING_RATE = 0.01
_FIRST_WEIGHT = 0.01


@dataclass(frozen=True, slots=True)
class ArmPlan:
    """A planner's plan of a task.

    Attributes:
        plan: for DistributedModelParallel.
        planning_s: from the planner's construction to its answer, that of the service included.
        kinds: number of tables of each sharding type.
        estimate: of the service's cost models; None where they do not know the sharding types.
    """

    plan: ShardingPlan
    planning_s: float
    kinds: Mapping[str, int]
    estimate: Estimate | None

    @property
    def places(self) -> dict[str, tuple[Any, ...]]:
        """Where each table is: of whole tables, table-wise and column-wise are two names of the same."""
        tables = self.plan.plan["tables"]
        return {name: (tables[name].ranks, tables[name].sharding_spec) for name in tables}


class PooledModel(nn.Module):
    """Tables below one dense layer: all that is not embedding is as little as it can be.

    Every weight begins the same, so that the model's losses do not depend on the order of the columns, which follows
    from the plan.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__()
        configs = [_config(table) for table in problem.tables]
        self.tables = EmbeddingBagCollection(tables=configs, device=torch.device("meta"))
        self.top = nn.Linear(sum(table.output_width for table in problem.tables), 1)
        for parameter in self.top.parameters():
            nn.init.constant_(parameter, _FIRST_WEIGHT)

    def forward(self, features: KeyedJaggedTensor) -> torch.Tensor:
        """Logits of the samples; [B]."""
        answer: torch.Tensor = self.top(self.tables(features).values()).squeeze(1)
        return answer


def sharders() -> list[Any]:
    """Those of TorchRec, which fuse SGD into the tables' backward pass."""
    fused = {"optimizer": EmbOptimType.EXACT_SGD, "learning_rate": LEARNING_RATE}
    return [EmbeddingBagCollectionSharder(fused_params=fused)]


def features(problem: Problem, batch: Batch) -> KeyedJaggedTensor:
    """A batch as the model takes it."""
    names = [name for table in problem.tables for name in _features(table)]
    return KeyedJaggedTensor(
        names, torch.from_numpy(batch.ids), lengths=torch.from_numpy(batch.lengths.ravel()).to(torch.int32)
    )


def plans(task: StepTask, sample: Batch, client: Client) -> dict[str, ArmPlan]:
    """Every planner's plan, by its name; ours first."""
    model, asking = PooledModel(task.problem), partial(_shardwright, task, sample, client)
    planned = {
        "shardwright": _timed(asking, model),
        "torchrec": _timed(partial(_torchrec, task, COLUMN_TYPES), model),
        "torchrec, all types": _timed(partial(_torchrec, task, None), model),
    }
    pricing = asking()
    return {name: _priced(pricing, model, *found) for name, found in planned.items()}


def _timed(planner: Any, model: nn.Module) -> tuple[ShardingPlan, float]:
    started = time.perf_counter()
    plan = planner().plan(model, sharders())
    return plan, time.perf_counter() - started


def _priced(pricing: ShardwrightPlanner, model: nn.Module, plan: ShardingPlan, planning_s: float) -> ArmPlan:
    kinds = Counter(sharding.sharding_type for tables in plan.plan.values() for sharding in tables.values())
    try:
        return ArmPlan(plan, planning_s, kinds, pricing.estimate(plan, model, sharders()))
    except NotModelled:
        return ArmPlan(plan, planning_s, kinds, None)


def _shardwright(task: StepTask, sample: Batch, client: Client) -> ShardwrightPlanner:
    return ShardwrightPlanner(
        *_shared_arguments(task),
        constraints=_constraints(task.problem, COLUMN_TYPES),
        debug=False,
        hardware=HARDWARE,
        client=client,
        samples=[features(task.problem, sample)],
    )


def _torchrec(task: StepTask, sharding_types: tuple[str, ...] | None) -> EmbeddingShardingPlanner:
    constraints = _constraints(task.problem, sharding_types)
    return EmbeddingShardingPlanner(*_shared_arguments(task), constraints=constraints, debug=False)


def _shared_arguments(task: StepTask) -> tuple[Topology, int]:
    return Topology(RANKS, "cpu", ddr_cap=RANK_BYTES), task.problem.global_batch_size // RANKS


def _constraints(problem: Problem, sharding_types: tuple[str, ...] | None) -> dict[str, ParameterConstraints]:
    return {
        table.name: ParameterConstraints(
            sharding_types=list(sharding_types) if sharding_types else None,
            pooling_factors=[table.pooling_factor / table.num_features] * table.num_features,
        )
        for table in problem.tables
    }


def _config(table: Table) -> EmbeddingBagConfig:
    return EmbeddingBagConfig(
        name=table.name,
        num_embeddings=table.num_embeddings,
        embedding_dim=table.embedding_dim,
        feature_names=_features(table),
        init_fn=partial(nn.init.constant_, val=_FIRST_WEIGHT),
    )


def _features(table: Table) -> list[str]:
    return [f"{table.name}:{feature}" for feature in range(table.num_features)]
