"""The portfolio: never worse than its parts, the same for the same seed, and an answer by the deadline."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings

from service.domain.deadline import Deadline
from service.domain.errors import Infeasible, NoPlanInTime
from service.domain.plan import Problem
from service.domain.tables import Optimizer, Table
from service.domain.topology import Topology
from service.search.algorithms import SEARCHES
from service.search.auto import auto
from service.search.feasibility import Found
from service.search.greedy import WEIGHTS, greedy
from service.search.layout import shards_of
from service.search.neuroshard import neuroshard
from service.search.precut import precut
from service.search.proofs import check_feasible
from service.search.simulator import simulate
from service.search.workspace import Workspace
from tests.examples import examples
from tests.fakes import fake_models
from tests.search.strategies import problems

GIB = 1 << 30


def cost(found: Found) -> int:
    return int(simulate(found.workspace, found.placement[None]).plan[0])


def space_of(problem: Problem) -> Workspace:
    check_feasible(problem, Deadline())
    return Workspace.of(problem, precut(problem, Deadline()), fake_models())


@settings(max_examples=examples(25), deadline=None)
@given(problem=problems(max_tables=6))
def test_is_never_dearer_than_any_other_algorithm_and_the_same_twice(problem: Problem) -> None:
    try:
        space = space_of(problem)
        found = auto(space, 0, Deadline())
    except Infeasible:
        return
    assert not found.cut_short
    for algorithm, search in SEARCHES.items():
        try:
            assert algorithm == "random" or cost(found) <= cost(search(space, 0, Deadline()))
        except Infeasible:
            continue
    again = auto(space_of(problem), 0, Deadline())
    assert shards_of(again.workspace, again.placement) == shards_of(found.workspace, found.placement)


def _tables(count: int) -> Problem:
    generator = np.random.default_rng(1)
    tables = tuple(
        Table(f"t{i}", int(generator.integers(1_000, 10**6)), 4 * int(generator.integers(1, 33)), float(i % 9))
        for i in range(count)
    )
    return Problem(tables, Topology("fake", (16 * GIB,) * 4), 8192, Optimizer.SGD)


def test_nothing_is_cut_for_less_than_the_models_can_tell() -> None:
    generator = np.random.default_rng(55)
    tables = tuple(
        Table(f"t{i}", 100_000, 32 * int(generator.integers(1, 5)), float(generator.integers(1, 40)))
        for i in range(int(generator.integers(4, 9)))
    )
    problem = Problem(tables, Topology("fake", (16 * GIB,) * 2), 8192, Optimizer.SGD)
    theirs, found = neuroshard(space_of(problem), Deadline()), auto(space_of(problem), 0, Deadline())
    assert len(shards_of(theirs.workspace, theirs.placement)) > len(tables)
    assert len(shards_of(found.workspace, found.placement)) == len(tables)
    assert 0.99 * cost(theirs) < cost(found) <= cost(theirs)


@pytest.mark.parametrize("checks", [3, 10, 40, 100, 200])
def test_a_deadline_leaves_the_best_plan_seen(checks: int) -> None:
    problem, ticking = _tables(20), itertools.count()
    found = auto(space_of(problem), 0, Deadline(float(checks), lambda: float(next(ticking))))
    assert found.cut_short
    weight = next(iter(WEIGHTS.values()))
    assert cost(found) <= cost(greedy(space_of(problem), weight, Deadline()))


def test_a_deadline_before_any_plan_says_nothing_about_feasibility() -> None:
    with pytest.raises(NoPlanInTime):
        auto(space_of(_tables(3)), 0, Deadline(0.0, lambda: 1.0))


def test_fewer_tables_than_devices_and_a_single_device() -> None:
    few = _tables(2)
    assert not auto(space_of(few), 0, Deadline()).cut_short
    alone = Problem(few.tables, Topology("fake", (16 * GIB,)), 8192, Optimizer.SGD)
    assert auto(space_of(alone), 0, Deadline()).placement.tolist() == [0, 0]
