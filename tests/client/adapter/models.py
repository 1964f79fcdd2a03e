"""Small models of TorchRec, batches for them, and what training them unsharded comes to."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import nn
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import Topology
from torchrec.modules.embedding_configs import EmbeddingBagConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from shardwright_client import Shard

LEARNING_RATE = 0.1
EPSILON = 1e-8
STEPS = 4
ROWS = {"cat": 50, "dog": 30, "cow": 7}
FEATURES = ("f_cat", "f_dog_1", "f_dog_2", "f_cow", "g_cat")


def collection(*tables: EmbeddingBagConfig, device: str = "cpu", **options: Any) -> EmbeddingBagCollection:
    return EmbeddingBagCollection(tables=list(tables), device=torch.device(device), **options)


def config(name: str, features: Sequence[str], dim: int = 16, rows: int = 50, **changes: Any) -> EmbeddingBagConfig:
    return EmbeddingBagConfig(
        name=name, num_embeddings=rows, embedding_dim=dim, feature_names=list(features), **changes
    )


class Model(nn.Module):
    """Two collections at different depths that both have a table ``cat``, below a dense layer."""

    def __init__(self, device: str = "cpu") -> None:
        super().__init__()
        self.first = collection(
            config("cat", ["f_cat"], 32, ROWS["cat"]),
            config("dog", ["f_dog_1", "f_dog_2"], 16, ROWS["dog"]),
            config("cow", ["f_cow"], 24, ROWS["cow"], pooling=PoolingType.MEAN),
            device=device,
        )
        self.second = nn.ModuleDict({"inner": collection(config("cat", ["g_cat"], 8, ROWS["cat"]), device=device)})
        self.top = nn.Linear(32 + 2 * 16 + 24 + 8, 1)

    def forward(self, features: KeyedJaggedTensor) -> torch.Tensor:
        first, second = self.first(features), self.second["inner"](features)
        # By feature: how a sharded collection orders them depends on the plan.
        # What is looked up last is waited for first.
        pooled = [second["g_cat"], *(first[feature] for feature in FEATURES[:4])]
        answer: torch.Tensor = self.top(torch.cat(pooled, dim=1)).squeeze(1)
        return answer


TABLE_PATHS = {
    "first/cat": "first.embedding_bags.cat.weight",
    "dog": "first.embedding_bags.dog.weight",
    "cow": "first.embedding_bags.cow.weight",
    "second.inner/cat": "second.inner.embedding_bags.cat.weight",
}
"""Where the weights of Model's tables are, by their names in requests."""


def seeded_model() -> Model:
    torch.manual_seed(5)
    return Model()


def sharder(optimizer: EmbOptimType = EmbOptimType.EXACT_SGD) -> EmbeddingBagCollectionSharder:
    return EmbeddingBagCollectionSharder(
        fused_params={"optimizer": optimizer, "learning_rate": LEARNING_RATE, "eps": EPSILON}
    )


def topology(ranks: int, device: str = "cpu", **capacities: int) -> Topology:
    return Topology(ranks, device, **capacities)


@dataclass(frozen=True)
class Batch:
    features: KeyedJaggedTensor
    labels: torch.Tensor


def batch(step: int, rank: int, size: int = 6) -> Batch:
    """What a rank is given in a step; some samples look nothing up."""
    random = torch.Generator().manual_seed(100 * step + rank)
    lengths = torch.randint(0, 4, (len(FEATURES) * size,), generator=random)
    rows = [ROWS[feature.split("_")[1]] for feature in FEATURES]
    most = torch.tensor(rows).repeat_interleave(lengths.view(len(FEATURES), size).sum(1))
    ids = (torch.rand(int(lengths.sum()), generator=random) * most).long()
    features = KeyedJaggedTensor.from_lengths_sync(list(FEATURES), ids, lengths)
    return Batch(features, torch.rand(size, generator=random))


def loss_of(model: nn.Module, given: Batch) -> torch.Tensor:
    return nn.functional.mse_loss(model(given.features), given.labels)


def trained_unsharded(
    ranks: int, optimizer: EmbOptimType, shards: Sequence[Shard]
) -> tuple[list[float], Mapping[str, torch.Tensor]]:
    """Losses and weights of one process that is given the batches of all ranks.

    Row-wise Adagrad keeps a state of each shard's columns, as each shard's operator does.
    """
    model = seeded_model()
    states: dict[Shard, torch.Tensor] = {}
    losses = []
    for step in range(STEPS):
        model.zero_grad()
        loss = torch.stack([loss_of(model, batch(step, rank)) for rank in range(ranks)]).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        losses.append(loss.item())
        with torch.no_grad():
            for parameter in model.top.parameters():
                parameter.sub_(LEARNING_RATE * _gradient(parameter))
            for shard, weights, gradient in _shard_weights(model, shards):
                scale = torch.ones(len(weights), 1)
                if optimizer is EmbOptimType.EXACT_ROWWISE_ADAGRAD:
                    state = states.setdefault(shard, torch.zeros(len(weights), 1))
                    state += gradient.square().mean(1, keepdim=True)
                    scale = state.sqrt() + EPSILON
                weights.sub_(LEARNING_RATE * gradient / scale)
    return losses, model.state_dict()


def _shard_weights(model: Model, shards: Sequence[Shard]) -> Iterator[tuple[Shard, torch.Tensor, torch.Tensor]]:
    parameters = dict(model.named_parameters())
    for shard in shards:
        parameter, columns = parameters[TABLE_PATHS[shard.table]], slice(*shard.columns)
        yield shard, parameter[:, columns], _gradient(parameter)[:, columns]


def _gradient(parameter: nn.Parameter) -> torch.Tensor:
    assert parameter.grad is not None
    return parameter.grad
