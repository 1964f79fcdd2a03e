"""Planning from a problem to a priced, merged placement."""

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.cost_models.assumptions import novelty_assumptions
from service.domain.deadline import Deadline
from service.domain.errors import Infeasible, InvalidRequest, NoPlanInTime, UnsupportedAlgorithm
from service.domain.plan import (
    LEARNED,
    Algorithm,
    Constraints,
    Problem,
    Shard,
    ShardingType,
    memory_on_devices,
    tables_on_devices,
    tiling_faults,
)
from service.domain.ports import CostModels, Floats
from service.domain.tables import Optimizer, Table
from service.domain.topology import Topology
from service.search.algorithms import SEARCHES
from service.usecases.estimate import estimate
from service.usecases.make_plan import PlanStatus, make_plan
from tests.examples import examples
from tests.fakes import FakeCommunication, FakeCompute, fake_models
from tests.policies.random_networks import random_networks
from tests.search import oracle
from tests.search.applying import applied
from tests.search.strategies import COLUMN_WISE, problems

GIB = 1 << 30


def _problem(count: int = 6, devices: int = 3, optimizer: Optimizer = Optimizer.SGD, **constraints: object) -> Problem:
    tables = tuple(Table(f"t{i}", 1000 * (i + 1), 64, 1.0 + i) for i in range(count))
    limits = Constraints(**constraints)  # type: ignore[arg-type]
    return Problem(tables, Topology("fake", (GIB,) * devices), 1024, optimizer, limits)


def _assert_widths_are_allowed(problem: Problem, shards: tuple[Shard, ...]) -> None:
    constraints, dims = problem.constraints, {table.name: table.embedding_dim for table in problem.tables}
    for shard in shards:
        assert shard.width <= constraints.max_shard_dim
        if shard.width < dims[shard.table]:
            assert ShardingType.COLUMN_WISE in constraints.sharding_types
            assert shard.width % constraints.column_multiple == 0
            assert shard.width >= constraints.min_shard_dim
        elif ShardingType.TABLE_WISE not in constraints.sharding_types:
            assert not oracle.can_be_cut(constraints, shard.width)


@settings(max_examples=examples(200), deadline=None)
@given(problem=problems(max_tables=10), algorithm=st.sampled_from(list(SEARCHES)), seed=st.integers(0, 9))
def test_plans_tile_every_table_hold_in_memory_and_repeat(problem: Problem, algorithm: Algorithm, seed: int) -> None:
    try:
        plan = make_plan(problem, fake_models(), algorithm, seed, Deadline())
    except Infeasible as error:
        assert error.data["remedies"]
        return
    assert tiling_faults(problem.tables, problem.topology.device_count, plan.shards) == []
    _assert_widths_are_allowed(problem, plan.shards)
    memory = memory_on_devices(problem, tables_on_devices(problem, plan.shards))
    assert [report.memory for report in plan.devices] == memory
    assert all(report.memory.total <= report.memory_limit_bytes for report in plan.devices)
    assert plan.max_cost_ms == max(report.cost.total for report in plan.devices)
    assert plan.status == PlanStatus.COMPLETE
    assert make_plan(problem, fake_models(), algorithm, seed, Deadline()) == plan


@settings(max_examples=examples(60), deadline=None)
@given(problem=problems(max_tables=10), algorithm=st.sampled_from(list(SEARCHES)))
def test_an_estimate_of_a_plan_is_its_own_prediction(problem: Problem, algorithm: Algorithm) -> None:
    try:
        plan = make_plan(problem, fake_models(), algorithm, 0, Deadline())
    except Infeasible:
        return
    priced = estimate(problem, fake_models(), plan.shards)
    assert priced.devices == plan.devices
    assert priced.max_cost_ms == plan.max_cost_ms
    assert priced.max_cost_interval_ms == plan.max_cost_interval_ms
    assert priced.models == plan.models == {"compute": "fake/compute/1", "communication": "fake/communication/1"}


@pytest.mark.parametrize("algorithm", [name for name in Algorithm if name not in SEARCHES])
def test_an_algorithm_without_its_policy_is_refused_naming_the_remedy_and_those_that_need_none(
    algorithm: Algorithm,
) -> None:
    other = next(name for name in LEARNED if name is not algorithm)
    models = replace(fake_models(), policy=random_networks(0) if other is Algorithm.DREAMSHARD else None)
    with pytest.raises(UnsupportedAlgorithm, match=f"shardwright train {algorithm.value} --hardware fake") as caught:
        make_plan(_problem(), models, algorithm, 0, Deadline())
    assert caught.value.data["algorithm"] == algorithm.value
    available = caught.value.data["available"]
    need_none = ["auto", "random", "dim_greedy", "size_greedy", "lookup_greedy", "size_lookup_greedy", "neuroshard"]
    assert sorted(available) == sorted([*need_none, *(["dreamshard"] if other is Algorithm.DREAMSHARD else [])])


