"""How good a policy's placements are, beside random ones and the heuristics', by predicted cost and balance."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from service.domain.deadline import NEVER
from service.domain.plan import Algorithm
from service.domain.policy import PlacementPolicy
from service.domain.ports import Floats
from service.search.algorithms import Search
from service.search.catalogue import TICKS_PER_MS, Integers
from service.search.greedy import WEIGHTS, greedy_placement, random
from service.search.learned import stand_in
from service.search.policy_placement import policy_placement
from service.search.rewards import balance
from service.search.rules import Flags
from service.search.simulator import simulate
from service.search.workspace import Workspace

POLICY, SAMPLED = "policy", "policy_sampled"
"""Names of the likeliest placement, and of the cheapest of that and some samples."""

Placing = Callable[[Workspace], Integers | None]
"""Places a workspace's pieces, or comes to a dead end."""


@dataclass(frozen=True, slots=True, eq=False)
class Results:
    """What some way of placing made of N workspaces; where it came to a dead end, ``stand_in`` placed the pieces.

    Attributes:
        costs: predicted, milliseconds; [N].
        balance: the least compute of a device over the largest; [N].
        dead: where it came to a dead end; [N].
    """

    costs: Floats
    balance: Floats
    dead: Flags

    def as_dict(self) -> dict[str, float]:
        """For a manifest."""
        means = (round(float(self.costs.mean()), 4), round(float(self.balance.mean()), 4))
        return {"mean_cost_ms": means[0], "mean_balance": means[1], "dead_ends": int(self.dead.sum())}


def heuristic(weight: Algorithm) -> Placing:
    """A greedy heuristic."""
    return lambda workspace: greedy_placement(workspace, WEIGHTS[weight])


def by_search(search: Search, seed: int) -> Placing:
    """A search whose pieces are the workspace's; a dead end where memory alone placed them."""

    def place(workspace: Workspace) -> Integers | None:
        found = search(workspace, seed, NEVER)
        return None if found.by_memory_alone else found.placement

    return place


def by_policy(policy: PlacementPolicy, samples: int) -> Placing:
    """A policy's likeliest devices, or the cheapest of that placement and some samples."""
    return lambda workspace: policy_placement(workspace, policy, samples, 0, NEVER)


def judged(workspaces: Sequence[Workspace], place: Placing) -> Results:
    """What a way of placing makes of workspaces.

    Raises:
        Infeasible: it came to a dead end, and no placement was found without regard to costs either.
    """
    costs, balances, dead = [], [], []
    for workspace in workspaces:
        placement = place(workspace)
        dead.append(placement is None)
        if placement is None:
            placement = stand_in(workspace, NEVER).placement
        found = simulate(workspace, placement[None])
        costs.append(found.plan[0] / TICKS_PER_MS)
        balances.append(balance(found.forward_compute[0] + found.backward_compute[0]))
    return Results(np.array(costs), np.array(balances), np.array(dead))


def evaluated(workspaces: Sequence[Workspace], policy: PlacementPolicy, samples: int) -> dict[str, Results]:
    """A policy beside the baselines, by name.

    Args:
        workspaces: that it was not trained on.
        policy: what is judged.
        samples: placements that are drawn for ``SAMPLED``.
    """
    return {
        POLICY: judged(workspaces, by_policy(policy, 0)),
        SAMPLED: judged(workspaces, by_policy(policy, samples)),
        **baselines(workspaces),
    }


def baselines(workspaces: Sequence[Workspace]) -> dict[str, Results]:
    """Random placement and the heuristics, by name."""
    heuristics = {weight.value: judged(workspaces, heuristic(weight)) for weight in WEIGHTS}
    return {Algorithm.RANDOM.value: judged(workspaces, by_search(random, 0)), **heuristics}


def best_heuristic(results: Mapping[str, Results]) -> str:
    """The heuristic whose mean cost is the lowest."""
    return min((weight.value for weight in WEIGHTS), key=lambda name: float(results[name].costs.mean()))


def by_best_heuristics(results: Mapping[str, Results], way: str) -> float:
    """The mean cost of a way of placing over that of the best heuristic."""
    return float(results[way].costs.mean() / results[best_heuristic(results)].costs.mean())
