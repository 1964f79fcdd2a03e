"""The comparison of policies: dead ends count, means are of the tasks meant, what is trained is found again."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks import shared_data
from benchmarks.planner_answers import Outcome
from benchmarks.policies import keep, placing, trained_policies
from benchmarks.policy_curves import Course, beside, curve, curve_lines, draw
from benchmarks.policy_families import JudgedFamily, autoshard_problems, dreamshard_problems, judged_families
from benchmarks.policy_measured import BEST_HEURISTIC, Named, carried_out, report_lines
from benchmarks.policy_quality import (
    GREEDY,
    SAMPLES,
    WHOLE_NEUROSHARD,
    FamilyResult,
    Placements,
    baselines,
    cutters,
    family_lines,
    judged,
    placements,
    policy_placers,
    summary_lines,
)
from service.domain.plan import Algorithm, Constraints, Problem, ShardingType
from service.domain.tables import DataType, Optimizer
from service.domain.topology import Topology
from service.policies.dreamshard import DreamShardNetworks
from service.policies.table_features import POLICY_FEATURES_VERSION
from service.profiling.plan_bench import PlanBench, PlanBenchSettings
from service.profiling.pools import generated_pool
from service.registry.store import ModelStore
from service.search.catalogue import TICKS_PER_MS, Integers
from service.search.greedy import WEIGHTS, greedy_placement
from service.search.precut import posed
from service.search.rewards import compute_balance
from service.search.simulator import simulate
from service.search.workspace import Workspace
from service.training.task_families import TaskFamily, draw_problems
from tests.fakes import fake_models
from tests.policies.random_networks import random_arrays, random_networks
from tests.profiling.test_plan_bench import FakeExchange

needs_data = pytest.mark.skipif(not shared_data.present(), reason="the public data is not on this machine")
MODELS = fake_models()
WHOLE = Constraints(frozenset({ShardingType.TABLE_WISE}), count_buffers=False)
FAMILY = TaskFamily("small", (6, 9), (2, 3), (16, 32), batch_sizes=(512,), count_buffers=False)


def problems(count: int, family: TaskFamily = FAMILY) -> tuple[Problem, ...]:
    drawn = draw_problems(family, generated_pool(60), "fake", count, 3)
    return tuple(replace(problem, constraints=WHOLE) for problem in drawn)


def spaces(count: int) -> list[Workspace]:
    return [posed(problem, MODELS) for problem in problems(count)]


def stuck(workspace: Workspace) -> Integers | None:
    return None


def on_one_device(workspace: Workspace) -> Integers:
    return np.zeros(len(workspace.pieces), dtype=np.int64)


def placed(*costs: float | Sequence[float]) -> Placements:
    values = np.array([[cost] if isinstance(cost, float) else cost for cost in costs]).T
    return Placements(values, np.full(values.shape, 0.5), np.zeros(values.shape, dtype=np.bool_))


def result(bounds: Sequence[float], **others: Placements) -> FamilyResult:
    greedy = {name: placed(30.0, 30.0, 30.0) for name in GREEDY}
    greedy |= {"dim_greedy": placed(10.0, 20.0, 12.0), "size_greedy": placed(20.0, 9.0, 12.4)}
    return FamilyResult("some", {**greedy, **others}, np.array(bounds), {"auto": np.array([9.0])})


def row(lines: Sequence[str], name: str) -> list[str]:
    (line,) = [line for line in lines if line.startswith(f"| {name} |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_at_a_dead_end_size_greedys_plan_counts() -> None:
    workspaces = spaces(3)
    found = placements(workspaces, [stuck, on_one_device])
    assert found.dead.tolist() == [[True] * 3, [False] * 3]
    for n, workspace in enumerate(workspaces):
        placement = greedy_placement(workspace, WEIGHTS[Algorithm.SIZE_GREEDY])
        assert placement is not None
        assert found.costs[0, n] == simulate(workspace, placement[None]).plan[0] / TICKS_PER_MS
        assert found.balances[0, n] == compute_balance(workspace, placement[None])[0]
        assert found.balances[1, n] == 0.0


def test_the_best_heuristic_is_a_single_one_of_the_family_or_of_its_tasks_with_room() -> None:
    # All four heuristics cost more than 1.05 of the bound of the first two tasks.
    found = result([9.0, 8.0, 11.9], policy=placed((8.0, 9.0), (10.0, 12.0), (12.0, 12.0)))
    assert found.room.tolist() == [True, True, False]
    best, cost = found.best_heuristic()
    assert best == "size_greedy"
    assert cost == pytest.approx((20 + 9 + 12.4) / 3)
    assert found.best_heuristic(found.room) == ("size_greedy", 14.5)
    assert found.over_best("policy") == pytest.approx(np.array([30.0, 33.0]) / 41.4)
    assert found.over_best("policy", found.room) == pytest.approx(np.array([18.0, 21.0]) / 29)
    cells = row(family_lines(found), "policy")
    assert cells == [
        "policy", f"{63 / 6:.2f}", "0.761 (0.725 to 0.797)", f"{(8.5 / 9 + 11 / 8 + 12 / 11.9) / 3:.3f}",
        "0.672 (0.621 to 0.724)", f"{(8.5 / 9 + 11 / 8) / 2:.3f}", "0", "0.500",
    ]  # fmt: skip
    assert any(line.endswith("whole ones, first 1 tasks: auto 0.900.") for line in family_lines(found))
    single = result([9.9, 8.9, 11.9])
    assert single.room.tolist() == [False, False, False]
    assert row(family_lines(single), "size_greedy")[4:6] == ["-", "-"]


def test_what_misses_the_limits_is_named() -> None:
    good, bad = placed(9.0, 10.0, 12.0), placed(15.0, 15.0, 13.0)
    found = result([9.0, 8.0, 11.9], good=good, bad=bad)
    lines = summary_lines([found], ["dim_greedy", "good", "bad"])
    assert row(lines, "some")[:4] == ["some", "3", "2", "1.014"]
    assert "- good: above 1.02 of the best single heuristic on no family; does not beat it on tasks with room of no " \
        "family" in lines  # fmt: skip
    assert (
        "- bad: above 1.02 of the best single heuristic on some; does not beat it on tasks with room of some" in lines
    )


def test_a_family_is_placed_by_all_whole_and_some_of_it_with_cuts() -> None:
    policies = {"random weights": [random_networks(1), random_networks(2)]}
    placers = {**baselines(), **policy_placers(policies)}
    family = JudgedFamily("small", problems(3))
    found = judged(family, MODELS, placers, cutters(policies), 2, 5.0)
    assert set(found.placed) == {
        "random", *GREEDY, WHOLE_NEUROSHARD, "random weights, likeliest", f"random weights, best of 1 + {SAMPLES}",
    }  # fmt: skip
    for each in found.placed.values():
        assert each.costs.shape[1] == 3
        assert (each.costs >= found.bounds - 1e-9).all()
        assert not each.dead.any()
    likeliest, sampled = (found.placed[name].costs for name in policy_placers(policies))
    assert likeliest.shape == (2, 3)
    assert (sampled <= likeliest).all()
    best = np.min([found.placed[name].costs[0] for name in GREEDY], axis=0)
    assert (found.placed[WHOLE_NEUROSHARD].costs[0] <= best).all()
    assert {name: costs.shape for name, costs in found.cut.items()} == dict.fromkeys(cutters(policies), (2,))
    # Cuts can only be a gain to those that also know the whole tables.
    assert (found.cut["neuroshard"] <= best[:2]).all()


class SteppedTrainer:
    """Its policy has other random weights after each step."""

    steps = 5

    def __init__(self, seed: int) -> None:
        self.done, self._seed = 0, seed

    def step(self) -> Mapping[str, float]:
        self.done += 1
        return {"seconds/measuring": 1.0, "loss": 7.0}

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        pass

    def arrays(self) -> Mapping[str, NDArray[np.float32]]:
        return random_arrays(10 * self._seed + self.done)


def policy_of(arrays: Mapping[str, NDArray[np.float32]]) -> DreamShardNetworks:
    return DreamShardNetworks("of a course", arrays, POLICY_FEATURES_VERSION)


def course() -> Course:
    return Course("stepped", spaces(1), spaces(3), lambda workspaces, seed: SteppedTrainer(seed), policy_of, 2)


def test_a_policy_is_looked_at_before_it_is_trained_on_the_way_and_at_its_end(tmp_path: Path) -> None:
    followed = course()
    curves = [curve(followed, seed) for seed in (1, 2)]
    assert [look.done for look in curves[0].looks] == [0, 2, 4, 5]
    for run in curves:
        for look in run.looks:
            same = policy_of(random_arrays(10 * run.seed + look.done))
            again = [placements(followed.held_out, several) for several in policy_placers({"p": [same]}).values()]
            for ours, theirs in zip(look.placed.values(), again, strict=True):
                assert ours.costs.tolist() == theirs.costs.tolist()
        assert run.parts["measuring"] == 5.0
        assert sum(run.parts.values()) == pytest.approx(run.looks[-1].seconds)
    others = beside(followed)
    lines = curve_lines(followed, curves, others)
    start, end = (curves[0].looks[n].placed["likeliest"].costs.mean() for n in (0, -1))
    best = min(others[name].costs.mean() for name in GREEDY)
    assert row(lines, "seed 1")[1:3] == [f"{start / best:.3f}", f"{end / best:.3f}"]
    assert min(float(row(lines, name)[2]) for name in GREEDY) == 1.0
    draw(followed, curves, others, tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_what_courses_came_to_is_found_again_the_newest_of_each_seed(tmp_path: Path) -> None:
    store = ModelStore(str(tmp_path))
    assert trained_policies(store) == {}
    runs = [curve(course(), seed) for seed in (1, 0)]
    for name, run in (("a", runs[0]), ("b", runs[0]), ("a", runs[1]), ("a", runs[0])):
        keep(store, Algorithm.DREAMSHARD, name, run)
    found = trained_policies(store)
    assert {name: [policy.version for policy in several] for name, several in found.items()} == {
        "a": ["cpu-fbgemm/dreamshard/3", "cpu-fbgemm/dreamshard/4"],
        "b": ["cpu-fbgemm/dreamshard/2"],
    }


def test_placing_is_answered_with_its_cost_or_a_dead_end() -> None:
    (problem,) = problems(1)
    found = placing(random_networks(0), 0, MODELS)(problem)
    placer, _ = policy_placers({"p": [random_networks(0)]}).values()
    assert found.outcome is Outcome.PLANNED
    assert found.cost_ms == placements([posed(problem, MODELS)], placer).costs[0, 0]
    assert found.seconds > 0
    tight = problems(12, replace(FAMILY, tables=(7, 9), tightness=1.02))
    outcomes = [placing(random_networks(0), 0, MODELS)(each).outcome for each in tight]
    assert Outcome.NOT_FOUND in outcomes


def test_plans_are_carried_out_beside_the_cheapest_heuristics() -> None:
    family = TaskFamily("tiny", (5, 6), (2,), (16,), (DataType.FP16,), (Optimizer.SGD,), (64,), count_buffers=False)
    small = [
        replace(table, num_embeddings=500, distinct_rows=None, reuse_histogram=None) for table in generated_pool(20)
    ]
    tiny = draw_problems(family, small, "fake", 2, 0)
    bench = PlanBench(PlanBenchSettings(repeats=5, memory_bytes=2**25), exchange_bench=FakeExchange(5))
    policies = {"policy": [random_networks(0)]}
    results = carried_out("tiny x 2", [replace(p, constraints=WHOLE) for p in tiny], policies, MODELS, bench)
    assert [plan.name for plan in results[0].found.plans] == ["random", BEST_HEURISTIC, WHOLE_NEUROSHARD, "policy"]
    for result in results:
        predicted = {plan.name: plan.predicted_ms for plan in result.found.plans}
        assert predicted[WHOLE_NEUROSHARD] <= predicted[BEST_HEURISTIC] + 1e-9
    lines = report_lines({"tiny x 2": results, "none": []}, policies)
    assert row(lines, BEST_HEURISTIC)[3:] == ["1.000", "1.000", "0", "2", "0"]
    ratio = np.mean([r.found.plans[3].measured_ms for r in results]) / np.mean(
        [r.found.plans[1].measured_ms for r in results]
    )
    assert row(lines, "policy")[4] == f"{ratio:.3f}"


@pytest.mark.parametrize("text", ["T20", "T30:4:8", "T20:4:x", "T20:4:8:1"])
def test_sets_to_measure_are_named_by_set_devices_and_tasks(text: str) -> None:
    assert Named.parse("T50:8:4") == Named("T50", 8, 4)
    with pytest.raises(ValueError, match="needs T20 or T50"):
        Named.parse(text)


@needs_data
def test_judged_families_have_no_table_of_the_published_train_halves() -> None:
    pool = shared_data.pool()
    trained_on = {pool[i].name for task in shared_data.tasks("dreamshard_T50_seed0")["train"] for i in task}
    trained_on |= {name for problem in dreamshard_problems("T20", "train") for name in _in_pool(problem)}
    found = {family.name: family.problems for family in judged_families(3)}
    assert len(found) == 13
    for name, several in found.items():
        assert len(several) == 3
        for problem in several:
            assert problem.constraints.sharding_types == {ShardingType.TABLE_WISE}
            assert not trained_on & set(_in_pool(problem))
        tables, _, devices = name.removeprefix("T").partition(" x ")
        if devices:
            assert {len(problem.tables) for problem in several} == {int(tables)}
            assert {problem.topology.device_count for problem in several} == {int(devices.split(",")[0])}
    (first, *_) = found["T20 x 4"]
    assert first.topology == Topology("cpu-fbgemm", (5 * 2**30,) * 4)
    assert {(table.embedding_dim, table.data_type) for table in first.tables} == {(16, DataType.FP16)}


@needs_data
def test_autoshards_tasks_leave_room_in_memory() -> None:
    for tables, devices in ((80, 8), (300, 8), (80, 4)):
        for problem in autoshard_problems("train", tables, devices, count=2):
            needs = [problem.memory_of(table).total for table in problem.tables]
            assert sum(problem.topology.memory_bytes) > 1.4 * sum(needs)
            assert {table.embedding_dim for table in problem.tables} == {16, 32}


def _in_pool(problem: Problem) -> list[str]:
    """Names of a problem's tables as the pool has them."""
    return [table.name.rpartition("_")[0] for table in problem.tables]
