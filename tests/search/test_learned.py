"""Plans of trained policies: whole or cut, whichever is cheaper, and what answers where a policy is stuck."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.deadline import Deadline
from service.domain.errors import Infeasible, NoPlanInTime
from service.domain.plan import Algorithm, Problem, ShardingType
from service.domain.policy import Floats, Scorer, Seen
from service.domain.tables import Table
from service.search.beam import BeamSettings, beam_search
from service.search.feasibility import Found
from service.search.greedy import WEIGHTS, greedy_placement
from service.search.learned import learned
from service.search.policy_placement import policy_placement
from service.search.precut import precut
from service.search.proofs import check_feasible
from service.search.simulator import simulate
from service.search.workspace import Workspace
from service.usecases.make_plan import make_plan
from tests.examples import examples
from tests.fakes import fake_models
from tests.policies.random_networks import random_networks
from tests.search.posed import posed
from tests.search.strategies import TABLE_WISE, bound_problems, problems

NETWORKS = random_networks(4, sharpness=0.003)


class SmallestFirst:
    """Places the smallest table first, each on the device with the least memory used: what packs badly."""

    algorithm, version = Algorithm.AUTOSHARD, "fake/autoshard/1"

    def encode(self, tables: Sequence[Table], batch_size: int) -> Floats:
        return np.array([[float(table.weight_bytes)] for table in tables])

    def single_costs(self, embeddings: Floats) -> Floats:
        return np.asarray(1e6 / embeddings[:, 0])

    def begin(self, episodes: int) -> Scorer:
        return self

    def logits(self, seen: Seen) -> Floats:
        return -1e6 * seen.used


def _space(problem: Problem) -> Workspace:
    check_feasible(problem, Deadline())
    return Workspace.of(problem, precut(problem, Deadline()), fake_models())


def _cost(found: Found) -> int:
    return int(simulate(found.workspace, found.placement[None]).plan[0])


@settings(max_examples=examples(40), deadline=None)
@given(problem=st.one_of(bound_problems(), problems(max_tables=6)))
def test_is_never_dearer_than_what_the_policy_makes_of_the_pieces_as_they_are_and_the_same_twice(
    problem: Problem,
) -> None:
    try:
        space = _space(problem)
        found = learned(NETWORKS, space, 3, Deadline())
    except Infeasible:
        return
    assert not found.cut_short
    whole = policy_placement(space, NETWORKS, 64, 3, Deadline())
    if whole is not None:
        assert found.instead is None
        assert _cost(found) <= int(simulate(space, whole[None]).plan[0])
    again = learned(NETWORKS, _space(problem), 3, Deadline())
    assert again.workspace.keys == found.workspace.keys
    assert again.placement.tolist() == found.placement.tolist()


def _wide(*types: ShardingType) -> Problem:
    tables = [Table(f"t{i}", 10_000, 128 if i == 0 else 4, 5.0) for i in range(4)]
    return posed(*tables, limits=(1 << 30,) * 4, sharding_types=frozenset(types or ShardingType))


def test_cuts_are_those_of_neuroshards_outer_search_and_the_policy_places_them() -> None:
    space = _space(_wide())
    found = learned(NETWORKS, space, 0, Deadline())
    best = beam_search(space, Deadline(), BeamSettings()).best
    assert best is not None
    assert len(space.pieces) < len(best.pieces)
    assert sorted(found.workspace.pieces) == sorted(best.pieces)
    placed = policy_placement(space.of_pieces(best.pieces), NETWORKS, 64, 0, Deadline())
    assert placed is not None
    assert found.placement.tolist() == placed.tolist()


def test_whole_tables_stay_whole_where_no_cut_is_allowed() -> None:
    found = learned(NETWORKS, _space(_wide(ShardingType.TABLE_WISE)), 0, Deadline())
    assert [piece.width for piece in found.workspace.keys] == [128, 4, 4, 4]


def _packs_badly(*types: ShardingType) -> Problem:
    tables = [Table(f"t{i}", rows, 4, 1.0) for i, rows in enumerate((7_000, 5_000, 5_000))]
    return posed(*tables, limits=(160_000, 160_000), count_buffers=False, sharding_types=frozenset(types))


def test_a_dead_end_is_answered_by_size_greedy_and_said() -> None:
    problem = _packs_badly(ShardingType.TABLE_WISE)
    space = _space(problem)
    assert policy_placement(space, SmallestFirst(), 64, 0, Deadline()) is None
    found = learned(SmallestFirst(), space, 0, Deadline())
    wanted = greedy_placement(space, WEIGHTS[Algorithm.SIZE_GREEDY])
    assert wanted is not None
    assert (found.instead, found.placement.tolist()) == (Algorithm.SIZE_GREEDY, wanted.tolist())
    plan = make_plan(problem, replace(fake_models(), policy=SmallestFirst()), Algorithm.AUTOSHARD, 0, Deadline())
    assert "autoshard found no placement that fits: tables were placed by size_greedy" in plan.assumptions
    assert plan.models["autoshard"] == "fake/autoshard/1"


def test_where_size_greedy_is_stuck_too_memory_alone_decides() -> None:
    # 6, 4, 4, 3 and 3 fit on two devices of 10 in one way; by descending size 6 and 4, then 4 and 3 are met first.
    tables = [Table(f"t{i}", rows * 1_000, 4, 1.0) for i, rows in enumerate((3, 3, 4, 4, 6))]
    problem = posed(*tables, limits=(160_000, 160_000), count_buffers=False, sharding_types=TABLE_WISE)
    assert greedy_placement(_space(problem), WEIGHTS[Algorithm.SIZE_GREEDY]) is None
    plan = make_plan(problem, replace(fake_models(), policy=SmallestFirst()), Algorithm.AUTOSHARD, 0, Deadline())
    assert "autoshard found no placement that fits: tables were placed by memory alone" in plan.assumptions


def test_time_that_runs_out_is_told_from_a_dead_end() -> None:
    space = _space(posed(*[Table(f"t{i}", 1_000, 4, 1.0) for i in range(40)]))
    with pytest.raises(NoPlanInTime):
        learned(NETWORKS, space, 0, Deadline(0.0, lambda: 1.0))
    by = []
    for checks in (30, 40, 60):
        found = learned(NETWORKS, space, 0, Deadline(float(checks), _ticking()))
        by.append(found.instead)
        assert found.cut_short
    assert by[0] is Algorithm.SIZE_GREEDY
    assert by[-1] is None


def _ticking() -> Callable[[], float]:
    """A clock that goes on by a second whenever it is looked at."""
    ticks = itertools.count()
    return lambda: float(next(ticks))
