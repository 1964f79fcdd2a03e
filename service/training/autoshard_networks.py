"""AutoShard's cost model and policy for training, the same that ``service.policies.autoshard`` evaluates."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from service.domain.ports import Floats
from service.policies.autoshard import LEAST_SHARE, LSTM_LAYERS, MOST_PIECES
from service.policies.table_features import POLICY_FEATURE_NAMES
from service.training.checks import refuse_sizes
from service.training.policy_networks import TableInput


@dataclass(frozen=True, slots=True)
class AutoShardSizes:
    """Sizes of the networks; by default the paper's.

    Attributes:
        table_hidden: hidden units of both table MLPs.
        embedding: size of both embeddings.
        head_hidden: hidden units of the cost model's head and of the value head.
        extra: what the fraction placed becomes, and what a device's cost and memory become.
        logit_hidden: hidden units of the MLP of a device's logit.

    Raises:
        ValueError: one is below 1.
    """

    table_hidden: int = 128
    embedding: int = 32
    head_hidden: int = 64
    extra: int = 32
    logit_hidden: tuple[int, int, int] = (128, 128, 64)

    def __post_init__(self) -> None:
        refuse_sizes(self)


class CostModel(nn.Module):
    """Predicts the compute of devices, in units of ``AutoShard.cost_unit_ms``.

    What a setting multiplies all costs by is learnt beside it: features do not tell the optimizer, and a policy
    compares costs of one setting only. Serving leaves the factors, whose geometric mean is 1, out.
    """

    def __init__(self, sizes: AutoShardSizes, settings: int) -> None:
        super().__init__()
        self.log_factors = nn.Parameter(torch.zeros(settings))
        self.table = _layers(len(POLICY_FEATURE_NAMES), sizes.table_hidden, sizes.embedding)
        self.head = _layers(sizes.embedding, sizes.head_hidden, 1)

    def forward(self, sums: Tensor) -> Tensor:
        """Compute of devices; sums of embeddings [..., E] -> [...]."""
        costs: Tensor = self.head(sums).squeeze(-1)
        return costs

    def factors(self, settings: Tensor) -> Tensor:
        """What costs are multiplied by in settings, by their number; same shape."""
        return (self.log_factors - self.log_factors.mean())[settings].exp()


class Policy(nn.Module):
    """States, their values, and logits of devices."""

    def __init__(self, sizes: AutoShardSizes) -> None:
        super().__init__()
        state = sizes.embedding + sizes.extra
        self.table = _layers(len(POLICY_FEATURE_NAMES), sizes.table_hidden, sizes.embedding)
        self.placed = nn.Linear(1, sizes.extra)
        self.device = nn.Linear(2, sizes.extra)
        self.lstm = nn.LSTM(state, state, LSTM_LAYERS)
        self.logit = _layers(3 * state, *sizes.logit_hidden, 1)
        self.value = _layers(state, sizes.head_hidden, 1)

    def states(self, pieces: Tensor, placed: Tensor, before: Tensor) -> Tensor:
        """States of N runs of T steps; [T, N, H].

        Args:
            pieces: embedding of each step's piece; [T, N, G].
            placed: fraction already placed; [T, N].
            before: the LSTM before the first step: by layer, the hidden state and the cell; [2, 2, N, H].
        """
        x = torch.cat([pieces, self.placed(placed.unsqueeze(-1))], dim=-1)
        hidden, cell = before.unbind(dim=1)
        states: Tensor = self.lstm(x, (hidden.contiguous(), cell.contiguous()))[0]
        return states

    def values(self, states: Tensor) -> Tensor:
        """What is still to come of states; [..., H] -> [...]."""
        values: Tensor = self.value(states).squeeze(-1)
        return values

    def logits(self, states: Tensor, held: Tensor, costs: Tensor, used: Tensor) -> Tensor:
        """Logits of devices; [M, D].

        Args:
            states: of M steps; [M, H].
            held: sums of embeddings over ``mean_counts``; [M, D, G].
            costs: ``relative_costs``; [M, D].
            used: fraction of each device's memory that is used; [M, D].
        """
        device = torch.cat([held, self.device(torch.stack([costs, used], dim=-1))], dim=-1)
        there = states.unsqueeze(1).expand_as(device)
        logits: Tensor = self.logit(torch.cat([there, device, there * device], dim=-1)).squeeze(-1)
        return logits


class AutoShard(TableInput):
    """Both networks, with the statistics that standardise their input."""

    def __init__(self, sizes: AutoShardSizes, features: Floats, cost_unit_ms: float, settings: int = 1) -> None:
        """Starts the networks, from torch's own seed.

        Args:
            sizes: of the networks.
            features: ``policy_features`` of the tables that are trained on; [T, 21].
            cost_unit_ms: what costs are divided by, so that they are of the order of 1.
            settings: how many there are.

        Raises:
            ValueError: the unit is not positive.
        """
        super().__init__(features, cost_unit_ms)
        self.cost = CostModel(sizes, settings)
        self.policy = Policy(sizes)

    def arrays(self) -> Mapping[str, NDArray[np.float32]]:
        """Arrays of ``service.policies.autoshard.AUTOSHARD_SHAPES``."""
        policy = self.policy
        stacks = {
            "cost.table": self.cost.table,
            "cost.head": self.cost.head,
            "policy.table": policy.table,
            "policy.logit": policy.logit,
        }
        named = {f"{name}.{i}": layer for name, stack in stacks.items() for i, layer in enumerate(_linear(stack))}
        tensors = {
            "feature_mean": self.feature_mean,
            "feature_scale": self.feature_scale,
            "cost_unit_ms": torch.tensor([self.cost_unit_ms]),
        }
        for name, layer in {**named, "policy.placed": policy.placed, "policy.device": policy.device}.items():
            tensors[f"{name}.weight"], tensors[f"{name}.bias"] = layer.weight, layer.bias
        for i in range(LSTM_LAYERS):
            into, hidden, *biases = policy.lstm.all_weights[i]
            tensors[f"policy.lstm.{i}.input"], tensors[f"policy.lstm.{i}.hidden"] = into, hidden
            tensors[f"policy.lstm.{i}.bias"] = biases[0] + biases[1]
        return {name: tensor.detach().cpu().numpy().astype(np.float32) for name, tensor in tensors.items()}


def relative_costs(costs: Tensor, piece: Tensor, devices: Tensor) -> Tensor:
    """``service.policies.autoshard.relative_costs`` of tensors; [M, D], [M] and [M, D] -> [M, D]."""
    mean = (costs * devices).sum(dim=-1) / devices.sum(dim=-1)
    unit = torch.maximum(piece, LEAST_SHARE * mean).clamp(min=LEAST_SHARE)
    return MOST_PIECES * torch.tanh((costs - mean.unsqueeze(-1)) / (MOST_PIECES * unit.unsqueeze(-1)))


def mean_counts(steps: Tensor, devices: Tensor) -> Tensor:
    """``service.policies.autoshard.mean_count`` of tensors; [M] and [M, D] -> [M]."""
    return (steps / devices.sum(dim=-1)).clamp(min=1.0)


def _layers(*sizes: int) -> nn.Sequential:
    """Layers of these sizes with ReLU between them."""
    found: list[nn.Module] = []
    for into, out in itertools.pairwise(sizes):
        found += [nn.Linear(into, out), nn.ReLU()]
    return nn.Sequential(*found[:-1])


def _linear(stack: nn.Sequential) -> list[nn.Linear]:
    return [layer for layer in stack if isinstance(layer, nn.Linear)]
