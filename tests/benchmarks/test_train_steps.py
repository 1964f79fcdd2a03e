"""Steps side by side: the tasks and their lookups, what tells plans apart, and training under two plans."""

import math
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from benchmarks import shared_data
from benchmarks.step_report import (
    ArmSteps,
    Ratio,
    TaskSteps,
    comparison_lines,
    geometric_mean,
    mean_ratio,
    noise_line,
    parts_lines,
    step_ratio,
)
from benchmarks.step_tasks import MLPERF, RANK_BYTES, TASKS, Batch, batches, step_task
from benchmarks.torchrec_plans import available, quiet
from benchmarks.train_steps import QUICK, refuse_unlike, report
from service.domain.errors import MeasurementRefused
from service.domain.plan import Problem
from service.domain.tables import Optimizer, ReuseHistogram, Table
from service.domain.topology import Topology
from service.profiling.ranks import run_ranks
from service.profiling.workload import measured_histogram
from shardwright_client import Costs, Shard

if TYPE_CHECKING:
    from benchmarks.step_ranks import Work

HISTOGRAM = ReuseHistogram(64, (0.5, 0.25, 0.25, *(0.0,) * 14))
TABLES = (
    Table("films", 400, 16, 3.0, reuse_histogram=HISTOGRAM),
    Table("shops", 50, 8, 2.0, num_features=2),
    Table("words", 90, 32, 5.0),
)
PROBLEM = Problem(TABLES, Topology("cpu-fbgemm", (2**30,) * 2), 64, Optimizer.SGD)


def test_batches_look_up_what_the_tables_say_and_differ() -> None:
    one, other = batches(PROBLEM, 2, seed=3)
    assert one.lengths.shape == (4, 64)
    assert one.lengths.sum(1).tolist() == [3 * 64, 64, 64, 5 * 64]
    assert measured_histogram(one.ids[: 3 * 64]) == pytest.approx(HISTOGRAM.fractions, abs=0.02)
    assert not np.array_equal(one.ids, other.ids)
    assert np.array_equal(one.ids, batches(PROBLEM, 1, seed=3)[0].ids)


def test_ranks_have_their_samples_of_every_feature() -> None:
    whole = Batch(np.arange(7), np.array([[2, 0, 1], [1, 3, 0]]))
    first, second = whole.part(0, 2), whole.part(1, 2)
    assert (first.ids.tolist(), first.lengths.tolist()) == ([0, 1, 3, 4, 5, 6], [[2, 0], [1, 3]])
    assert (second.ids.tolist(), second.lengths.tolist()) == ([2], [[1], [0]])


