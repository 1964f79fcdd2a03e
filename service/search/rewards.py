"""What a placement is worth to a policy that learns."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from service.domain.ports import Floats
from service.search.catalogue import TICKS_PER_MS, Integers
from service.search.simulator import simulate
from service.search.workspace import Workspace


@dataclass(frozen=True, slots=True)
class Reward:
    """What an episode is worth at its end; steps before the last are worth 0.

    Attributes:
        placed: values of N placements of a workspace's S pieces, [N, S] -> [N].
        dead_end: value of an episode in which some piece found no device: one that no placement is below.
    """

    placed: Callable[[Workspace, Integers], Floats]
    dead_end: float


def minus_plan_cost(workspace: Workspace, placements: Integers) -> Floats:
    """Minus the predicted cost of a step, milliseconds (DreamShard); [N, S] -> [N]."""
    costs: Floats = -simulate(workspace, placements).plan / TICKS_PER_MS
    return costs


def compute_balance(workspace: Workspace, placements: Integers) -> Floats:
    """The least predicted compute of a device over the largest (AutoShard); [N, S] -> [N]."""
    costs = simulate(workspace, placements)
    return balance((costs.forward_compute + costs.backward_compute).astype(np.float64))


def balance(costs: Floats) -> Floats:
    """The least cost of a device over the largest, 1 where all are the same; [..., D] -> [...]."""
    most = costs.max(axis=-1)
    found: Floats = np.divide(costs.min(axis=-1), most, out=np.ones(most.shape), where=most > 0)
    return found


def overflow(workspace: Workspace, placement: Integers) -> float:
    """What a dead end is worth to AutoShard: (capacity - memory) / capacity of a full device that takes what is left.

    It is negative, so below any balance, and at least -1, so that a rare dead end does not drown what balances teach;
    capacity is the mean over the devices.

    Args:
        workspace: S pieces.
        placement: device of each piece, negative where it found none; [S].
    """
    left = workspace.memory_bytes[placement < 0].sum()
    return max(-1.0, float(-left / workspace.limits.mean()))
