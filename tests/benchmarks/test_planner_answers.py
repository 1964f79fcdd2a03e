"""What planners answer: plans with our prices, proofs, and TorchRec's refusals and ways of sharding."""

import math
from dataclasses import replace

import pytest

from benchmarks import planner_answers
from benchmarks.planner_answers import Answer, Outcome, ours, planners, torchrec, torchrec_defaults
from benchmarks.torchrec_plans import COLUMN_TYPES, TorchRecPlan, available, torchrec_plan
from service.domain.plan import Algorithm, Constraints, Problem, Shard, tiling_faults
from service.domain.tables import Optimizer, Table
from service.domain.topology import Topology
from service.usecases.estimate import estimate
from tests.fakes import fake_models

needs_torchrec = pytest.mark.skipif(not available(), reason="TorchRec is not installed: `make bench` does")
TABLES = tuple(Table(f"t{i}", 10_000 * (i + 1), 64, 4.0 + i) for i in range(6))


def problem(memory_bytes: int = 2**30, devices: int = 2) -> Problem:
    topology = Topology("fake", (memory_bytes,) * devices)
    return Problem(TABLES, topology, 4_096, Optimizer.SGD, Constraints(count_buffers=False))


def whole(device_of: list[int]) -> tuple[Shard, ...]:
    return tuple(Shard(table.name, 0, 64, device) for table, device in zip(TABLES, device_of, strict=True))


def test_our_answer_has_the_plan_its_price_and_the_bound() -> None:
    found = ours(Algorithm.DIM_GREEDY, fake_models())(problem())
    assert found.outcome is Outcome.PLANNED
    assert found.answered
    assert not tiling_faults(TABLES, 2, found.shards)
    assert found.cost_ms == estimate(problem(), fake_models(), found.shards).max_cost_ms
    assert 0 < found.bound_ms <= found.cost_ms
    assert found.seconds > 0


def test_a_proof_answers_and_running_out_of_time_does_not() -> None:
    proven = ours(Algorithm.NEUROSHARD, fake_models())(problem(memory_bytes=2**20))
    assert (proven.outcome, proven.reason) == (Outcome.PROVEN, "total_memory")
    assert proven.answered
    late = ours(Algorithm.NEUROSHARD, fake_models(), limit_s=0.0)(problem())
    assert late.outcome is Outcome.NOT_IN_TIME
    assert not late.answered
    assert math.isnan(late.cost_ms)


def runs_of(monkeypatch: pytest.MonkeyPatch, plans: dict[int | None, TorchRecPlan]) -> None:
    def run(
        asked: Problem, types: object = None, width: int | None = None, timeout_s: int | None = None
    ) -> TorchRecPlan:
        return plans[width]

    monkeypatch.setattr(planner_answers, "torchrec_plan", run)


def test_torchrecs_answer_is_the_cheapest_of_its_runs_and_takes_the_time_of_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    good, bad = whole([0, 1, 0, 1, 0, 1]), whole([0] * 6)
    runs_of(
        monkeypatch,
        {
            None: TorchRecPlan(1.0, {"table_wise": 6}, bad),
            64: TorchRecPlan(2.0, {"column_wise": 6}, good),
            32: TorchRecPlan(4.0, {}, (), "strict_constraints"),
        },
    )
    found = torchrec(fake_models(), (None, 64, 32))(problem())
    assert (found.outcome, found.seconds, found.sharding_types) == (Outcome.PLANNED, 7.0, {"column_wise": 6})
    assert found.cost_ms == estimate(problem(), fake_models(), good).max_cost_ms
    assert math.isnan(found.bound_ms)


@pytest.mark.parametrize(
    ("plan", "outcome", "answered"),
    [
        (TorchRecPlan(1.0, {}, (), "partition"), Outcome.NOT_FOUND, False),
        (TorchRecPlan(1.0, {"row_wise": 6}, ()), Outcome.NOT_PRICED, True),
        (TorchRecPlan(1.0, {"table_wise": 6}, whole([0] * 6)), Outcome.OVERFULL, False),
    ],
)
def test_what_is_no_plan_that_can_be_priced_has_no_price(
    monkeypatch: pytest.MonkeyPatch, plan: TorchRecPlan, outcome: Outcome, answered: bool
) -> None:
    runs_of(monkeypatch, {None: plan})
    small = problem(memory_bytes=30 * 2**20)
    for found in (torchrec_defaults(fake_models())(small), torchrec(fake_models(), (None,))(small)):
        assert (found.outcome, found.answered) == (outcome, answered)
        assert not found.priced
        assert math.isnan(found.cost_ms)


def test_random_placement_is_no_planner_and_torchrec_is_one_where_it_is_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for installed in (False, True):
        monkeypatch.setattr(planner_answers, "available", lambda installed=installed: installed)
        names = planners(fake_models()).keys()
        assert ("torchrec" in names) is installed
        assert {"neuroshard", "dim_greedy", "lookup_greedy"} <= names
        assert "random" not in names


@needs_torchrec
def test_torchrecs_plan_places_every_column_within_memory() -> None:
    asked = problem(memory_bytes=30 * 2**20)
    assert sum(table.weight_bytes for table in TABLES) > 0.8 * sum(asked.topology.memory_bytes)
    for width in (None, 16):
        plan = torchrec_plan(asked, COLUMN_TYPES, width)
        assert plan.refused is None
        assert not tiling_faults(TABLES, 2, plan.shards)
        assert sum(plan.sharding_types.values()) == len(TABLES)
        found = estimate(asked, fake_models(), plan.shards)
        assert all(report.memory.total <= report.memory_limit_bytes for report in found.devices)


@needs_torchrec
def test_torchrec_cuts_a_table_that_no_device_holds_only_where_slices_may_be_narrow_enough() -> None:
    asked = replace(problem(memory_bytes=12 * 2**20, devices=4), tables=(Table("wide", 60_000, 128, 4.0),))
    assert torchrec_plan(asked).refused
    plan = torchrec_plan(asked, COLUMN_TYPES, 32)
    assert {(shard.start, shard.stop) for shard in plan.shards} == {(0, 32), (32, 64), (64, 96), (96, 128)}
    assert len({shard.device for shard in plan.shards}) == 4


@needs_torchrec
def test_torchrecs_plan_by_rows_has_its_types_and_no_shards() -> None:
    plan = torchrec_plan(problem(devices=4), ("row_wise",))
    assert (plan.sharding_types, plan.shards, plan.refused) == ({"row_wise": 6}, (), None)


def test_torchrec_is_not_asked_for_what_it_would_count_otherwise() -> None:
    uneven = replace(problem(), topology=Topology("fake", (2**30, 2**20)))
    for asked in (uneven, replace(problem(), optimizer=Optimizer.ADAM)):
        with pytest.raises(ValueError, match="memory_bytes must be the same for all and optimizer must be sgd"):
            torchrec_plan(asked)


def test_an_answer_without_a_plan_is_no_answer() -> None:
    answers = {outcome: Answer(outcome, 1.0).answered for outcome in Outcome}
    assert {outcome for outcome, answered in answers.items() if answered} == {
        Outcome.PLANNED, Outcome.CUT_SHORT, Outcome.PROVEN, Outcome.NOT_PRICED,
    }  # fmt: skip
