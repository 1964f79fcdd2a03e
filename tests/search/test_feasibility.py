"""Placements by memory alone, and what is claimed where there are none."""

import pytest
from hypothesis import given, settings

from service.domain.deadline import Deadline
from service.domain.errors import Infeasible, NoPlanInTime
from service.domain.plan import Constraints, Problem
from service.domain.tables import Optimizer, Table
from service.domain.topology import Topology
from service.search.cuts import cuts_that_pack
from service.search.feasibility import Found, pieces_that_fit, place_by_memory
from service.search.proofs import check_feasible
from service.search.workspace import Workspace
from tests.examples import examples
from tests.fakes import fake_models
from tests.search import oracle
from tests.search.strategies import TABLE_WISE, problems

GIB = 1 << 30
MIB = 1 << 20


@settings(max_examples=examples(100), deadline=None)
@given(problem=problems(max_tables=7))
def test_infeasible_is_proven_only_where_no_placement_of_whole_tables_exists(problem: Problem) -> None:
    space = Workspace.of(problem, oracle.whole(problem), fake_models())
    sizes = space.memory_bytes.tolist()
    feasible = oracle.packs(sizes, problem.topology.memory_bytes)
    try:
        placement = place_by_memory(space, Deadline()).placement
    except Infeasible as error:
        assert not feasible
        cuttable = any(oracle.can_be_cut(problem.constraints, table.embedding_dim) for table in problem.tables)
        assert error.data["proven"] == (not cuttable)
        assert error.data["reason"] == "packing"
    else:
        assert feasible
        assert placement.shape == (len(sizes),)


def _three_tables(**constraints: object) -> Problem:
    tables = tuple(Table(f"t{i}", 6 * 1024 * 1024, 64, 0.0) for i in range(3))  # 1.5 GiB each, 5 GiB in all
    rules = Constraints(count_buffers=False, **constraints)  # type: ignore[arg-type]
    return Problem(tables, Topology("fake", (5 * GIB // 2,) * 2), 1, Optimizer.SGD, rules)


def test_three_whole_tables_that_need_a_device_each_do_not_fit_on_two() -> None:
    problem = _three_tables(sharding_types=TABLE_WISE)
    check_feasible(problem, Deadline())
    for place in (_place_whole, pieces_that_fit):
        with pytest.raises(Infeasible) as caught:
            place(problem, Deadline())
        assert caught.value.data["proven"]
        assert caught.value.data["remedies"] == [
            f"0.5 GiB ({GIB // 2} bytes) more memory on each device are enough",
            f"3 devices of 2.5 GiB ({5 * GIB // 2} bytes) are enough",
            "allow column_wise: t0 fits as 2 slices of 32 columns",
        ]


def test_where_cuts_are_allowed_whole_tables_prove_nothing() -> None:
    with pytest.raises(Infeasible) as caught:
        _place_whole(_three_tables(), Deadline())
    assert not caught.value.data["proven"]
    pieces = pieces_that_fit(_three_tables(), Deadline())
    assert [piece.width for piece in pieces.slices] == [32, 32, 64, 64]


def _place_whole(problem: Problem, deadline: Deadline) -> Found:
    return place_by_memory(Workspace.of(problem, oracle.whole(problem), fake_models()), deadline)


def test_uneven_cuts_are_found_where_no_even_ones_fit() -> None:
    # Devices hold 7 and 4 of a table's 11 steps of 4 columns; halves take 6 and 5, thirds would be too narrow.
    limits = (28 * 4 * MIB, 16 * 4 * MIB)
    constraints = Constraints(min_shard_dim=16, count_buffers=False)
    problem = Problem((Table("t", MIB, 44, 0.0),), Topology("fake", limits), 1, Optimizer.SGD, constraints)
    assert cuts_that_pack(problem, Deadline()) is None
    pieces = pieces_that_fit(problem, Deadline())
    assert [(piece.width, device) for piece, device in zip(pieces.slices, pieces.devices, strict=True)] == [
        (28, 0),
        (16, 1),
    ]


def test_no_time_is_no_proof() -> None:
    problem = _three_tables(column_multiple=32, min_shard_dim=32, separate=(("t0", "t1", "t2"),))
    with pytest.raises(NoPlanInTime):
        pieces_that_fit(problem, Deadline(at=0.0, clock=lambda: 1.0))


def test_a_split_that_would_not_help_is_no_remedy() -> None:
    tables = tuple(Table(f"t{i}", 96 * 1024 * 1024, 4, 0.0) for i in range(3))  # Too narrow to be cut.
    problem = Problem(
        tables, Topology("fake", (5 * GIB // 2,) * 2), 1, Optimizer.SGD, Constraints(TABLE_WISE, count_buffers=False)
    )
    with pytest.raises(Infeasible) as caught:
        place_by_memory(Workspace.of(problem, oracle.whole(problem), fake_models()), Deadline())
    assert len(caught.value.data["remedies"]) == 2
    assert not any("column_wise" in remedy for remedy in caught.value.data["remedies"])
