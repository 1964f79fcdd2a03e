"""What ranks of the tests do: plan, train and observe."""

import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import nn
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.types import ShardedTensor, ShardingPlan

from shardwright_client import Client, Plan, Shard
from shardwright_client.torchrec import (
    PlanObserver,
    ShardwrightPlanner,
    find_tables,
    plan_from_json,
    plan_to_json,
    to_sharding_plan,
    to_shards,
)
from shardwright_client.torchrec.timing import HostClock
from tests.client.adapter.models import LEARNING_RATE, STEPS, Model, batch, loss_of, seeded_model, sharder, topology

LAUNCH_TIMEOUT_S = 300
PLAN = Plan("p" * 32, "complete", True, "auto", (), (), 1.0, {}, (), 1.0)
OPTIMIZERS = {"sgd": EmbOptimType.EXACT_SGD, "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD}


@dataclass(frozen=True)
class Training:
    """What to train: with given shards, or as the service plans under constraints; maybe from a checkpoint half-way."""

    optimizer: str
    shards: tuple[Shard, ...] | None = None
    constraints: dict[str, Any] = field(default_factory=dict)
    observed: bool = False
    broken_clock_of: int | None = None
    resumed: bool = False


@dataclass(frozen=True)
class Trained:
    """What came of it on a rank: its losses and the pieces of tables that it holds."""

    shards: tuple[Shard, ...]
    losses: list[float]
    pieces: list[tuple[str, int, torch.Tensor]]
    top: torch.Tensor
    launch: tuple[str, str] | None


@contextmanager
def joined(folder: Path, ranks: int, rank: int) -> Iterator[None]:
    """A member of a group of ranks of this host."""
    warnings.simplefilter("ignore")
    logging.disable(logging.INFO)
    torch.set_num_threads(1)
    os.environ["LOCAL_WORLD_SIZE"] = str(ranks)
    store = dist.FileStore(str(folder / "store"), ranks)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    try:
        yield
    finally:
        dist.destroy_process_group()


def train_all(folder: Path, url: str, ranks: int, trainings: Sequence[Training], rank: int) -> list[Trained]:
    with joined(folder, ranks, rank), Client(url, timeout_s=30) as client:
        return [
            _trained(client, ranks, training, rank, folder / f"checkpoint-{number}")
            for number, training in enumerate(trainings)
        ]


@contextmanager
def alone(folder: Path) -> Iterator[DistributedModelParallel]:
    """A model on the one rank of a group, a module with both ways of sharding, as in TorchRec's own plans."""
    whole = seeded_model()
    tables = find_tables(whole, [sharder()])
    shards = [
        Shard(table.name, columns, 0)
        for table in tables
        for columns in ([(0, 8), (8, table.embedding_dim)] if table.name == "dog" else [(0, table.embedding_dim)])
    ]
    with joined(folder, 1, 0):
        plan = to_sharding_plan(shards, tables, "cpu", 1)
        for name in ("cat", "cow"):
            plan.plan["first"][name].sharding_type = "table_wise"
        yield DistributedModelParallel(whole, device=torch.device("cpu"), plan=plan, sharders=[sharder()])


def train_alone(model: Any, observer: PlanObserver, steps: int) -> list[float]:
    """The losses of so many observed steps."""
    losses = []
    for step in range(steps):
        loss = loss_of(model, batch(step, 0))
        loss.backward()  # type: ignore[no-untyped-call]
        observer.step()
        losses.append(loss.item())
    return losses


def planner(client: Client, ranks: int, **options: Any) -> ShardwrightPlanner:
    options = {"hardware": "fake", "request": {"algorithm": "dim_greedy"}} | options
    return ShardwrightPlanner(topology(ranks), 6, client=client, **options)


def ask_all(folder: Path, urls: Sequence[str], ranks: int, rank: int) -> list[Any]:
    """What a rank is told by each service."""
    with joined(folder, ranks, rank):
        answers = []
        for url in urls:
            with Client(url, timeout_s=5) as client:
                answers.append(_plan_or_error(client, ranks))
        return answers


def ask_slowly(folder: Path, url: str, ranks: int, rank: int) -> Any:
    """What a rank is told by a service that takes its time."""
    with joined(folder, ranks, rank), Client(url, timeout_s=LAUNCH_TIMEOUT_S) as client:
        return _plan_or_error(client, ranks, hardware="slow", timeout_seconds=20)


def _plan_or_error(client: Client, ranks: int, **options: Any) -> Any:
    model = Model("meta")
    asking = planner(client, ranks, **options)
    try:
        plan = asking.collective_plan(model, [sharder()])
    except Exception as error:
        return type(error).__name__, str(error)
    return to_shards(plan, find_tables(model, [sharder()])), asking.answer, asking.launch_id


def _trained(client: Client, ranks: int, training: Training, rank: int, checkpoint: Path) -> Trained:
    sharders = [sharder(OPTIMIZERS[training.optimizer])]
    whole = seeded_model()
    tables = find_tables(whole, sharders)
    asking = planner(client, ranks, request={"constraints": training.constraints})
    if training.shards is None:
        plan = asking.collective_plan(Model("meta"), sharders)
    else:
        plan = to_sharding_plan(training.shards, tables, "cpu", ranks)
    model = sharded(whole, plan, sharders)
    dense = torch.optim.SGD(_top(model), lr=LEARNING_RATE)
    observed = asking.answer if training.observed else None
    losses = []
    with (
        patch.object(HostClock, "mark", _break) if training.broken_clock_of == rank else nullcontext(),
        PlanObserver(
            model, observed, launch_id=asking.launch_id, client=client, sample_every=2, report_every=STEPS
        ) as observer,
    ):
        for step in range(STEPS):
            if training.resumed and step == STEPS // 2:
                model = _resumed(model, plan, sharders, checkpoint)
                dense = torch.optim.SGD(_top(model), lr=LEARNING_RATE)
            dense.zero_grad()
            loss = loss_of(model, batch(step, rank))
            loss.backward()  # type: ignore[no-untyped-call]
            dense.step()
            observer.step()
            losses.append(loss.item())
    launch = (asking.answer.plan_id, asking.launch_id) if asking.answer else None
    top = torch.cat([parameter.detach().flatten() for parameter in _top(model)])
    return Trained(to_shards(plan, tables), losses, list(_pieces(model)), top, launch)


def _resumed(
    model: DistributedModelParallel, plan: ShardingPlan, sharders: Sequence[Any], checkpoint: Path
) -> DistributedModelParallel:
    """Another model that goes on from what this one has saved."""
    save(_state(model), checkpoint_id=checkpoint)
    other = sharded(Model(), plan_from_json(plan_to_json(plan)), sharders)
    state = _state(other)
    load(state, checkpoint_id=checkpoint)
    other.load_state_dict(state["model"])
    if "optimizer" in state:
        other.fused_optimizer.load_state_dict(state["optimizer"])
    return other


def _state(model: DistributedModelParallel) -> dict[str, Any]:
    optimizer = model.fused_optimizer.state_dict()
    # A rank without tables has an empty one, which checkpoints do not find again.
    return {"model": model.state_dict()} | ({"optimizer": optimizer} if optimizer.get("state") else {})


def _break(_: HostClock) -> None:
    raise RuntimeError("no such clock")


def sharded(whole: nn.Module, plan: ShardingPlan, sharders: Sequence[Any]) -> DistributedModelParallel:
    """The model with its tables sharded and their weights as before."""
    weights = {name: tensor.clone() for name, tensor in whole.state_dict().items()}
    model = DistributedModelParallel(whole, device=torch.device("cpu"), plan=plan, sharders=list(sharders))
    for name, tensor in model.state_dict().items():
        if isinstance(tensor, ShardedTensor):
            for shard in tensor.local_shards():
                first = shard.metadata.shard_offsets[1]
                shard.tensor.copy_(weights[name][:, first : first + shard.metadata.shard_sizes[1]])
    return model


def _pieces(model: DistributedModelParallel) -> Iterator[tuple[str, int, torch.Tensor]]:
    for name, tensor in model.state_dict().items():
        if isinstance(tensor, ShardedTensor):
            for shard in tensor.local_shards():
                yield name, shard.metadata.shard_offsets[1], shard.tensor.detach().clone()


def _top(model: DistributedModelParallel) -> list[torch.Tensor]:
    return [parameter for name, parameter in model.named_parameters() if "top" in name]
