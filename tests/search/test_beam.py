"""NeuroShard's outer search against its slow and obvious version, and what it promises."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.deadline import Deadline
from service.domain.plan import Constraints, Problem, ShardingType, memory_on_devices, tables_on_devices, tiling_faults
from service.domain.tables import Optimizer, Table
from service.domain.topology import Topology
from service.search.beam import BeamSettings, beam_search
from service.search.layout import shards_of
from service.search.neuroshard import neuroshard
from service.search.simulator import simulate
from service.search.workspace import Workspace
from tests.examples import examples
from tests.fakes import fake_models
from tests.search import oracle
from tests.search.strategies import problems

BOTH = frozenset(ShardingType)
SMALL = BeamSettings(beams=2, candidates=2, steps=3)
GIB = 1 << 30


def placeable_whole(max_tables: int) -> st.SearchStrategy[Problem]:
    """Problems in which every table may stay whole, as one shard."""
    drawn = problems(max_tables=max_tables, types=BOTH)
    return drawn.map(lambda problem: replace(problem, constraints=replace(problem.constraints, max_shard_dim=1024)))


def space_of(problem: Problem) -> Workspace:
    return Workspace.of(problem, oracle.whole(problem), fake_models())


def test_pieces_that_cost_the_same_are_tried_in_the_order_of_the_tables() -> None:
    alike = tuple(Table(f"t{i}", rows, 8, 0.0) for i, rows in enumerate((1, 40_000, 40_000)))
    weights_only = Constraints(count_buffers=False)
    problem = Problem(alike, Topology("fake", (1_280_017,) * 2), 2048, Optimizer.SGD, weights_only)
    space = space_of(problem)
    found = beam_search(space, Deadline(), SMALL).best
    assert found is not None
    assert [space.catalogue.keys[piece] for piece in found.pieces] == [(0, 4), (0, 4), (1, 8), (2, 8)]


@settings(max_examples=examples(60), deadline=None)
@given(problem=placeable_whole(5))
def test_sees_the_same_ways_of_cutting_as_the_oracle(problem: Problem) -> None:
    space = space_of(problem)
    found = beam_search(space, Deadline(), SMALL)
    cost, pieces, placement = oracle.beam(problem, fake_models(), SMALL.beams, SMALL.candidates, SMALL.steps)
    assert not found.cut_short
    if found.best is None:
        assert placement == []
        return
    assert [space.catalogue.keys[piece] for piece in found.best.pieces] == pieces
    assert found.best.placement.tolist() == placement
    assert cost < float("inf")


@settings(max_examples=examples(60), deadline=None)
@given(problem=placeable_whole(6))
def test_cuts_never_make_a_plan_dearer_and_always_tile(problem: Problem) -> None:
    space = space_of(problem)
    if beam_search(space, Deadline(), BeamSettings(steps=0)).best is None:
        return
    whole = neuroshard(space, Deadline(), BeamSettings(steps=0))
    cut = neuroshard(space, Deadline())
    assert simulate(cut.workspace, cut.placement[None]).plan[0] <= simulate(space, whole.placement[None]).plan[0]
    shards = shards_of(cut.workspace, cut.placement)
    assert not tiling_faults(problem.tables, problem.topology.device_count, shards)
    used = memory_on_devices(problem, tables_on_devices(problem, shards))
    assert all(u.total <= limit for u, limit in zip(used, problem.topology.memory_bytes, strict=True))


def test_one_heavy_table_is_shared_out() -> None:
    tables = (Table("heavy", 1_000_000, 128, 80.0), *(Table(f"light{i}", 1_000, 16, 1.0) for i in range(3)))
    problem = Problem(tables, Topology("fake", (GIB,) * 4), 8192, Optimizer.SGD)
    space = space_of(problem)
    whole = neuroshard(space, Deadline(), BeamSettings(steps=0))
    cut = neuroshard(space, Deadline())
    heavy = [shard for shard in shards_of(cut.workspace, cut.placement) if shard.table == "heavy"]
    assert len({shard.device for shard in heavy}) >= 2
    assert simulate(cut.workspace, cut.placement[None]).plan[0] < 0.8 * simulate(space, whole.placement[None]).plan[0]


@pytest.mark.parametrize(
    "constraints",
    [
        Constraints(sharding_types=frozenset({ShardingType.TABLE_WISE})),
        Constraints(min_shard_dim=128),
        Constraints(column_multiple=128),
    ],
)
def test_what_may_not_be_cut_is_left_whole(constraints: Constraints) -> None:
    tables = (Table("heavy", 1_000_000, 128, 80.0), Table("light", 1_000, 16, 1.0))
    problem = Problem(tables, Topology("fake", (GIB,) * 2), 8192, Optimizer.SGD, constraints)
    found = neuroshard(space_of(problem), Deadline())
    assert len(found.workspace.pieces) == 2


def test_a_table_that_fits_only_in_parts_beside_others_is_cut_by_the_beam() -> None:
    tables = tuple(Table(f"t{i}", 6 * 2**20, 128, 1.0) for i in range(3))
    constraints = Constraints(count_buffers=False)
    problem = Problem(tables, Topology("fake", (5 * GIB,) * 2), 512, Optimizer.SGD, constraints)
    found = neuroshard(space_of(problem), Deadline())
    assert not found.by_memory_alone
    assert len(found.workspace.pieces) == 4


def test_the_deadline_leaves_the_best_way_seen_before_it() -> None:
    tables = tuple(Table(f"t{i}", 100_000, 128, 1.0 + 9 * i) for i in range(6))
    problem = Problem(tables, Topology("fake", (GIB,) * 4), 8192, Optimizer.SGD)
    space = space_of(problem)
    ticking = itertools.count()
    late = neuroshard(space, Deadline(at=30.0, clock=lambda: float(next(ticking))))
    assert late.cut_short
    whole = neuroshard(space, Deadline(), BeamSettings(steps=0))
    full = neuroshard(space, Deadline())
    costs = [int(simulate(f.workspace, f.placement[None]).plan[0]) for f in (full, late, whole)]
    assert costs == sorted(costs)


def test_renaming_tables_changes_nothing() -> None:
    tables = tuple(Table(f"t{i}", 100_000, 64, 1.0 + 9 * i) for i in range(6))
    problem = Problem(tables, Topology("fake", (GIB,) * 4), 8192, Optimizer.SGD)
    renamed = replace(problem, tables=tuple(replace(t, name=t.name * 2) for t in tables))
    first, other = (neuroshard(space_of(p), Deadline()) for p in (problem, renamed))
    assert first.workspace.keys == other.workspace.keys
    assert first.placement.tolist() == other.placement.tolist()
