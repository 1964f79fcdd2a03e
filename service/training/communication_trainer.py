"""Trains the communication cost model: its physical part by least squares, then the network that corrects it."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import nnls
from torch import Tensor, nn

from service.cost_models.communication import CORRECTION_LIMIT, FEATURE_NAMES, LEAST_MS
from service.training.communication_dataset import Exchanges

Weights = dict[str, NDArray[np.float32]]

_CONSTANT = 1e-3


@dataclass(frozen=True, slots=True)
class CommunicationTraining:
    """Configuration of a training run.

    Attributes:
        seed: seed of the initial weights and of the order of batches.
        epochs: passes over the training part.
        batch_size: exchanges in a step, all between the same number of devices.
        learning_rate: Adam's first rate, decayed along a cosine to 0.
        weight_decay: decoupled weight decay.
        hidden: hidden units of a device.
        mixed: hidden units after the devices have seen each other.
    """

    seed: int = 0
    epochs: int = 100
    batch_size: int = 64
    learning_rate: float = 3e-3
    weight_decay: float = 1e-4
    hidden: int = 16
    mixed: int = 16


class CommunicationNetwork(nn.Module):
    """The network that ``service.cost_models.communication`` evaluates; predicts logarithms of both costs."""

    base: Tensor
    feature_mean: Tensor
    feature_scale: Tensor
    feature_low: Tensor
    feature_high: Tensor

    def __init__(self, config: CommunicationTraining, base: Tensor, features: Tensor) -> None:
        """Takes the physical part [2, Q] and all features of the training part [*, F]."""
        super().__init__()
        deviation = features.std(dim=0)
        # A feature that never varied has learnt no weight: left as it is, it cannot explode when it varies in service.
        scale = torch.where(deviation < _CONSTANT, torch.ones_like(deviation), deviation)
        self.register_buffer("base", base)
        self.register_buffer("feature_mean", features.mean(dim=0))
        self.register_buffer("feature_scale", scale)
        self.register_buffer("feature_low", features.min(dim=0).values)
        self.register_buffer("feature_high", features.max(dim=0).values)
        self.device = nn.Linear(len(FEATURE_NAMES), config.hidden)
        self.own = nn.Linear(config.hidden, config.mixed)
        self.mean = nn.Linear(config.hidden, config.mixed, bias=False)
        self.most = nn.Linear(config.hidden, config.mixed, bias=False)
        self.out = nn.Linear(config.mixed, len(base))
        # Starts as the physical part alone.
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, features: Tensor, quantities: Tensor) -> Tensor:
        """Log costs [N, D, 2] of exchanges with features of each cost [N, D, 2, F] and quantities [N, D, Q]."""
        standard = (features.clamp(self.feature_low, self.feature_high) - self.feature_mean) / self.feature_scale
        hidden = torch.relu(self.device(standard))
        others = self.mean(hidden.mean(dim=1, keepdim=True)) + self.most(hidden.amax(dim=1, keepdim=True))
        raw = self.out(torch.relu(self.own(hidden) + others)).diagonal(dim1=-2, dim2=-1)
        physical = (quantities @ self.base.T).clamp(min=LEAST_MS).log()
        return physical + CORRECTION_LIMIT * torch.tanh(raw / CORRECTION_LIMIT)


def train_communication(
    train: Sequence[Exchanges],
    validation: Sequence[Exchanges],
    config: CommunicationTraining,
    report: Callable[[int, float], None] = lambda epoch, error: None,
) -> Weights:
    """Trains one model on exchanges between any numbers of devices.

    The loss is the absolute error of logarithms: relative errors count, and outliers of a noisy machine do not rule.
    Every exchange weighs the same, whatever its number of devices. Times of ``LEAST_MS`` or less are left out.

    Args:
        train: groups to learn from.
        validation: groups that choose the epoch; never those that are reported on.
        config: sizes and hyper-parameters.
        report: called after every epoch with its number and the validation loss.

    Returns:
        Arrays of ``service.cost_models.communication.WEIGHT_SHAPES``.
    """
    torch.manual_seed(config.seed)
    base = _physical_part(train)
    groups, judged = [_tensors(group, base) for group in train], [_tensors(group, base) for group in validation]
    network = CommunicationNetwork(config, base, torch.cat([group[0].flatten(0, 2) for group in groups]))
    optimizer = torch.optim.AdamW(network.parameters(), config.learning_rate, weight_decay=config.weight_decay)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, config.epochs)
    best, best_state = float("inf"), copy.deepcopy(network.state_dict())
    for epoch in range(config.epochs):
        for group, chosen in _batches(groups, config.batch_size):
            # Over the size of a whole batch, so that an exchange weighs the same in a smaller one.
            loss = _errors(network, tuple(tensor[chosen] for tensor in group)).sum() / config.batch_size
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
        schedule.step()
        with torch.no_grad():
            error = float(torch.cat([_errors(network, group) for group in judged]).mean())
        report(epoch, error)
        if error < best:
            best, best_state = error, copy.deepcopy(network.state_dict())
    return {name: tensor.numpy().astype(np.float32) for name, tensor in best_state.items()}


def _physical_part(groups: Sequence[Exchanges]) -> Tensor:
    """Coefficients of ``exchange_quantities`` for both costs, none negative, of least relative error; [2, Q]."""
    quantities = np.concatenate([group.quantities.reshape(-1, group.quantities.shape[-1]) for group in groups])
    costs = np.concatenate([group.costs.reshape(-1, 2) for group in groups])
    timed = np.concatenate([group.timed.reshape(-1, 2) for group in groups])
    scale = np.maximum(quantities.max(axis=0), 1.0)
    relative = [quantities[kept] / scale / cost[kept, None] for cost, kept in zip(costs.T, timed.T, strict=True)]
    return torch.from_numpy(np.stack([nnls(rows, np.ones(len(rows)))[0] / scale for rows in relative])).float()


def _tensors(group: Exchanges, base: Tensor) -> tuple[Tensor, ...]:
    """Features, quantities, logarithms of the costs, and which of them count."""
    arrays = (group.features(base.double().numpy()), group.quantities, np.log(group.costs), group.timed)
    return tuple(torch.from_numpy(array).float() for array in arrays)


def _batches(groups: Sequence[tuple[Tensor, ...]], size: int) -> list[tuple[tuple[Tensor, ...], Tensor]]:
    """Batches of all groups in random order, each with the exchanges that it takes of its group."""
    batches = [(group, chosen) for group in groups for chosen in torch.split(torch.randperm(len(group[0])), size)]
    return [batches[i] for i in torch.randperm(len(batches)).tolist()]


def _errors(network: CommunicationNetwork, group: tuple[Tensor, ...]) -> Tensor:
    """Absolute error of the logarithms of each exchange, the mean over its devices and both costs; [N]."""
    features, quantities, log_costs, timed = group
    errors: Tensor = (network(features, quantities) - log_costs).abs() * timed
    return errors.sum(dim=(1, 2)) / timed.sum(dim=(1, 2)).clamp(min=1)
