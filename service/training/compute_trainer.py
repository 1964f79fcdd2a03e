"""Trains the compute cost model's network."""

import copy
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from service.cost_models.compute import CORRECTION_LIMIT, EMBEDDING_LIMIT, EMPTY
from service.cost_models.features import FEATURE_NAMES
from service.training.compute_dataset import ComputeDataset

Weights = dict[str, NDArray[np.float32]]

_CONSTANT = 1e-3
_TYPICAL_TABLES = 2.0  # log of about 7, the mean number of tables in a combination.


@dataclass(frozen=True, slots=True)
class ComputeTraining:
    """Configuration of a training run.

    Attributes:
        seed: seed of the initial weights and of the order of batches.
        epochs: passes over the training part.
        batch_size: combinations in a step.
        learning_rate: Adam's first rate, decayed along a cosine to 0.
        weight_decay: decoupled weight decay.
        table_hidden: hidden units of the table MLP (NeuroShard: 128).
        embedding: size of the summed embedding (NeuroShard: 32).
        head_hidden: hidden units of the head (NeuroShard: 64).
    """

    seed: int = 0
    epochs: int = 150
    batch_size: int = 128
    learning_rate: float = 2e-3
    weight_decay: float = 1e-4
    table_hidden: int = 128
    embedding: int = 32
    head_hidden: int = 64


class ComputeNetwork(nn.Module):
    """The network that ``service.cost_models.compute`` evaluates; predicts logarithms of K costs."""

    feature_mean: Tensor
    feature_scale: Tensor

    def __init__(self, config: ComputeTraining, mean: Tensor, scale: Tensor, log_costs: Tensor) -> None:
        super().__init__()
        self.register_buffer("feature_mean", mean)
        self.register_buffer("feature_scale", scale)
        costs = len(log_costs)
        embed, correct = nn.Linear(config.table_hidden, config.embedding), nn.Linear(config.head_hidden, costs)
        self.table = nn.Sequential(nn.Linear(len(FEATURE_NAMES), config.table_hidden), nn.ReLU(), embed)
        self.head = nn.Sequential(nn.Linear(config.embedding, config.head_hidden), nn.ReLU(), correct)
        # Starts as a plain sum of tables of typical cost, so that the head only has to learn what fusing changes.
        nn.init.zeros_(correct.weight)
        nn.init.zeros_(correct.bias)
        with torch.no_grad():
            embed.bias[:costs] = log_costs - _TYPICAL_TABLES

    def forward(self, features: Tensor, members: Tensor) -> Tensor:
        """Log costs [N, K] of combinations [N, M] over features [U + 1, F], whose last row is no table."""
        standard = (features - self.feature_mean) / self.feature_scale
        embeddings = torch.exp(self.table(standard).clamp(-EMBEDDING_LIMIT, EMBEDDING_LIMIT))
        present = (members < len(features) - 1).unsqueeze(-1)
        log_sums = torch.log((embeddings[members] * present).sum(dim=1).clamp(min=EMPTY))
        raw = self.head(log_sums)
        return log_sums[:, : raw.shape[1]] + CORRECTION_LIMIT * torch.tanh(raw / CORRECTION_LIMIT)


def train_compute(
    train: ComputeDataset,
    validation: ComputeDataset,
    config: ComputeTraining,
    report: Callable[[int, float], None] = lambda epoch, mape: None,
) -> Weights:
    """Trains on relative errors and keeps the epoch that is best on the validation part.

    The loss is Huber's on logarithms, so that relative error counts and outliers of a noisy machine do not rule.

    Args:
        train: combinations to learn from.
        validation: combinations that choose the epoch; never those that are reported on.
        config: sizes and hyper-parameters.
        report: called after every epoch with its number and the validation MAPE of the total.

    Returns:
        Arrays of ``service.cost_models.compute.WEIGHT_SHAPES``.
    """
    torch.manual_seed(config.seed)
    network = _network(train, config)
    optimizer = torch.optim.AdamW(network.parameters(), config.learning_rate, weight_decay=config.weight_decay)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, config.epochs)
    features, members, log_costs = _tensors(train)
    best, best_state = float("inf"), copy.deepcopy(network.state_dict())
    for epoch in range(config.epochs):
        for batch in torch.split(torch.randperm(len(train)), config.batch_size):
            used, local = _compact(members[batch], len(features) - 1)
            loss = nn.functional.smooth_l1_loss(network(features[used], local), log_costs[batch], beta=0.1)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
        schedule.step()
        error = _mape(network, validation)
        report(epoch, error)
        if error < best:
            best, best_state = error, copy.deepcopy(network.state_dict())
    return {name: tensor.numpy().astype(np.float32) for name, tensor in best_state.items()}


def _network(train: ComputeDataset, config: ComputeTraining) -> ComputeNetwork:
    seen = train.features[np.unique(train.members[train.members < len(train.features) - 1])]
    mean = torch.from_numpy(seen.mean(axis=0))
    deviation = torch.from_numpy(seen.std(axis=0))
    # A feature that never varied has learnt no weight: left as it is, it cannot explode when it varies in service.
    scale = torch.where(deviation < _CONSTANT, torch.ones_like(deviation), deviation)
    log_costs = torch.from_numpy(np.log(train.costs).mean(axis=0)).float()
    return ComputeNetwork(config, mean, scale, log_costs)


def _tensors(data: ComputeDataset) -> tuple[Tensor, Tensor, Tensor]:
    return (
        torch.from_numpy(data.features),
        torch.from_numpy(data.members),
        torch.from_numpy(np.log(data.costs)).float(),
    )


def _compact(members: Tensor, none: int) -> tuple[Tensor, Tensor]:
    """The feature rows that a batch uses, the row of no table last, and the members in terms of those."""
    used, local = torch.unique(members, return_inverse=True)
    return (used, local) if used[-1] == none else (torch.cat([used, torch.tensor([none])]), local)


def _mape(network: ComputeNetwork, data: ComputeDataset) -> float:
    features, members, _ = _tensors(data)
    with torch.no_grad():
        predicted = network(features, members).exp().sum(dim=1).double().numpy()
    measured = data.costs.sum(axis=1)
    return float(np.abs(predicted / measured - 1.0).mean())
