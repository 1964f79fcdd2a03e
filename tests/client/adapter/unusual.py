"""Models that are sharded in unusual places or under unusual names, and what training them comes to."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torchrec.modules.embedding_configs import DataType
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from shardwright_client import Client
from tests.client.adapter.models import LEARNING_RATE, collection, config, sharder
from tests.client.adapter.ranks import joined, planner, sharded

STEPS = 3
SAMPLES, ROWS = 6, 7
NAME = "käse/1 'a\" ☃"


class WeightedAndNot(nn.Module):
    """Two collections with a table of one name, the lookups of one weighted."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.weighted = collection(config(NAME, ["f"]), device=device, is_weighted=True)
        self.plain = collection(config(NAME, ["f", "g"]), device=device)

    def forward(self, features: KeyedJaggedTensor) -> torch.Tensor:
        weights = (1 + features.values() % 3) / 3
        with_weights = KeyedJaggedTensor(features.keys(), features.values(), weights, features.lengths())
        weighted, pooled = self.weighted(with_weights), self.plain(features)
        return torch.cat([weighted["f"], pooled["f"], pooled["g"]], 1)


MODELS: Mapping[str, Callable[[str], nn.Module]] = {
    "the model itself": lambda device: collection(config("t", ["f"], 64), config("u", ["g"], 8), device=device),
    "half precision": lambda device: collection(
        config("t", ["f"], 64, data_type=DataType.FP16), config("u", ["g"], 8), device=device
    ),
    "weighted and not": WeightedAndNot,
    "one table that cannot be cut": lambda device: collection(config("t", ["f", "g"], 4), device=device),
}


def losses_of_all(folder: Path, url: str, ranks: int, rank: int) -> Mapping[str, list[float]]:
    """The mean losses of all ranks, model by model."""
    with joined(folder, ranks, rank), Client(url) as client:
        return {name: _losses(client, make, ranks, rank) for name, make in MODELS.items()}


def _losses(client: Client, make: Callable[[str], nn.Module], ranks: int, rank: int) -> list[float]:
    sharders = [sharder()]
    plan = planner(client, ranks).collective_plan(make("meta"), sharders)
    model = sharded(_seeded(make), plan, sharders)
    losses = []
    for step in range(STEPS):
        loss = _loss(model, step, rank)
        loss.backward()  # type: ignore[no-untyped-call]
        losses.append(loss.detach())
    means = torch.stack(losses)
    dist.all_reduce(means)
    return [float(mean) / ranks for mean in means]


def unsharded_losses(make: Callable[[str], nn.Module], ranks: int) -> list[float]:
    """The losses of one process that is given the samples of all ranks."""
    model, losses = _seeded(make), []
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = torch.stack([_loss(model, step, rank) for rank in range(ranks)]).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    return losses


def _seeded(make: Callable[[str], nn.Module]) -> nn.Module:
    torch.manual_seed(5)
    return make("cpu")


def _loss(model: nn.Module, step: int, rank: int) -> torch.Tensor:
    pooled: Any = model(_features(step, rank))
    if not isinstance(pooled, torch.Tensor):
        pooled = torch.cat([pooled["f"].float(), pooled["g"].float()], 1)
    loss: torch.Tensor = (pooled - 1).square().mean()
    return loss


def _features(step: int, rank: int) -> KeyedJaggedTensor:
    random = torch.Generator().manual_seed(100 * step + rank)
    lengths = torch.randint(0, 3, (2 * SAMPLES,), generator=random)
    ids = torch.randint(0, ROWS, (int(lengths.sum()),), generator=random)
    return KeyedJaggedTensor(["f", "g"], ids, lengths=lengths)
