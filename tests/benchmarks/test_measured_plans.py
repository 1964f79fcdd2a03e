"""What better plans gain: the cost of balanced whole tables, the share recovered, and which tasks are named."""

import math

import pytest

from benchmarks.measured_plans import named_tasks
from benchmarks.measured_report import TaskResult, accuracy_lines, balanced_ms, recovered, recovery_lines, task_lines
from service.domain.costs import DeviceCost
from service.profiling.plan_bench import CarriedOut
from service.profiling.plan_summary import DeviceComparison, PlanComparison, summary_of


def plan(name: str, *computes_ms: float, exchange_ms: float = 1.0) -> PlanComparison:
    """Devices by their compute, three quarters of it backward, with an exchange each way of the same length."""
    slowest = max(computes_ms)
    costs = [DeviceCost(c / 4, 3 * c / 4, slowest - c, exchange_ms, exchange_ms) for c in computes_ms]
    devices = tuple(DeviceComparison(cost, cost, cost.total, 0.0) for cost in costs)
    total = slowest + 2 * exchange_ms
    return PlanComparison(name, devices, (total,) * 5, (slowest,) * 5, True, (), (0.9 * total, 1.1 * total))


def result(*plans: PlanComparison, number: int = 0) -> TaskResult:
    found = CarriedOut(plans, summary_of(plans), None, {"compute": "c/1"}, (), 2, True, 5, {"device": "d"})
    return TaskResult("4gpu_maxdim128", number, 9, found)


def test_balanced_whole_tables_share_the_best_greedys_compute_and_exchange_as_the_cheapest_plan() -> None:
    found = result(
        plan("dim_greedy", 10.0, 30.0), plan("size_greedy", 50.0, 1.0), plan("neuroshard", 24.0, 22.0, exchange_ms=2.0)
    )
    assert found.best_greedy().name == "dim_greedy"
    assert balanced_ms(found) == pytest.approx((10 + 30) / 2 + 2 * 2.0)


@pytest.mark.parametrize(
    ("greedy", "balanced", "cost", "share"),
    [(32.0, 24.0, 28.0, 0.5), (32.0, 24.0, 34.0, -0.25), (32.0, 24.0, 22.0, 1.25), (24.0, 24.0, 20.0, math.nan)],
)
def test_a_plan_recovers_its_share_of_the_distance(greedy: float, balanced: float, cost: float, share: float) -> None:
    assert recovered(greedy, balanced, cost) == pytest.approx(share, nan_ok=True)


def test_gains_are_told_by_task_on_average_and_together() -> None:
    # The first task's distance is 32 - 22 ms, the second's 62 - 42 ms.
    first = result(plan("dim_greedy", 10.0, 30.0), plan("neuroshard", 25.0, 25.0), plan("torchrec", 30.0, 10.0))
    second = result(plan("dim_greedy", 20.0, 60.0), plan("neuroshard", 45.0, 45.0), number=7)
    lines = recovery_lines([first, second])
    assert "| 0 | 32.0 | 22.0 | 27.0 | 50% | 0.844 | 32.0 | 0% |" in lines
    assert "| 7 | 62.0 | 42.0 | 47.0 | 75% | - | - | - |" in lines
    assert "| mean | 47.0 | 32.0 | 37.0 | 62% | 0.844 | 32.0 | 0% |" in lines
    said = "of the slowest compute alone, without exchanges,"
    assert f"- of all tasks together neuroshard recovers 67%, {said} 67%" in lines
    assert f"- of all tasks together torchrec recovers 0%, {said} 0%" in lines


def test_exchanges_are_no_part_of_what_is_recovered_of_compute() -> None:
    found = result(plan("dim_greedy", 10.0, 30.0), plan("neuroshard", 25.0, 25.0, exchange_ms=2.0))
    (line,) = [line for line in recovery_lines([found]) if line.startswith("- of all tasks together")]
    # 3 of 8 ms, with the exchanges of neuroshard's plan, and 5 of 10 ms without.
    assert "recovers 38%" in line
    assert line.endswith("exchanges, 50%")


def test_prices_are_judged_by_planner() -> None:
    found = [result(plan("dim_greedy", 10.0, 30.0), plan("neuroshard", 25.0, 0.0))]
    lines = accuracy_lines(found, {})
    assert "| compute of the devices of plans of neuroshard | 1 | 0.0% | +0.0% |" in lines
    assert "| compute of the devices of plans of the greedy heuristics | 2 | 0.0% | +0.0% |" in lines
    assert any(line.startswith("- neuroshard / best greedy, on average: measured cost 0.844") for line in lines)
    assert not any("torchrec" in line for line in lines)
    assert "| neuroshard | 25.0 / 25.0 | 0.0 / 0.0 |" in task_lines(found[0])


def test_tasks_are_named_by_set_and_position() -> None:
    assert named_tasks(["4gpu_maxdim128:0,12", "8gpu_maxdim64:3"]) == [
        ("4gpu_maxdim128", 0), ("4gpu_maxdim128", 12), ("8gpu_maxdim64", 3),
    ]  # fmt: skip
    for wrong, said in (("5", "no set '5'"), ("8gpu_maxdim64", "got ''"), ("8gpu_maxdim64:100", "got '100'")):
        with pytest.raises(ValueError, match=said):
            named_tasks([wrong])