@pytest.mark.skipif(not shared_data.present(), reason="the public data is not on this machine")
def test_copies_of_a_tasks_tables_fit() -> None:
    assert len(set(TASKS)) == 10
    task = step_task(MLPERF, 2_048, 3, 2**30)
    assert task.cap is not None
    assert 0.9 * 2**30 < 3 * sum(task.problem.memory_of(table).total for table in task.problem.tables) <= 2**30
    assert task.problem.topology.memory_bytes == (RANK_BYTES,) * 2
    published = step_task("4gpu_maxdim128:1", 2_048, 3, 2**50)
    assert published.cap is None
    assert len(published.problem.tables) == 17


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("5gpu:1", "there is mlperf_dlrm_dcnv2, and SET:POSITION"),
        ("4gpu_maxdim128:100", "got '100'"),
        ("4gpu_maxdim128", "got ''"),
        (f"{MLPERF}:1", "SET:POSITION"),
    ],
)
def test_tasks_that_are_not_there(name: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        step_task(name, 64, 1, 2**30)


def test_a_plan_is_faster_only_beyond_noise() -> None:
    noise = np.random.default_rng(0).normal(1.0, 0.05, size=(2, 5, 20))
    assert step_ratio(noise[0], noise[1]).verdict == "within noise"
    slow = step_ratio(1.2 * noise[0], noise[1])
    assert (slow.verdict, step_ratio(noise[1], 1.2 * noise[0]).verdict) == ("slower", "faster")
    assert slow.low < slow.value < slow.high


def test_drift_of_the_machine_is_no_noise() -> None:
    drift = np.linspace(1.0, 3.0, 20).reshape(4, 5)
    found = step_ratio(90.0 * drift, 100.0 * drift)
    assert (found.low, found.value, found.high) == pytest.approx((0.9, 0.9, 0.9))


def test_rounds_of_a_start_make_nothing_certain() -> None:
    layouts = np.repeat([[1.02], [0.97], [1.01], [0.99]], 50, axis=1)
    assert step_ratio(layouts, np.ones_like(layouts)).verdict == "within noise"
    assert step_ratio(0.9 * layouts, np.ones_like(layouts)).verdict == "faster"


def test_the_mean_of_ratios_is_geometric() -> None:
    assert geometric_mean([0.5, 2.0]) == pytest.approx(1.0)


def test_the_noise_of_a_mean_is_less_than_that_of_the_tasks_by_the_root_of_their_number() -> None:
    noisy = Ratio(1.0, math.exp(-0.06), math.exp(0.06))
    found = mean_ratio([noisy] * 9)
    assert (found.low, found.value, found.high) == pytest.approx((math.exp(-0.02), 1.0, math.exp(0.02)))
    assert mean_ratio([Ratio(0.8, 0.8, 0.8), Ratio(1.25, 1.25, 1.25)]).value == pytest.approx(1.0)


def arm(step_ms: float, computes: tuple[float, float], predicted: bool = True) -> ArmSteps:
    """Two ranks whose compute is predicted 1 ms too low; exchanges take 2 ms each."""
    totals = [Costs(c / 4, 3 * c / 4 - 1, 0.0, 2.0, 2.0, c + 3) for c in computes]
    parts = [
        {"forward_compute_ms": c / 4, "backward_compute_ms": 3 * c / 4, "total_ms": max(computes) + 4} for c in computes
    ]
    kinds = {"table_wise": 9} if predicted else {"table_wise": 7, "row_wise": 2}
    return ArmSteps(
        np.full((3, 2), step_ms),
        (step_ms - 9, step_ms - 5),
        0.25,
        kinds,
        tuple(totals) if predicted else None,
        tuple(parts),
    )


def results() -> list[TaskSteps]:
    arms = {"ours": arm(45.0, (20.0, 20.0)), "peer": arm(50.0, (25.0, 15.0)), "free": arm(48.0, (22.0, 18.0), False)}
    alike = {name: arm(30.0, (10.0, 10.0)) for name in arms}
    return [TaskSteps("first", 9, 1_000, arms, ()), TaskSteps("second", 9, None, alike, [("ours", "peer")])]


def test_steps_are_compared_task_by_task() -> None:
    lines = comparison_lines(results(), "ours", "peer")
    cells = "45.0 | 50.0 | 0.900 | 0.900 to 0.900 | faster | +5.0 | +5.0 | 0.25 | 0.25 |"
    assert f"| first | 9 | 1,000 | {cells}" in lines
    assert any(line.startswith("| second | 9 | all | 30.0 | 30.0 | 1.000 |") for line in lines)
    assert lines[-2].startswith(
        "Geometric mean of the ratios: 0.949, with noise of 0.949 to 0.949. ours is faster in 1 of 2 tasks,"
    )
    assert lines[-2].endswith("busy (below): 0.943.")
    assert "| +3.0 | - |" in comparison_lines(results(), "ours", "free")[4]


def test_equal_plans_tell_the_noise() -> None:
    assert "the same plan 1 times. The ratios of their steps are 1.000 to 1.000, and 0" in noise_line(results())
    assert noise_line(results()[:1]) == "No two planners gave the same plan of a task."


def test_predicted_parts_stand_beside_measured_ones() -> None:
    lines = parts_lines(results()[:1])
    assert "| first | ours | 9 table_wise | 45.0 | 40.0 | 23.0 | 24.0 | 19.0, 19.0 | 20.0, 20.0 |" in lines
    assert "| first | free | 2 row_wise, 7 table_wise | 48.0 | 43.0 | - | 26.0 | - | 22.0, 18.0 |" in lines
    assert "Compute of 4 ranks: predicted is 5.2% away from measured on average, bias -5.2%." in lines


def test_the_report_has_every_part() -> None:
    text = "\n".join(report(results(), QUICK, {"compute": "c/1", "communication": "d/2"}))
    for said in ("## ours and peer", "## ours and free", "Noise: ", "## Predicted and measured", "c/1 and d/2"):
        assert said in text


def test_plans_that_train_something_else_are_refused() -> None:
    refuse_unlike("first", {"ours": [0.69, 0.68], "peer": [0.69001, 0.68]})
    with pytest.raises(MeasurementRefused, match="first: plans must train the same"):
        refuse_unlike("first", {"ours": [0.69, 0.68], "peer": [0.69, 0.70]})


@pytest.mark.slow
@pytest.mark.skipif(not available(), reason="TorchRec is not installed: `make bench` does")
def test_ranks_train_the_same_under_every_plan(tmp_path: Path) -> None:
    with quiet():
        work = two_plans()
        from benchmarks.step_ranks import train
    ranks = run_ranks(partial(train, work, tmp_path, [0, 0]), 2, 240)
    refuse_unlike("made up", {name: [rank[name].loss for rank in ranks] for name in work.plans})
    for rank in ranks:
        for trained in rank.values():
            assert trained.step_ms.shape == (work.rounds,)
            assert (trained.step_ms > 0).all()
            # Both ranks are on one core.
            assert 0 < trained.processor_ms < trained.step_ms.max()
            assert set(trained.parts_ms) == {"forward_compute_ms", "forward_comm_ms", "backward_compute_ms",
                                             "backward_comm_ms", "total_ms"}  # fmt: skip
            assert min(trained.parts_ms.values()) > 0


def two_plans() -> "Work":
    """One plan of the made-up tables with a cut one, one of whole tables."""
    from benchmarks.step_models import PooledModel, sharders
    from benchmarks.step_ranks import Work
    from shardwright_client.torchrec import find_tables, to_sharding_plan

    tables = find_tables(PooledModel(PROBLEM), sharders())
    cut = [
        Shard("films", (0, 12), 1),
        Shard("films", (12, 16), 0),
        Shard("shops", (0, 8), 1),
        Shard("words", (0, 32), 1),
    ]
    whole = [Shard(table.name, (0, table.embedding_dim), i % 2) for i, table in enumerate(tables)]
    plans = {name: to_sharding_plan(shards, tables, "cpu", 2) for name, shards in (("cut", cut), ("whole", whole))}
    return Work(PROBLEM, plans, rounds=3, steps=2, batches=2, seed=1)
