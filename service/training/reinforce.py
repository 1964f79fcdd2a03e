"""REINFORCE over episodes in lock step, with the masks by which their devices were drawn."""

import numpy as np
from torch import Tensor

from service.domain.ports import Floats
from service.training.dreamshard_networks import entropy, masked_log_probabilities

_ALIKE = 1e-9


def advantages(returns: Floats) -> Floats:
    """How much better each episode did than the others of its task, in standard deviations; [K, N] -> [K, N].

    Args:
        returns: of N episodes of each of K tasks. Where they are alike, nothing is to be learnt: all get 0.
    """
    better = returns - returns.mean(axis=1, keepdims=True)
    deviation = returns.std(axis=1, keepdims=True)
    differ = deviation > _ALIKE * np.abs(returns).max(axis=1, keepdims=True)
    found: Floats = np.divide(better, deviation, out=np.zeros_like(better), where=differ)
    return found


def reinforce_loss(
    logits: Tensor, legal: Tensor, devices: Tensor, advantage: Tensor, entropy_weight: float
) -> tuple[Tensor, Tensor]:
    """What is to be made small so that likelier choices are better ones, summed over steps, a mean of episodes.

    Args:
        logits: of D devices at T steps of B episodes; [T, B, D].
        legal: the masks that devices were drawn by, none legal where an episode had ended; [T, B, D].
        devices: that were drawn; any number where an episode had ended; [T, B].
        advantage: of each episode; [B].
        entropy_weight: of the mean entropy's reward.

    Returns:
        The loss, and the mean entropy of a choice, without gradient.
    """
    probabilities = masked_log_probabilities(logits, legal)
    open_ = legal.any(dim=-1)
    drawn = probabilities.gather(-1, devices.clamp(min=0).unsqueeze(-1)).squeeze(-1).masked_fill(~open_, 0.0)
    spread = entropy(probabilities)
    loss = -((drawn * advantage).sum(dim=0) + entropy_weight * spread.sum(dim=0)).mean()
    return loss, (spread.sum() / open_.sum().clamp(min=1)).detach()
