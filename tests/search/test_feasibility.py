"""What is refused, and what is claimed about it."""

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.deadline import Deadline
from service.domain.errors import Infeasible
from service.domain.plan import Algorithm, Constraints, Problem, ShardingType
from service.domain.tables import Optimizer, Table
from service.domain.topology import Topology
from service.search.feasibility import pieces_that_fit, place_by_memory
from service.search.proofs import check_feasible
from service.search.workspace import Workspace
from service.usecases.make_plan import make_plan
from tests.fakes import fake_models
from tests.search import oracle
from tests.search.strategies import TABLE_WISE, problems

GIB = 1 << 30


def test_total_memory_says_the_exact_shortfall_and_what_would_be_needed() -> None:
    tables = tuple(Table(f"t{i}", 62_914_560, 128, 1.0) for i in range(3))
    problem = Problem(tables, Topology("fake", (32 * GIB,) * 2), 512, Optimizer.SGD, Constraints(count_buffers=False))
    with pytest.raises(Infeasible) as e:
        check_feasible(problem, Deadline())
    assert e.value.detail == f"tables need 90.0 GiB, devices hold 64.0 GiB: short of 26.0 GiB ({26 * GIB} bytes)"
    assert e.value.data["reason"] == "total_memory"
    assert e.value.data["proven"]
    assert e.value.data["shortfall_bytes"] == 26 * GIB
    # Two tables of 30 GiB must share a device: half of all, 45 GiB each, would not do.
    assert e.value.data["remedies"] == [
        f"60.0 GiB ({60 * GIB} bytes) of memory on each of the 2 devices are enough",
        "3 devices of 32.0 GiB are enough",
    ]


@settings(max_examples=80, deadline=None)
@given(problem=problems(max_tables=6), tightness=st.sampled_from([0.9, 0.5, 0.1, 0.01]))
def test_what_is_said_to_be_enough_where_memory_is_short_is_enough(problem: Problem, tightness: float) -> None:
    need = sum(problem.memory_of(table).total for table in problem.tables)
    devices = problem.topology.device_count
    short = replace(problem, topology=Topology("fake", (max(1, int(need * tightness / devices)),) * devices))
    with pytest.raises(Infeasible) as caught:
        make_plan(short, fake_models(), Algorithm.SIZE_GREEDY, 0, Deadline())
    if caught.value.data["reason"] != "total_memory":
        return
    for remedy in caught.value.data["remedies"]:
        changed = applied(short, remedy)
        assert make_plan(changed, fake_models(), Algorithm.SIZE_GREEDY, 0, Deadline()).shards


def test_no_number_of_devices_is_named_that_no_request_may_have() -> None:
    problem = Problem((Table("t", 10**9, 4, 1.0),), Topology("fake", (1,)), 512, Optimizer.SGD)
    with pytest.raises(Infeasible) as caught:
        check_feasible(problem, Deadline())
    assert not any("devices of" in remedy for remedy in caught.value.data["remedies"])


def test_buffers_and_optimizer_state_count_towards_the_shortfall() -> None:
    table = Table("t", 1000, 64, 2.0)
    problem = Problem((table,), Topology("fake", (1000 * 64 * 4,)), 128, Optimizer.ADAM)
    with pytest.raises(Infeasible) as caught:
        check_feasible(problem, Deadline())
    state, pooled, indices = 1000 * 64 * 8, 2 * 128 * 64 * 4, (256 + 128 + 1) * 8
    assert caught.value.data["shortfall_bytes"] == state + pooled + indices


def test_memory_that_is_exactly_enough_is_enough() -> None:
    table = Table("t", 1000, 64, 2.0)
    loose = Problem((table, replace(table, name="u")), Topology("fake", (1 << 40,)), 128, Optimizer.ADAGRAD)
    need = 2 * loose.memory_of(table).total
    check_feasible(replace(loose, topology=Topology("fake", (need,))), Deadline())
    with pytest.raises(Infeasible) as caught:
        check_feasible(replace(loose, topology=Topology("fake", (need - 1,))), Deadline())
    assert caught.value.data["shortfall_bytes"] == 1


@settings(max_examples=100, deadline=None)
@given(problem=problems(max_tables=7))
def test_infeasible_is_proven_only_where_no_placement_of_whole_tables_exists(problem: Problem) -> None:
    sizes = [problem.memory_of(table).total for table in problem.tables]
    feasible = oracle.packs(sizes, problem.topology.memory_bytes)
    space = Workspace.of(problem, oracle.whole(problem), fake_models())
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


@pytest.mark.parametrize(("types", "proven"), [(TABLE_WISE, True), (frozenset(ShardingType), False)])
def test_three_whole_tables_that_need_a_device_each_do_not_fit_on_two(
    types: frozenset[ShardingType], proven: bool
) -> None:
    tables = tuple(Table(f"t{i}", 6 * 1024 * 1024, 64, 0.0) for i in range(3))  # 1.5 GiB each, 5 GiB in all
    problem = Problem(
        tables, Topology("fake", (5 * GIB // 2,) * 2), 1, Optimizer.SGD, Constraints(types, count_buffers=False)
    )
    check_feasible(problem, Deadline())
    with pytest.raises(Infeasible) as caught:
        place_by_memory(Workspace.of(problem, oracle.whole(problem), fake_models()), Deadline())
    assert caught.value.data["proven"] == proven
    remedies = caught.value.data["remedies"]
    assert f"({GIB // 2} bytes) more memory on each device are enough" in remedies[0]
    assert remedies[1:] == (["allow column_wise: t0 fits as 2 slices of 32 columns"] if types == TABLE_WISE else [])


def test_a_split_that_would_not_help_is_no_remedy() -> None:
    tables = tuple(Table(f"t{i}", 96 * 1024 * 1024, 4, 0.0) for i in range(3))  # Too narrow to be cut.
    problem = Problem(
        tables, Topology("fake", (5 * GIB // 2,) * 2), 1, Optimizer.SGD, Constraints(TABLE_WISE, count_buffers=False)
    )
    with pytest.raises(Infeasible) as caught:
        place_by_memory(Workspace.of(problem, oracle.whole(problem), fake_models()), Deadline())
    assert len(caught.value.data["remedies"]) == 1
    assert "column_wise" not in caught.value.data["remedies"][0]