def test_tables_cut_under_a_row_wise_optimizer_are_named() -> None:
    cut = make_plan(
        _problem(2, optimizer=Optimizer.ROWWISE_ADAGRAD, max_shard_dim=32),
        fake_models(),
        Algorithm.NEUROSHARD,
        0,
        Deadline(),
    )
    assert any("t0, t1" in sentence and "row-wise" in sentence for sentence in cut.assumptions)
    for problem in (_problem(2, max_shard_dim=32), _problem(2, optimizer=Optimizer.ROWWISE_ADAGRAD)):
        plan = make_plan(problem, fake_models(), Algorithm.DIM_GREEDY, 0, Deadline())
        assert not any("row-wise" in sentence for sentence in plan.assumptions)


def test_what_the_compute_model_assumed_is_passed_on() -> None:
    plan = make_plan(_problem(2), fake_models(), Algorithm.DIM_GREEDY, 0, Deadline())
    assert plan.assumptions == ("no reuse histogram: t0, t1",)


def test_tables_unlike_the_measured_ones_are_named_worst_first() -> None:
    rows = (5_000_000, 11_000_000, 30_000_000)
    tables = tuple(Table(f"t{i}", count, 4, 1.0) for i, count in enumerate(rows))
    problem = replace(_problem(), tables=tables)
    plan = make_plan(problem, fake_models(), Algorithm.DIM_GREEDY, 0, Deadline())
    assert plan.novelty == pytest.approx((0.5, 1.1, 3.0))
    (said,) = [sentence for sentence in plan.assumptions if "novelty" in sentence]
    assert "over 1: t2 (3.0), t1 (1.1);" in said
    assert said in estimate(problem, fake_models(), plan.shards).assumptions
    assert novelty_assumptions(tables, (inf, 1.0, 0.2)) == []


class _WideIsNew(FakeCompute):
    def novelty(self, tables: Sequence[Table], batch_size: int, optimizer: Optimizer) -> Floats:
        return np.array([table.embedding_dim / 32 for table in tables])


def test_tables_are_as_new_as_the_newest_of_the_slices_that_are_priced() -> None:
    models = CostModels(_WideIsNew(), FakeCommunication())
    whole = make_plan(_problem(2), models, Algorithm.DIM_GREEDY, 0, Deadline())
    assert whole.novelty == (2.0, 2.0)
    cut = make_plan(_problem(2, max_shard_dim=16), models, Algorithm.DIM_GREEDY, 0, Deadline())
    assert {shard.width for shard in cut.shards} == {16}
    assert cut.novelty == (0.5, 0.5)
    assert not any("novelty" in said for said in cut.assumptions)
    uneven = [Shard("t0", 0, 48, 0), Shard("t0", 48, 64, 1), Shard("t1", 0, 64, 2)]
    (said,) = [said for said in estimate(_problem(2), models, uneven).assumptions if "novelty" in said]
    assert "t1 (2.0), t0 (1.5);" in said


def test_a_plan_by_memory_alone_says_so() -> None:
    rows = (20_971_520, 20_971_520, 16_777_216, 12_582_912, 12_582_912)
    tables = tuple(Table(f"t{i}", count, 64, 1.0) for i, count in enumerate(rows))
    problem = Problem(tables, Topology("fake", (10_791_105_331,) * 2), 512, Optimizer.SGD)
    plan = make_plan(problem, fake_models(), Algorithm.DIM_GREEDY, 0, Deadline())
    assert any("by memory alone" in sentence for sentence in plan.assumptions)


def test_total_memory_is_refused_before_single_tables() -> None:
    tables = (Table("t0", 100_000_000, 128, 1.0), Table("t1", 10, 128, 1.0))
    problem = Problem(tables, Topology("fake", (GIB, GIB)), 64, Optimizer.SGD)
    with pytest.raises(Infeasible) as caught:
        make_plan(problem, fake_models(), Algorithm.NEUROSHARD, 0, Deadline())
    assert caught.value.data["reason"] == "total_memory"


def test_a_faulty_problem_is_refused_with_its_faults() -> None:
    with pytest.raises(InvalidRequest) as caught:
        make_plan(replace(_problem(), tables=()), fake_models(), Algorithm.NEUROSHARD, 0, Deadline())
    assert [fault.pointer for fault in caught.value.faults] == ["/tables"]


