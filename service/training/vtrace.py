"""V-trace (IMPALA, ICML 2018): what is learnt from steps that a slightly older policy has made."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Targets:
    """What T steps of B unrolls teach.

    Attributes:
        returns: what values are drawn to; [T, B].
        advantages: weights of the actions' log probabilities, already weighted by importance; [T, B].
    """

    returns: Tensor
    advantages: Tensor


@torch.no_grad()
def vtrace(
    log_ratios: Tensor,
    discounts: Tensor,
    rewards: Tensor,
    values: Tensor,
    bootstrap: Tensor,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
) -> Targets:
    """V-trace's returns and advantages, equations (1) and (4) of the paper with lambda 1.

    Args:
        log_ratios: logarithm of the action's probability now over that when it was chosen; [T, B].
        discounts: of what follows each step, 0 where an episode ended with it; [T, B].
        rewards: of each step; [T, B].
        values: of the states before each step; [T, B].
        bootstrap: of the states after the last step; [B].
        rho_bar: largest weight of a step's surprise.
        c_bar: largest weight that is handed on to earlier steps.
    """
    ratios = log_ratios.exp()
    rho, c = ratios.clamp(max=rho_bar), ratios.clamp(max=c_bar)
    following = torch.cat([values[1:], bootstrap.unsqueeze(0)])
    surprises = rho * (rewards + discounts * following - values)
    # How far each return is from its state's value, from the last step on.
    beyond, corrections = torch.zeros_like(bootstrap), []
    for step in reversed(range(len(values))):
        beyond = surprises[step] + discounts[step] * c[step] * beyond
        corrections.append(beyond)
    returns = values + torch.stack(corrections[::-1])
    next_returns = torch.cat([returns[1:], bootstrap.unsqueeze(0)])
    return Targets(returns, rho * (rewards + discounts * next_returns - values))
