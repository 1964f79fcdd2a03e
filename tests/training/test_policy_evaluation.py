"""Policies beside the baselines: costs by the simulator, dead ends counted and answered as they are in service."""

import numpy as np
import pytest

from service.domain.plan import Algorithm, Problem
from service.domain.tables import Table
from service.search.greedy import WEIGHTS, greedy_placement
from service.search.simulator import price
from service.search.workspace import Workspace
from service.training.policy_evaluation import POLICY, SAMPLED, best_heuristic, evaluated, judged
from tests.fakes import fake_models
from tests.policies.random_networks import random_networks
from tests.search import oracle
from tests.search.posed import posed

MODELS = fake_models()


def _space(problem: Problem) -> Workspace:
    return Workspace.of(problem, oracle.whole(problem), MODELS)


SPACES = [
    _space(posed(*[Table(f"t{i}", 1_000 * (i + 1), 4 * (1 + i % 5), float(1 + i * 7 % 9)) for i in range(count)]))
    for count in (3, 6, 9)
]


def test_costs_and_balance_are_those_of_the_placements() -> None:
    placements = [np.arange(len(space.pieces)) % 2 for space in SPACES]
    given = {id(space): placement for space, placement in zip(SPACES, placements, strict=True)}
    found = judged(SPACES, lambda space: given[id(space)])
    for n, (space, placement) in enumerate(zip(SPACES, placements, strict=True)):
        held = [[table for table, at in zip(space.problem.tables, placement, strict=True) if at == d] for d in (0, 1)]
        devices = price(space.problem, MODELS, held)
        compute = [device.forward_compute + device.backward_compute for device in devices]
        assert found.costs[n] == pytest.approx(max(device.total for device in devices))
        assert found.balance[n] == pytest.approx(min(compute) / max(compute))
    assert not found.dead.any()
    assert found.as_dict() == {
        "mean_cost_ms": round(float(found.costs.mean()), 4),
        "mean_balance": round(float(found.balance.mean()), 4),
        "dead_ends": 0,
    }


def test_a_dead_end_counts_with_what_stands_in_for_a_policy() -> None:
    found = judged(SPACES, lambda space: None if space is SPACES[1] else np.zeros(len(space.pieces), dtype=np.int64))
    instead = greedy_placement(SPACES[1], WEIGHTS[Algorithm.SIZE_GREEDY])
    assert found.dead.tolist() == [False, True, False]
    assert found.costs[1] == judged([SPACES[1]], lambda space: instead).costs[0]
    assert found.balance[[0, 2]].tolist() == [0.0, 0.0]


def test_a_policy_stands_beside_all_baselines_and_samples_never_make_it_dearer() -> None:
    results = evaluated(SPACES, random_networks(1, sharpness=0.003), 8)
    heuristics = {"dim_greedy", "size_greedy", "lookup_greedy", "size_lookup_greedy"}
    assert set(results) == {POLICY, SAMPLED, "random", *heuristics}
    assert (results[SAMPLED].costs <= results[POLICY].costs).all()
    means = {name: results[name].costs.mean() for name in heuristics}
    assert means[best_heuristic(results)] == min(means.values())
