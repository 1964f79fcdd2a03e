"""Planning from a problem to a priced, merged placement."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.deadline import Deadline
from service.domain.errors import Infeasible, InvalidRequest, UnsupportedAlgorithm
from service.domain.plan import Algorithm, Constraints, Problem, ShardingType, memory_on_devices, tiling_faults
from service.domain.tables import Optimizer, Table
from service.domain.topology import Topology
from service.search.algorithms import SEARCHES
from service.usecases.estimate import estimate
from service.usecases.make_plan import PlanStatus, make_plan
from tests.fakes import fake_models
from tests.search.strategies import problems

GIB = 1 << 30
COLUMN_WISE = frozenset({ShardingType.COLUMN_WISE})


def _problem(count: int = 6, devices: int = 3, optimizer: Optimizer = Optimizer.SGD, **constraints: object) -> Problem:
    tables = tuple(Table(f"t{i}", 1000 * (i + 1), 64, 1.0 + i) for i in range(count))
    limits = Constraints(**constraints)  # type: ignore[arg-type]
    return Problem(tables, Topology("fake", (GIB,) * devices), 1024, optimizer, limits)


@settings(max_examples=120, deadline=None)
@given(
    problem=problems(max_tables=10),
    algorithm=st.sampled_from(list(SEARCHES)),
    widest=st.sampled_from([48, 64, 1024]),
    seed=st.integers(0, 9),
)
def test_plans_tile_every_table_hold_in_memory_and_repeat(
    problem: Problem, algorithm: Algorithm, widest: int, seed: int
) -> None:
    problem = replace(problem, constraints=replace(problem.constraints, max_shard_dim=widest))
    try:
        plan = make_plan(problem, fake_models(), algorithm, seed, Deadline())
    except Infeasible as error:
        assert error.data["remedies"]
        return
    assert tiling_faults(problem.tables, problem.topology.device_count, plan.shards) == []
    assert max(shard.width for shard in plan.shards) <= widest
    memory = memory_on_devices(problem, plan.shards)
    assert [report.memory for report in plan.devices] == memory
    assert all(report.memory.total <= report.memory_limit_bytes for report in plan.devices)
    assert plan.max_cost_ms == max(report.cost.total for report in plan.devices)
    assert plan.status == PlanStatus.COMPLETE
    assert make_plan(problem, fake_models(), algorithm, seed, Deadline()) == plan


@settings(max_examples=60, deadline=None)
@given(problem=problems(max_tables=10), algorithm=st.sampled_from(list(SEARCHES)))
def test_an_estimate_of_a_plan_is_its_own_prediction(problem: Problem, algorithm: Algorithm) -> None:
    try:
        plan = make_plan(problem, fake_models(), algorithm, 0, Deadline())
    except Infeasible:
        return
    priced = estimate(problem, fake_models(), plan.shards)
    assert priced.devices == plan.devices
    assert priced.max_cost_ms == plan.max_cost_ms
    assert priced.models == plan.models == {"compute": "fake/compute/1", "communication": "fake/communication/1"}


@pytest.mark.parametrize("algorithm", [name for name in Algorithm if name not in SEARCHES])
def test_an_algorithm_that_does_not_exist_yet_is_refused_naming_those_that_do(algorithm: Algorithm) -> None:
    with pytest.raises(UnsupportedAlgorithm) as caught:
        make_plan(_problem(), fake_models(), algorithm, 0, Deadline())
    assert caught.value.data["algorithm"] == algorithm.value
    available = caught.value.data["available"]
    assert sorted(available) == sorted(
        ["random", "dim_greedy", "size_greedy", "lookup_greedy", "size_lookup_greedy", "neuroshard"]
    )


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
        plan = make_plan(problem, fake_models(), Algorithm.NEUROSHARD, 0, Deadline())
        assert not any("row-wise" in sentence for sentence in plan.assumptions)


def test_what_the_compute_model_assumed_is_passed_on() -> None:
    plan = make_plan(_problem(2), fake_models(), Algorithm.DIM_GREEDY, 0, Deadline())
    assert plan.assumptions == ("no reuse histogram: t0, t1",)


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
