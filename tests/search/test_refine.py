"""The refinement keeps plans valid, prices them as the simulator does, and only makes them better."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.deadline import Deadline
from service.domain.errors import Infeasible
from service.domain.plan import Constraints, Problem, memory_on_devices, tables_on_devices, tiling_faults
from service.domain.tables import Optimizer, Table
from service.domain.topology import Topology
from service.search.catalogue import Piece
from service.search.greedy import random
from service.search.holdings import Change, Holdings
from service.search.improve import improve
from service.search.kicks import kick
from service.search.layout import shards_of
from service.search.precut import precut
from service.search.proofs import check_feasible
from service.search.refine import Refinement
from service.search.simulator import simulate
from service.search.workspace import Workspace
from tests.examples import examples
from tests.fakes import fake_models
from tests.search.strategies import problems

GIB = 1 << 30


def start(problem: Problem, seed: int = 0) -> Holdings | None:
    """A random plan of a problem, where one is found."""
    try:
        check_feasible(problem, Deadline())
        found = random(Workspace.of(problem, precut(problem, Deadline()), fake_models()), seed, Deadline())
    except Infeasible:
        return None
    return Holdings.of(found.workspace, found.placement)


def simulated(holdings: Holdings) -> int:
    space, placement = holdings.workspace()
    return int(simulate(space, placement[None]).plan[0])


def assert_valid(problem: Problem, holdings: Holdings) -> None:
    shards = shards_of(*holdings.workspace())
    assert not tiling_faults(problem.tables, problem.topology.device_count, shards)
    for memory, limit in zip(
        memory_on_devices(problem, tables_on_devices(problem, shards)), problem.topology.memory_bytes, strict=True
    ):
        assert memory.total <= limit
    constraints = problem.constraints
    dims = {table.name: table.embedding_dim for table in problem.tables}
    for shard in shards:
        if shard.width != dims[shard.table]:
            assert shard.width % constraints.column_multiple == 0
            assert constraints.min_shard_dim <= shard.width <= constraints.max_shard_dim


@settings(max_examples=examples(80), deadline=None)
@given(problem=problems(), seed=st.integers(0, 99))
def test_a_descent_ends_with_a_valid_plan_that_is_expected_to_cost_no_more(problem: Problem, seed: int) -> None:
    holdings = start(problem, seed)
    if holdings is None:
        return
    plan = Refinement(holdings)
    assert plan.cost == simulated(holdings)
    before = plan.worth
    assert plan.descend(Deadline())
    assert plan.cost == simulated(plan.holdings)
    assert plan.cost <= plan.worth <= before
    assert_valid(problem, plan.holdings)


@settings(max_examples=examples(40), deadline=None)
@given(problem=problems(), seed=st.integers(0, 99))
def test_kicks_keep_plans_valid_and_leave_the_original_alone(problem: Problem, seed: int) -> None:
    holdings = start(problem)
    if holdings is None:
        return
    plan, generator = Refinement(holdings), np.random.default_rng(seed)
    pieces = list(plan.holdings.pieces())
    tried = plan.copy()
    for _ in range(5):
        kick(tried, generator)
        assert tried.cost == simulated(tried.holdings)
        assert_valid(problem, tried.holdings)
    assert list(plan.holdings.pieces()) == pieces
    assert plan.cost == simulated(plan.holdings)


def _skewed() -> Problem:
    tables = (Table("heavy", 1_000_000, 192, 80.0), *(Table(f"light{i}", 1_000, 16, 1.0) for i in range(3)))
    return Problem(tables, Topology("fake", (GIB,) * 3), 8192, Optimizer.SGD)


def test_a_heavy_table_is_cut_in_three() -> None:
    problem = _skewed()
    holdings = start(problem)
    assert holdings is not None
    plan, _ = improve(Refinement(holdings), 0, Deadline())
    heavy = [shard for shard in shards_of(*plan.holdings.workspace()) if shard.table == "heavy"]
    assert len({shard.device for shard in heavy}) == 3
    assert max(shard.width for shard in heavy) <= 72


def test_what_is_cut_for_nothing_is_merged() -> None:
    tables = tuple(Table(f"t{i}", 100_000, 16, 20.0) for i in range(4))
    problem = Problem(tables, Topology("fake", (GIB,) * 2), 8192, Optimizer.SGD)
    space = Workspace.of(problem, precut(problem, Deadline()), fake_models())
    catalogue = space.catalogue
    halves = np.array([int(catalogue.positions([Piece(unit, 8)])[0]) for unit in range(4) for _ in range(2)])
    cut = Refinement(Holdings.of(space.of_pieces(halves), np.array([0, 1] * 4)))
    plan, _ = improve(cut, 0, Deadline())
    assert sorted(len(held) for held in plan.holdings.held) == [2, 2]


def test_an_uneven_cut_is_found() -> None:
    tables = (Table("wide", 2_000_000, 128, 40.0), Table("small", 2_000_000, 64, 40.0))
    problem = Problem(tables, Topology("fake", (4 * GIB,) * 2), 8192, Optimizer.SGD)
    holdings = start(problem)
    assert holdings is not None
    plan, _ = improve(Refinement(holdings), 0, Deadline())
    widths = sorted(shard.width for shard in shards_of(*plan.holdings.workspace()) if shard.table == "wide")
    assert len(widths) == 2
    assert widths[0] < 64 < widths[1]


@pytest.mark.parametrize("seed", range(5))
def test_no_plan_above_the_limit_is_found(seed: int) -> None:
    holdings = start(_skewed(), seed)
    assert holdings is not None
    plan = Refinement(holdings)
    limit = plan.limit = plan.cost - 1
    found, _ = improve(plan, seed, Deadline())
    assert found.cost <= limit or list(found.holdings.pieces()) == list(plan.holdings.pieces())


def test_what_is_not_accepted_is_not_changed() -> None:
    holdings = start(_skewed())
    assert holdings is not None
    pieces = list(holdings.pieces())

    def nothing(_: Holdings, __: list[Change]) -> bool:
        return False

    plan, finished = improve(Refinement(holdings, nothing), 0, Deadline())
    assert finished
    assert list(plan.holdings.pieces()) == pieces


@pytest.mark.parametrize("checks", [0, 1, 2, 5, 20])
def test_a_deadline_leaves_a_valid_plan_that_is_no_dearer(checks: int) -> None:
    problem = _skewed()
    holdings = start(problem)
    assert holdings is not None
    before, ticking = simulated(holdings), itertools.count()
    plan, finished = improve(
        Refinement(holdings, limit=before), 0, Deadline(float(checks), lambda: float(next(ticking)))
    )
    assert not finished
    assert plan.cost <= before
    assert_valid(problem, plan.holdings)


def test_colocated_tables_move_as_one_and_separate_ones_never_meet() -> None:
    tables = tuple(Table(f"t{i}", 10_000 * (i + 1), 32, 1.0 + 5 * i) for i in range(8))
    constraints = Constraints(colocate=(("t0", "t7"),), separate=(("t6", "t5"), ("t7", "t4")), pin={"t3": (1,)})
    problem = Problem(tables, Topology("fake", (GIB,) * 3), 8192, Optimizer.SGD, constraints)
    for seed in range(5):
        holdings = start(problem, seed)
        assert holdings is not None
        plan, _ = improve(Refinement(holdings), seed, Deadline())
        shards = shards_of(*plan.holdings.workspace())
        on = {name: {s.device for s in shards if s.table == name} for name in (f"t{i}" for i in range(8))}
        assert on["t0"] == on["t7"]
        assert len(on["t0"]) == 1
        assert not on["t5"] & on["t6"]
        assert not on["t4"] & on["t7"]
        assert on["t3"] == {1}
        assert_valid(problem, plan.holdings)


def test_tables_that_may_go_nowhere_are_not_cut_in_thought() -> None:
    tables = tuple(Table(f"t{i}", 100, 64, 1.0) for i in range(4))
    pinned = Constraints(pin={table.name: (1,) for table in tables})
    holdings = start(Problem(tables, Topology("fake", (GIB, GIB)), 8, Optimizer.SGD, pinned))
    assert holdings is not None
    assert Refinement(holdings).descend(Deadline())
    assert len(holdings.catalogue.keys) == 4
