"""Placements by DreamShard's policy: legal, repeatable, and never dearer for being sampled more often."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.deadline import Deadline
from service.domain.errors import Infeasible
from service.domain.plan import Constraints, Problem
from service.domain.tables import Optimizer, Table
from service.domain.topology import Topology
from service.policies.dreamshard import DreamShardNetworks
from service.policies.table_features import POLICY_FEATURES_VERSION
from service.search.policy_placement import policy_placement, policy_task
from service.search.precut import precut
from service.search.simulator import simulate
from service.search.workspace import Workspace
from tests.examples import examples
from tests.fakes import fake_models
from tests.policies.random_networks import random_arrays, random_networks
from tests.search import oracle
from tests.search.strategies import bound_problems, problems

NETWORKS = random_networks(4)
UNSURE = random_networks(4, sharpness=0.003)


def _space(problem: Problem) -> Workspace:
    try:
        slices = precut(problem, Deadline())
    except Infeasible:
        slices = tuple(oracle.whole(problem))
    return Workspace.of(problem, slices, fake_models())


def _problem(count: int, devices: int = 4, limit: int = 1 << 30) -> Problem:
    generator = np.random.default_rng(count)
    tables = tuple(
        Table(f"t{i}", int(generator.integers(100, 10**5)), 4 * int(generator.integers(1, 9)), float(i % 7))
        for i in range(count)
    )
    return Problem(tables, Topology("fake", (limit,) * devices), 256, Optimizer.SGD)


def _likeliest(space: Workspace) -> list[int] | None:
    """One piece and one device at a time."""
    problem, catalogue = space.problem, space.catalogue
    embedded = [NETWORKS.encode(catalogue.tables(piece), problem.global_batch_size).sum(axis=0) for piece in space.keys]
    alone = [round(float(NETWORKS.device_costs(each).sum()) * 10_000) for each in embedded]
    memory = space.memory_bytes.tolist()
    placement = [-1] * len(memory)
    for i in sorted(range(len(memory)), key=lambda i: (-alone[i], -memory[i])):
        options = []
        for device, limit in enumerate(problem.topology.memory_bytes):
            here = [j for j in range(len(memory)) if placement[j] == device]
            used = sum(memory[j] for j in here)
            units = {int(space.units[j]) for j in here}
            apart = not any(catalogue.rules.apart[space.units[i], unit] for unit in units)
            if used + memory[i] <= limit and apart and catalogue.rules.allowed[space.units[i], device]:
                held = np.sum([embedded[j] for j in here], axis=0) if here else np.zeros_like(embedded[i])
                options.append((-float(NETWORKS.logits(held)), used, device))
        if not options:
            return None
        placement[i] = min(options)[2]
    return placement


@settings(max_examples=examples(80), deadline=None)
@given(problem=st.one_of(bound_problems(), problems(max_tables=6)))
def test_without_samples_each_piece_is_on_the_likeliest_device(problem: Problem) -> None:
    space = _space(problem)
    found = policy_placement(space, NETWORKS, 0, 0, Deadline())
    assert (None if found is None else found.tolist()) == _likeliest(space)


@pytest.mark.parametrize("count", [1, 16, 30])
def test_samples_never_make_a_plan_dearer_and_a_seed_repeats_them(count: int) -> None:
    space = _space(_problem(count))
    costs = []
    for samples in (0, 1, 8, 32):
        found = policy_placement(space, UNSURE, samples, 5, Deadline())
        again = policy_placement(space, UNSURE, samples, 5, Deadline())
        assert found is not None
        assert again is not None
        assert found.tolist() == again.tolist()
        costs.append(simulate(space, found[None]).plan[0])
    assert max(costs) == costs[0]
    if count > 1:
        assert costs[-1] < costs[0]


def test_a_sample_may_fit_where_the_likeliest_devices_are_a_dead_end() -> None:
    saved = 0
    for seed in range(40):
        problem = replace(_problem(9, devices=2), constraints=Constraints(count_buffers=False))
        need = sum(problem.memory_of(table).total for table in problem.tables)
        space = _space(replace(problem, topology=Topology("fake", (int(need / 2 * 1.05),) * 2)))
        networks = random_networks(seed, sharpness=0.003)
        sampled = policy_placement(space, networks, 16, 0, Deadline())
        if policy_placement(space, networks, 0, 0, Deadline()) is None and sampled is not None:
            saved += 1
            used = np.bincount(sampled, weights=space.memory_bytes, minlength=2)
            assert (used <= space.limits).all()
    assert saved > 0


def test_nothing_is_found_where_nothing_fits_or_the_time_is_up() -> None:
    assert policy_placement(_space(_problem(3, limit=100)), NETWORKS, 4, 0, Deadline()) is None
    ticking = itertools.count()
    late = Deadline(at=3.0, clock=lambda: float(next(ticking)))
    assert policy_placement(_space(_problem(9)), NETWORKS, 4, 0, late) is None


def test_time_that_is_up_before_samples_are_complete_leaves_the_likeliest_devices() -> None:
    space, ticking = _space(_problem(12)), itertools.count()
    late = Deadline(at=20.0, clock=lambda: float(next(ticking)))
    found, likeliest = (policy_placement(space, UNSURE, *how) for how in ((30, 0, late), (0, 0, Deadline())))
    assert found is not None
    assert likeliest is not None
    assert found.tolist() == likeliest.tolist()
    whole = policy_placement(space, UNSURE, 30, 0, Deadline())
    assert whole is not None
    assert whole.tolist() != likeliest.tolist(), "samples are no better here: choose another task"


def test_tables_that_are_one_piece_are_embedded_as_their_sum() -> None:
    problem = replace(_problem(4), constraints=Constraints(colocate=(("t1", "t3"),)))
    task = policy_task(_space(problem), NETWORKS)
    alone = NETWORKS.encode(problem.tables, problem.global_batch_size)
    assert task.features == pytest.approx(np.stack([alone[0], alone[1] + alone[3], alone[2]]))


def test_equal_tables_on_equal_devices_are_shared_out_by_memory_where_logits_tie() -> None:
    # A policy that sees nothing: every device ties, and the one with the least memory used takes the piece.
    arrays = random_arrays(0)
    seeing = ("feature_scale", "cost_unit_ms")
    zeros = {name: array if name in seeing else np.zeros_like(array) for name, array in arrays.items()}
    blind = DreamShardNetworks("blind", zeros, POLICY_FEATURES_VERSION)
    tables = tuple(Table(f"t{i}", 1000, 8, 1.0) for i in range(6))
    space = _space(Problem(tables, Topology("fake", (1 << 30,) * 3), 64, Optimizer.SGD))
    found = policy_placement(space, blind, 0, 0, Deadline())
    assert found is not None
    assert found.tolist() == [0, 1, 2, 0, 1, 2]
