"""Trains the compute cost model's network."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from service.cost_models.compute import EMBEDDING_LIMIT, FUSION_LIMIT, LOG_FLOOR, LOG_SCALE
from service.cost_models.features import FREE_NAMES, GROWING, WIDTH, WIDTH_NAMES, WORK
from service.domain.tables import DataType, Optimizer
from service.training.compute_dataset import ComputeDataset

Weights = dict[str, NDArray[np.float32]]

_CONSTANT = 1e-3
_LEAST_QUANTILE = 0.01
_TRIED_FOR_SCALE = 512
_SPREAD = 0.5
_FIRST_PART = -2.0
_FIRST_EMBEDDING = -1.3
_FACTOR_OFF = -50.0
_OPTIMIZERS = {optimizer.value for optimizer in Optimizer}
_PRECISIONS = {data_type.value for data_type in DataType}


@dataclass(frozen=True, slots=True)
class ComputeTraining:
    """Configuration of a training run.

    Attributes:
        seed: seed of the initial weights and of the order of batches.
        epochs: passes over the training part.
        batch_size: combinations in a step.
        learning_rate: the highest, of Adam; it rises and falls once over the run.
        clip: largest norm of a gradient.
        table_hidden: hidden units of the table MLP.
        embedding: size of the summed embedding (NeuroShard: 32).
        head_hidden: hidden units of the head.
        fusion: False keeps the head's factor at 1, so that the model is subadditive to the letter.
        monotone: False lifts every constraint: for comparison alone, no such version is served.
    """

    seed: int = 0
    epochs: int = 200
    batch_size: int = 64
    learning_rate: float = 0.08
    clip: float = 1.0
    table_hidden: int = 96
    embedding: int = 40
    head_hidden: int = 33
    fusion: bool = True
    monotone: bool = True


class ComputeNetwork(nn.Module):
    """The network that ``service.cost_models.compute`` evaluates; predicts logarithms of K costs."""

    feature_mean: Tensor
    feature_scale: Tensor
    varies: Tensor
    sees: Tensor
    joins: Tensor

    def __init__(self, config: ComputeTraining, train: ComputeDataset) -> None:
        super().__init__()
        self.config = config
        work = train.features[np.unique(train.members[train.members < len(train.features) - 1]), WORK]
        deviation = work.std(axis=0)
        self.register_buffer("feature_mean", torch.from_numpy(work.mean(axis=0)))
        self.register_buffer("feature_scale", torch.from_numpy(np.where(deviation < _CONSTANT, 1.0, deviation)).float())
        # What never varied has learnt no weight, and none but 0 is right.
        self.register_buffer("varies", torch.from_numpy(deviation >= _CONSTANT).float())
        costs, parts = train.costs.shape[1], config.embedding * len(WIDTH_NAMES)
        self.free = nn.Parameter(torch.randn(config.table_hidden, WORK.stop - GROWING.stop) / WORK.stop**0.5)
        self.growing = nn.ParameterList(
            [
                _raw(config.table_hidden, GROWING.stop, _shared_out(GROWING.stop), _SPREAD),
                _raw(parts, config.table_hidden, _FIRST_EMBEDDING, _SPREAD / 3),
                _raw(config.head_hidden, config.embedding, _shared_out(config.embedding), _SPREAD),
                _raw(costs, config.head_hidden, _shared_out(config.head_hidden), _SPREAD),
            ]
        )
        # Half of the embedding sees the precision, half the optimizer: gathering rows and updating them add up, so
        # that a pair which was never measured together is priced by what was measured of each.
        half = torch.arange(config.table_hidden) % 2
        by_optimizer = torch.tensor([name in _OPTIMIZERS for name in FREE_NAMES])
        by_precision = torch.tensor([name in _PRECISIONS for name in FREE_NAMES])
        hidden_from = torch.where(half[:, None] == 0, by_optimizer, by_precision)
        self.register_buffer("sees", (~hidden_from).float())
        part = (torch.arange(config.embedding) % 2).repeat_interleave(len(WIDTH_NAMES))
        self.register_buffer("joins", (part[:, None] == half).float())
        if not config.monotone:
            self.growing = nn.ParameterList(nn.Parameter(nn.functional.softplus(raw.detach())) for raw in self.growing)
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(len(weights))) for weights in self.growing)
        self.additive = nn.Parameter(torch.randn(costs, config.embedding) * _SPREAD + _FIRST_PART)
        least = np.log(np.quantile(train.costs, _LEAST_QUANTILE, axis=0))
        self.constant = nn.Parameter(torch.from_numpy(least).float())
        self.scale = nn.Parameter(torch.zeros(costs))

    def not_negative(self, weights: Tensor) -> Tensor:
        """The weights as the constraints have them."""
        return nn.functional.softplus(weights) if self.config.monotone else weights

    def embed(self, features: Tensor) -> Tensor:
        """Embeddings of T rows of features; [T, F] -> [T, H]."""
        x = (features[:, WORK] - self.feature_mean) / self.feature_scale * self.varies
        first = x[:, GROWING] @ self.not_negative(self.growing[0]).T + x[:, GROWING.stop :] @ (self.free * self.sees).T
        hidden = _activation(first + self.biases[0])
        log_parts = hidden @ (self.not_negative(self.growing[1]) * self.joins).T + self.biases[1]
        parts = log_parts.clamp(-EMBEDDING_LIMIT, EMBEDDING_LIMIT).exp()
        embeddings: Tensor = (parts.view(len(features), -1, len(WIDTH_NAMES)) * features[:, None, WIDTH]).sum(dim=2)
        return embeddings

    def forward(self, features: Tensor, members: Tensor) -> Tensor:
        """Log costs [N, K] of combinations [N, M] over features [U + 1, F], whose last row is no table."""
        present = (members < len(features) - 1).unsqueeze(-1)
        z = (self.embed(features)[members] * present).sum(dim=1)
        additive = z @ (nn.functional.softplus(self.additive) * self.scale.exp()[:, None]).T
        log_cost: Tensor = torch.log(additive + self.constant.exp())
        if not self.config.fusion:
            return log_cost
        first = (z + LOG_FLOOR).log() / LOG_SCALE @ self.not_negative(self.growing[2]).T + self.biases[2]
        raw = _activation(first) @ self.not_negative(self.growing[3]).T + self.biases[3]
        together: Tensor = log_cost + np.log(FUSION_LIMIT) * torch.sigmoid(raw)
        return together

    def start_from(self, features: Tensor, members: Tensor, log_costs: Tensor) -> None:
        """Scales the first predictions to the mean of what was measured."""
        with torch.no_grad():
            self.scale.add_((log_costs - self(features, members)).mean(dim=0))

    def weights(self) -> Weights:
        """Arrays of ``service.cost_models.compute.WEIGHT_SHAPES``."""
        growing = [self.not_negative(weights) for weights in self.growing]
        last = (growing[3], self.biases[3])
        if not self.config.fusion:
            last = (torch.zeros_like(growing[3]), torch.full_like(self.biases[3], _FACTOR_OFF))
        arrays = {
            "feature_mean": self.feature_mean,
            "feature_scale": self.feature_scale,
            "table.0.growing": growing[0] * self.varies[GROWING],
            "table.0.free": self.free * self.sees * self.varies[GROWING.stop :],
            "table.0.bias": self.biases[0],
            "table.1.growing": growing[1] * self.joins,
            "table.1.bias": self.biases[1],
            "constant": self.constant.exp(),
            "additive": nn.functional.softplus(self.additive) * self.scale.exp()[:, None],
            "head.0.growing": growing[2],
            "head.0.bias": self.biases[2],
            "head.1.growing": last[0],
            "head.1.bias": last[1],
        }
        return {name: array.detach().numpy().astype(np.float32) for name, array in arrays.items()}


def train_compute(
    train: ComputeDataset, config: ComputeTraining, report: Callable[[int], None] = lambda epoch: None
) -> Weights:
    """Trains on relative errors; arrays of ``service.cost_models.compute.WEIGHT_SHAPES``.

    Args:
        train: combinations to learn from.
        config: sizes and hyper-parameters.
        report: called after every epoch with its number.
    """
    return train_network(train, config, report).weights()


def train_network(
    train: ComputeDataset, config: ComputeTraining, report: Callable[[int], None] = lambda epoch: None
) -> ComputeNetwork:
    """Trains the network itself; see ``train_compute``.

    The loss is Huber's on logarithms, so that relative error counts and outliers of a noisy machine do not rule.
    """
    torch.manual_seed(config.seed)
    network = ComputeNetwork(config, train)
    features, members = torch.from_numpy(train.features), torch.from_numpy(train.members)
    log_costs = torch.from_numpy(np.log(train.costs)).float()
    tried = torch.randperm(len(train))[:_TRIED_FOR_SCALE]
    network.start_from(features, members[tried], log_costs[tried])
    optimizer = torch.optim.Adam(network.parameters(), config.learning_rate)
    steps = config.epochs * -(-len(train) // config.batch_size)
    # In a run of few steps the schedule's rise has none, which it divides by.
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, config.learning_rate, max(steps, 10), pct_start=0.2)
    for epoch in range(config.epochs):
        for batch in torch.split(torch.randperm(len(train)), config.batch_size):
            used, local = _compact(members[batch], len(features) - 1)
            loss = nn.functional.smooth_l1_loss(network(features[used], local), log_costs[batch], beta=0.1)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            nn.utils.clip_grad_norm_(network.parameters(), config.clip)
            optimizer.step()
            schedule.step()
        report(epoch)
    return network


def _raw(out: int, size: int, middle: float, spread: float) -> nn.Parameter:
    """First weights [out, size], before ``not_negative``."""
    return nn.Parameter(torch.randn(out, size) * spread + middle)


def _shared_out(size: int) -> float:
    """What softplus makes ``1 / size`` of."""
    return float(np.log(np.expm1(1.0 / size)))


def _activation(x: Tensor) -> Tensor:
    """``service.cost_models.compute.activation`` of tensors."""
    third = x.shape[-1] // 3
    convex, concave, bounded = x[..., :third], x[..., third : 2 * third], x[..., 2 * third :]
    return torch.cat([nn.functional.elu(convex), -nn.functional.elu(-concave), bounded.tanh()], dim=-1)


def _compact(members: Tensor, none: int) -> tuple[Tensor, Tensor]:
    """The feature rows that a batch uses, the row of no table last, and the members in terms of those."""
    used, local = torch.unique(members, return_inverse=True)
    return (used, local) if used[-1] == none else (torch.cat([used, torch.tensor([none])]), local)