THREE_ON_TWO = Problem(
    tuple(Table(f"t{i}", 6 * 1024 * 1024, 128, 1.0) for i in range(3)),  # 3 GiB each
    Topology("fake", (5 * GIB, 5 * GIB)),
    512,
    Optimizer.SGD,
    Constraints(count_buffers=False),
)


@pytest.mark.parametrize("algorithm", list(SEARCHES))
@pytest.mark.parametrize(("gibibytes", "limits", "pieces"), [(3, (5, 5), [1, 1, 2]), (50, (80, 40, 40), [1, 2])])
def test_one_more_cut_is_made_where_whole_tables_do_not_pack(
    algorithm: Algorithm, gibibytes: int, limits: tuple[int, ...], pieces: list[int]
) -> None:
    tables = tuple(Table(f"t{i}", gibibytes * 2 * 1024 * 1024, 128, 1.0) for i in range(len(pieces)))
    problem = replace(THREE_ON_TWO, tables=tables, topology=Topology("fake", tuple(limit * GIB for limit in limits)))
    plan = make_plan(problem, fake_models(), algorithm, 0, Deadline())
    assert tiling_faults(problem.tables, len(limits), plan.shards) == []
    found = sorted(Counter(shard.table for shard in plan.shards).values())
    assert found == pieces or (algorithm is Algorithm.AUTO and found > pieces)
    assert all(report.memory.total <= report.memory_limit_bytes for report in plan.devices)


def test_it_is_proven_that_no_cuts_however_fine_pack() -> None:
    tables = tuple(Table(f"t{i}", 6 * 1024 * 1024, 128, 1.0) for i in range(5))
    halves = Constraints(count_buffers=False, min_shard_dim=64)
    problem = replace(THREE_ON_TWO, tables=tables, topology=Topology("fake", (19 * GIB // 5,) * 4), constraints=halves)
    with pytest.raises(Infeasible) as caught:
        make_plan(problem, fake_models(), Algorithm.NEUROSHARD, 0, Deadline())
    assert (caught.value.data["reason"], caught.value.data["proven"]) == ("packing", True)


def _stopping_after(checks: int) -> Deadline:
    ticking = itertools.count()
    return Deadline(at=float(checks), clock=lambda: float(next(ticking)))


def test_a_deadline_while_cutting_claims_nothing() -> None:
    late = 0
    for checks in range(60):
        try:
            make_plan(THREE_ON_TWO, fake_models(), Algorithm.NEUROSHARD, 0, _stopping_after(checks))
        except NoPlanInTime:
            late += 1
    assert 0 < late < 60


@settings(max_examples=examples(200), deadline=None)
@given(problem=problems())
def test_what_is_said_to_help_helps(problem: Problem) -> None:
    try:
        make_plan(problem, fake_models(), Algorithm.SIZE_GREEDY, 0, Deadline())
    except Infeasible as error:
        if error.data["reason"] != "total_memory":
            for remedy in error.data["remedies"]:
                make_plan(applied(problem, remedy), fake_models(), Algorithm.SIZE_GREEDY, 0, Deadline())


def test_tables_that_stay_whole_though_only_cuts_are_allowed_are_named() -> None:
    tables = (Table("wide", 1000, 64, 1.0), Table("narrow", 1000, 4, 1.0), Table("odd", 1000, 20, 1.0))
    problem = replace(_problem(sharding_types=COLUMN_WISE, column_multiple=8), tables=tables)
    plan = make_plan(problem, fake_models(), Algorithm.NEUROSHARD, 0, Deadline())
    named = [sentence for sentence in plan.assumptions if "whole" in sentence]
    assert named == ["table_wise is not allowed, but no cut of narrow, odd is: each is placed whole"]
    free = make_plan(replace(problem, constraints=Constraints()), fake_models(), Algorithm.NEUROSHARD, 0, Deadline())
    assert not any("whole" in sentence for sentence in free.assumptions)


class _AssumingCommunication(FakeCommunication):
    def assumptions(self, widths: Floats, wait_ms: Floats, batch_size: int) -> list[str]:
        return [f"{len(widths)} devices of {widths.sum():g} columns were not measured with {batch_size}"]


def test_what_the_communication_model_assumed_is_passed_on() -> None:
    models = CostModels(FakeCompute(), _AssumingCommunication())
    plan = make_plan(_problem(2), models, Algorithm.DIM_GREEDY, 0, Deadline())
    assert "3 devices of 128 columns were not measured with 1024" in plan.assumptions
