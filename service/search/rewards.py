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
    """The least compute of a device over the largest, 1 where all are the same (AutoShard); [N, S] -> [N]."""
    costs = simulate(workspace, placements)
    compute = costs.forward_compute + costs.backward_compute
    most = compute.max(axis=1)
    balance: Floats = np.divide(compute.min(axis=1), most, out=np.ones(len(most)), where=most > 0)
    return balance
