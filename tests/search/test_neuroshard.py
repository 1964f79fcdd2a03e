"""NeuroShard's inner search against its slow and obvious version."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.deadline import Deadline
from service.domain.errors import Infeasible, NoPlanInTime
from service.domain.plan import Algorithm, Problem
from service.domain.ports import CostModels
from service.domain.tables import Optimizer, Table
from service.domain.topology import Topology
from service.search.beam import BeamSettings
from service.search.feasibility import Found
from service.search.greedy import WEIGHTS, greedy, greedy_placement, random
from service.search.grid import CAP_COUNT, width_caps
from service.search.neuroshard import neuroshard
from service.search.packing import pack
from service.search.simulator import simulate
from service.search.workspace import Workspace
from tests.cost_models.small_model import small_model
from tests.examples import examples
from tests.fakes import FakeCommunication, fake_models
from tests.search import oracle
from tests.search.strategies import TABLE_WISE, problems

GIB = 1 << 30
WHOLE = BeamSettings(steps=0)


def _space(problem: Problem) -> Workspace:
    return Workspace.of(problem, oracle.whole(problem), fake_models())


@settings(max_examples=examples(150), deadline=None)
@given(problem=problems(types=TABLE_WISE))
def test_makes_the_same_plan_as_the_oracle(problem: Problem) -> None:
    sizes = [problem.memory_of(table).total for table in problem.tables]
    assignment = pack(sizes, problem.topology.memory_bytes, Deadline()).assignment
    wanted = oracle.neuroshard(problem, fake_models(), None if assignment is None else list(assignment))
    try:
        found = neuroshard(_space(problem), Deadline(), WHOLE)
    except Infeasible:
        assert wanted is None
        return
    assert not found.cut_short
    assert found.by_memory_alone == (wanted is None)
    if wanted is not None:
        assert found.placement.tolist() == wanted


@pytest.mark.parametrize("seed", range(20))
def test_makes_the_same_plan_as_the_oracle_with_a_network_and_equal_tables(seed: int) -> None:
    generator = np.random.default_rng(seed)
    models = CostModels(small_model(), FakeCommunication())
    kinds = [
        Table("", int(rows), 4 * int(dim), float(pooling))
        for rows, dim, pooling in zip(
            generator.integers(100, 1_000_000, 4),
            generator.integers(1, 33, 4),
            generator.exponential(10.0, 4),
            strict=True,
        )
    ]
    tables = tuple(replace(kinds[i % 4], name=f"t{i}") for i in range(14))
    problem = Problem(tables, Topology("fake", (16 * GIB,) * 3), 4096, Optimizer.SGD)
    found = neuroshard(Workspace.of(problem, oracle.whole(problem), models), Deadline(), WHOLE)
    assert found.placement.tolist() == oracle.neuroshard(problem, models, None)


@settings(max_examples=examples(100), deadline=None)
@given(problem=problems(types=TABLE_WISE))
def test_heuristics_make_the_same_plans_as_the_oracle(problem: Problem) -> None:
    found = [greedy_placement(_space(problem), weight) for weight in WEIGHTS.values()]
    assert [placement.tolist() for placement in found if placement is not None] == oracle.greedy_baselines(problem)


@settings(max_examples=examples(60), deadline=None)
@given(problem=problems(max_tables=12, types=TABLE_WISE))
def test_is_never_above_any_heuristic(problem: Problem) -> None:
    space = _space(problem)
    for weight in WEIGHTS.values():
        try:
            theirs = greedy(space, weight, Deadline()).placement
        except Infeasible:
            return
        ours = neuroshard(space, Deadline(), WHOLE).placement
        assert simulate(space, ours[None]).plan[0] <= simulate(space, theirs[None]).plan[0]


def test_is_not_above_a_heuristic_that_fell_back_to_memory_alone() -> None:
    generator = np.random.default_rng(5)
    fell_back = 0
    for _ in range(60):
        rows, dims = generator.integers(100_000, 2_000_000, 14), 4 * generator.integers(1, 32, 14)
        pooling = generator.exponential(9.0, 14)
        tables = tuple(Table(f"t{i}", int(rows[i]), int(dims[i]), float(pooling[i])) for i in range(14))
        loose = Problem(tables, Topology("fake", (1 << 40,) * 4), 4096, Optimizer.SGD)
        need = sum(loose.memory_of(table).total for table in tables)
        space = _space(replace(loose, topology=Topology("fake", (int(need / 4 * 1.02),) * 4)))
        placements = [greedy_placement(space, weight) for weight in WEIGHTS.values()]
        try:
            answers = [greedy(space, weight, Deadline()).placement for weight in WEIGHTS.values()]
        except Infeasible:
            continue
        fell_back += any(p is None for p in placements) and not all(p is None for p in placements)
        best = min(simulate(space, answer[None]).plan[0] for answer in answers)
        assert simulate(space, neuroshard(space, Deadline(), WHOLE).placement[None]).plan[0] <= best
    assert fell_back > 5


def test_the_grid_finds_plans_that_no_heuristic_finds() -> None:
    tables = tuple(Table(f"t{i}", 10 ** (2 + i % 5), 16 + 8 * (i % 9), 0.5 + (i * i) % 23) for i in range(40))
    space = _space(Problem(tables, Topology("fake", (4 * GIB,) * 4), 8192, Optimizer.SGD))
    baselines = [greedy_placement(space, weight) for weight in WEIGHTS.values()]
    best = min(simulate(space, placement[None]).plan[0] for placement in baselines if placement is not None)
    assert simulate(space, neuroshard(space, Deadline(), WHOLE).placement[None]).plan[0] < best


def test_ten_wide_tables_on_eight_devices_have_a_plan_though_every_cap_refuses_them() -> None:
    tables = tuple(Table(f"t{i}", 1000, 128, 1.0) for i in range(10))
    space = _space(Problem(tables, Topology("fake", (GIB,) * 8), 1024, Optimizer.SGD))
    assert max(width_caps(int(space.output_widths.sum()), 8, CAP_COUNT)[:-1]) < 2 * 128
    found = neuroshard(space, Deadline(), WHOLE)
    assert not found.by_memory_alone
    assert len(set(found.placement.tolist())) == 8


def test_falls_back_to_memory_where_neither_grid_nor_heuristics_fit() -> None:
    rows = [20_971_520, 20_971_520, 16_777_216, 12_582_912, 12_582_912]
    tables = tuple(Table(f"t{i}", count, 64, 1.0) for i, count in enumerate(rows))
    space = _space(Problem(tables, Topology("fake", (10_791_105_331,) * 2), 512, Optimizer.SGD))
    found = neuroshard(space, Deadline(), WHOLE)
    assert found.by_memory_alone
    assert found.placement[0] == found.placement[1] != found.placement[2]


def _stopping_after(checks: int) -> Deadline:
    ticking = itertools.count()
    return Deadline(at=float(checks), clock=lambda: float(next(ticking)))


@pytest.mark.parametrize("checks", [8, 9, 16, 27])
def test_a_deadline_within_the_grid_leaves_the_best_heuristic(checks: int) -> None:
    tables = tuple(Table(f"t{i}", 1000 * (i + 1), 64, 1.0 + i % 3) for i in range(20))
    space = _space(Problem(tables, Topology("fake", (GIB,) * 4), 1024, Optimizer.SGD))
    found = neuroshard(space, _stopping_after(checks), WHOLE)
    baselines = [greedy_placement(space, weight) for weight in WEIGHTS.values()]
    best = min(simulate(space, placement[None]).plan[0] for placement in baselines if placement is not None)
    assert found.cut_short
    assert simulate(space, found.placement[None]).plan[0] == best


def test_a_deadline_before_any_plan_says_nothing_about_feasibility() -> None:
    space = _space(Problem((Table("t", 10, 4, 1.0),), Topology("fake", (GIB,)), 64, Optimizer.SGD))
    with pytest.raises(NoPlanInTime):
        neuroshard(space, _stopping_after(0), WHOLE)
    with pytest.raises(NoPlanInTime):
        random(space, 0, _stopping_after(0))
    with pytest.raises(NoPlanInTime):
        greedy(space, WEIGHTS[Algorithm.DIM_GREEDY], _stopping_after(0))


def test_a_deadline_while_packing_says_nothing_about_feasibility() -> None:
    sizes = [2 * (1000 + (i * i * 7919) % 977) for i in range(40)]
    tables = tuple(Table(f"t{i}", size, 4, 0.0) for i, size in enumerate(sizes))
    problem = Problem(tables, Topology("fake", (1 << 40,) * 8), 1, Optimizer.SGD)
    need = sum(problem.memory_of(table).total for table in tables)
    tight = Problem(tables, Topology("fake", (need // 8 + 1,) * 8), 1, Optimizer.SGD)
    with pytest.raises(NoPlanInTime):
        neuroshard(_space(tight), _stopping_after(4 + 40 + 1), WHOLE)


@settings(max_examples=examples(40), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_random_repeats_itself_for_a_seed(seed: int) -> None:
    tables = tuple(Table(f"t{i}", 1000, 64, 1.0) for i in range(12))
    space = _space(Problem(tables, Topology("fake", (GIB,) * 4), 1024, Optimizer.SGD))
    first: Found = random(space, seed, Deadline())
    assert first.placement.tolist() == random(space, seed, Deadline()).placement.tolist()


def test_random_differs_between_seeds() -> None:
    tables = tuple(Table(f"t{i}", 1000, 64, 1.0) for i in range(12))
    space = _space(Problem(tables, Topology("fake", (GIB,) * 4), 1024, Optimizer.SGD))
    assert len({tuple(random(space, seed, Deadline()).placement.tolist()) for seed in range(10)}) == 10


def test_tables_without_lookups_do_not_pile_up() -> None:
    busy = tuple(Table(f"busy{i}", 1000, 64, 1.0 + i) for i in range(4))
    idle = tuple(Table(f"idle{i}", 1000, 64, 0.0) for i in range(12))
    space = _space(Problem(busy + idle, Topology("fake", (GIB,) * 4), 1024, Optimizer.SGD))
    for weight in WEIGHTS.values():
        placement = greedy_placement(space, weight)
        assert placement is not None
        assert sorted([(placement == device).sum() for device in range(4)]) == [4, 4, 4, 4]
