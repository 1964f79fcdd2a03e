"""The comparison of planners: its means leave out what has no price, sizes that take too long are not asked for."""

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from benchmarks import shared_data
from benchmarks.planner_answers import Answer, Outcome
from benchmarks.planning_times import LONGEST_S, Size, Timed, draw, grown_problem, time_lines, timed
from benchmarks.public_models import MODELS, model_lines, model_problem
from benchmarks.search_tasks import HEURISTICS
from benchmarks.task_quality import SetAnswers, asked, set_lines
from service.domain.plan import Problem, Shard
from service.profiling.pools import generated_pool

NAN = math.nan


def answers(*costs_ms: float, bound_ms: float = NAN, seconds: float = 1.0) -> list[Answer]:
    return [
        Answer(Outcome.NOT_FOUND, seconds, reason="packing")
        if math.isnan(cost)
        else Answer(Outcome.PLANNED, seconds, cost, bound_ms)
        for cost in costs_ms
    ]


def set_answers(**found: Sequence[Answer]) -> SetAnswers:
    greedy = {algorithm.value: answers(NAN, NAN, NAN) for algorithm in HEURISTICS}
    return SetAnswers("set", {**greedy, **found})


def row(found: SetAnswers, planner: str) -> list[str]:
    (line,) = [line for line in set_lines(found) if line.startswith(f"| {planner} |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_means_are_over_the_tasks_where_both_have_a_plan() -> None:
    found = set_answers(
        neuroshard=answers(8.0, 9.0, 5.0, bound_ms=4.0),
        dim_greedy=answers(10.0, NAN, NAN),
        size_greedy=answers(12.0, 12.0, NAN),
        torchrec=answers(NAN, 18.0, 5.0),
    )
    assert row(found, "neuroshard") == [
        "neuroshard", "3 of 3", "3", "0", f"{(0.8 + 0.75) / 2:.3f}", f"{(0.5 + 1.0) / 2:.3f}",
        f"{22 / 12 - 1:.1%}", "100.0%", "125.0%", "1.00", "1.00",
    ]  # fmt: skip
    assert row(found, "torchrec")[1:3] == ["2 of 3", "2"]
    assert row(found, "lookup_greedy")[1:5] == ["0 of 3", "0", "0", "-"]
    assert "- torchrec: no plan found (packing) 1 times" in set_lines(found)


def test_auto_is_compared_task_by_task() -> None:
    found = set_answers(auto=answers(7.0, 9.0, 6.0), neuroshard=answers(8.0, 9.0, 5.0))
    assert "- auto is cheaper than neuroshard on 1 of 3 tasks, costlier on 1" in set_lines(found)
    assert not any("best greedy on" in line for line in set_lines(found))


def test_what_torchrec_chooses_by_default_is_counted() -> None:
    by_rows = Answer(Outcome.NOT_PRICED, 3.0, sharding_types=Counter(row_wise=3, table_wise=1))
    found = set_answers(neuroshard=answers(1.0, 1.0), torchrec_defaults=[by_rows, by_rows])
    assert row(found, "torchrec_defaults")[1:3] == ["2 of 2", "2"]
    assert any("6 row_wise, 2 table_wise; 2 of the plans cannot be priced" in line for line in set_lines(found))


def test_a_planner_can_be_asked_for_the_first_tasks_alone() -> None:
    pool = generated_pool(20)
    problems = {number: grown_problem(pool, Size(4, 2)) for number in (0, 3, 7)}
    asked_for: Counter[str] = Counter()

    def planner(name: str, problem: Problem) -> Answer:
        asked_for[name] += 1
        return answers(float(asked_for[name]))[0]

    every = {"all": lambda p: planner("all", p), "slow": lambda p: planner("slow", p)}
    found = asked("set", problems, every, {"slow": 2})
    assert asked_for == {"all": 3, "slow": 2}
    assert np.array_equal(found.costs("slow"), [1.0, 2.0, NAN], equal_nan=True)


def test_a_size_has_the_same_tables_for_any_number_of_devices_and_room_for_each() -> None:
    pool = generated_pool(50)
    few, many = grown_problem(pool, Size(30, 4)), grown_problem(pool, Size(30, 16))
    assert few.tables == many.tables
    assert len({table.name for table in few.tables}) == 30
    for problem in (few, many):
        weights = [table.weight_bytes for table in problem.tables]
        assert min(problem.topology.memory_bytes) >= max(weights)
        assert sum(problem.topology.memory_bytes) >= 2 * sum(weights) - problem.topology.device_count


def test_no_planner_is_asked_for_a_size_that_would_take_too_long() -> None:
    def planner(problem: Problem) -> Answer:
        return Answer(Outcome.PLANNED, LONGEST_S / 200 * len(problem.tables), 1.0)

    found = timed(generated_pool(20), {"linear": planner}, (20, 10, 40), (2, 4))
    # 20 tables take a tenth of the longest time: 40 would by the cube of their number take eight tenths.
    assert [(point.size.tables, point.size.devices) for point in found] == [
        (n, d) for d in (2, 4) for n in (10, 20, 40)
    ]
    found = timed(generated_pool(20), {"linear": planner}, (30, 60), (2,))
    assert [point.size.tables for point in found] == [30]


def test_times_are_shown_by_size_with_what_came_of_them(tmp_path: Path) -> None:
    points = [
        Timed("one", Size(10, 4), 0.5, 7.0, Outcome.PLANNED),
        Timed("one", Size(20, 4), 2.0, 9.0, Outcome.CUT_SHORT),
        Timed("one", Size(10, 8), 0.7, NAN, Outcome.NOT_FOUND),
    ]
    lines = time_lines(points)
    assert "| 10 | 0.50 (7.0) | 0.70 (no plan found) |" in lines
    assert "| 20 | 2.00 (9.0, cut short) | - |" in lines
    draw(points, tmp_path / "growth.png")
    assert (tmp_path / "growth.png").read_bytes().startswith(b"\x89PNG")


def test_a_models_rows_tell_the_gap_to_the_highest_bound_and_how_far_tables_are_cut() -> None:
    problem = grown_problem(generated_pool(20), Size(3, 2))
    shards = (Shard("a", 0, 8, 0), Shard("a", 8, 16, 1), Shard("b", 0, 16, 0))
    found = {
        "ours": Answer(Outcome.CUT_SHORT, 2.0, 30.0, 10.0, shards),
        "better bound": Answer(Outcome.PLANNED, 1.0, 40.0, 20.0, shards),
        "none": Answer(Outcome.NOT_FOUND, 3.0, reason="strict_constraints"),
    }
    lines = model_lines(MODELS[0], problem, found)
    assert "| ours | cut short | 30.0 | 50.0% | 3 | 2 | 2.00 |" in lines
    assert "| none | no plan found (strict_constraints) | - | - | - | - | 3.00 |" in lines


@pytest.mark.skipif(not shared_data.present(), reason="the public data is not on this machine")
def test_public_models_have_their_shared_tables() -> None:
    problems = {model.name: model_problem(model) for model in MODELS}
    large, colossal = problems["nvidia_synthetic_large"], problems["nvidia_synthetic_colossal"]
    assert (len(large.tables), large.topology.device_count) == (612, 16)
    assert sum(table.num_features for table in large.tables) == 669
    assert (len(colossal.tables), colossal.topology.device_count) == (2_002, 256)
    assert max(table.weight_bytes for table in colossal.tables) > 13 * colossal.topology.memory_bytes[0]
