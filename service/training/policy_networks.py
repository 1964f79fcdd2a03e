"""What the policies' networks have alike in training: standardised input, sums over devices, masked choices."""

import numpy as np
import torch
from torch import Tensor, nn

from service.domain.ports import Floats

_CONSTANT = 1e-6


class TableInput(nn.Module):
    """Networks of tables, with the statistics that standardise their input.

    Attributes:
        cost_unit_ms: what costs are divided by, milliseconds.
    """

    feature_mean: Tensor
    feature_scale: Tensor

    def __init__(self, features: Floats, cost_unit_ms: float) -> None:
        """Takes the statistics.

        Args:
            features: ``policy_features`` of the tables that are trained on; [T, 21].
            cost_unit_ms: what costs are divided by, so that they are of the order of 1.

        Raises:
            ValueError: the unit is not positive.
        """
        super().__init__()
        if not cost_unit_ms > 0:
            raise ValueError(f"cost_unit_ms is {cost_unit_ms}, it must be positive")
        self.cost_unit_ms = cost_unit_ms
        deviation = features.std(axis=0)
        # A feature that is the same in all tables says nothing; divided by its deviation it would shout elsewhere.
        scale = np.where(deviation < _CONSTANT, 1.0, deviation)
        self.register_buffer("feature_mean", torch.from_numpy(features.mean(axis=0)).float())
        self.register_buffer("feature_scale", torch.from_numpy(scale).float())

    def standardised(self, features: Tensor) -> Tensor:
        """What both table MLPs take; ``policy_features`` [..., 21] -> [..., 21]."""
        return (features - self.feature_mean) / self.feature_scale


def sums_before(embeddings: Tensor, pieces: Tensor, devices: Tensor, count: int) -> Tensor:
    """What each device held before each step of B replayed episodes; gradients flow into the embeddings.

    Args:
        embeddings: of the pieces of each episode, by their position; [B, S, E].
        pieces: position of the piece placed at each step, negative where the episode had ended; [T, B].
        devices: where it was placed; [T, B].
        count: number of devices, D.

    Returns:
        [T + 1, B, D, E]; the last is the end.
    """
    rows = torch.arange(len(embeddings), device=embeddings.device)
    placed = embeddings[rows, pieces.clamp(min=0)] * (pieces >= 0).unsqueeze(-1)
    on = nn.functional.one_hot(devices.clamp(min=0), count).to(embeddings.dtype)
    added = on.unsqueeze(-1) * placed.unsqueeze(2)
    held = [added.new_zeros(added.shape[1:])]
    # Several times as quick as ``cumsum`` over the first axis, backward too.
    for step in added:
        held.append(held[-1] + step)
    return torch.stack(held)


def masked_log_probabilities(logits: Tensor, legal: Tensor) -> Tensor:
    """Logarithms of the softmax over the legal devices, ``service.policies.networks.log_probabilities``'s twin.

    Devices that are not legal get no gradient, nor do rows without a legal one.
    """
    some = legal.any(dim=-1, keepdim=True)
    # A row without a legal device goes through the softmax unmasked, so that nothing is undefined on the way.
    masked = logits.masked_fill(~legal & some, -torch.inf)
    return masked.log_softmax(dim=-1).masked_fill(~legal, -torch.inf)


def entropy(log_probabilities: Tensor) -> Tensor:
    """Entropy of choices by ``masked_log_probabilities``, 0 where no device is legal; [..., D] -> [...]."""
    # 0 log 0 is 0, and minus infinity times 0 would be no number.
    finite = log_probabilities.masked_fill(log_probabilities == -torch.inf, 0.0)
    return -(log_probabilities.exp() * finite).sum(dim=-1)
