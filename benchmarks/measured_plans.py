"""NeuroShard's and the greedy heuristics' plans of public tasks carried out: predicted beside measured.

Every device's compute is measured by the operator, alone on one thread, and the exchanges over as many ranks as there
are devices. Run it alone on the machine: python -m benchmarks.measured_plans [task ...] [--write FILE.md]
"""

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from benchmarks import shared_data
from benchmarks.search_tasks import HEURISTICS, task_problem
from service.domain.deadline import Deadline
from service.domain.errors import Infeasible
from service.domain.measurements import ComputeMeasurement, Split, comparable
from service.domain.plan import Algorithm, Problem
from service.domain.ports import CostModels
from service.domain.tables import Optimizer
from service.profiling.plan_bench import CarriedOut, GivenPlan, PlanBench, PlanBenchSettings
from service.profiling.plan_summary import (
    SURE_SHARE,
    Errors,
    Ordering,
    PlanComparison,
    compute_ms,
    errors,
    ordering,
    spread,
)
from service.registry.store import ModelStore, Version
from service.storage.measurement_files import read_measurements
from service.training.sittings import Sitting, without_factors
from service.usecases.make_plan import PlanResult, make_plan

BATCH_SIZE = 8_192
TASKS = (0, 1, 2, 3)
TASK_SET = "neuroshard_4gpu_maxdim128_seed0"
HARDWARE = "cpu-fbgemm"
_REPEATS = 15
_DEVICES = 4
_MEMORY_BYTES = 6 * 2**30
_PREPARING_S = 15.0
_RANKS_S = 10.0
_CACHES_MS = 30.0


@dataclass(frozen=True, slots=True)
class TaskResult:
    """One task's plans, carried out."""

    number: int
    tables: int
    found: CarriedOut


def planned(problem: Problem, models: CostModels) -> dict[Algorithm, PlanResult]:
    """The plan of every algorithm that finds one."""
    plans = {}
    for algorithm in (Algorithm.NEUROSHARD, *HEURISTICS):
        try:
            plans[algorithm] = make_plan(problem, models, algorithm, 0, Deadline())
        except Infeasible:
            continue
    return plans


def expected_s(plans: Mapping[Algorithm, PlanResult], repeats: int) -> float:
    """About how long carrying plans out takes, seconds, by their predicted costs."""
    devices = [device for plan in plans.values() for device in plan.devices]
    computes_ms = sum(compute_ms(device.cost) + _CACHES_MS for device in devices)
    exchanges_ms = sum(2 * plan.max_cost_ms for plan in plans.values())
    return _PREPARING_S + 2 * _RANKS_S + (repeats + 2) * (computes_ms + exchanges_ms) / 1e3


def held_out_errors(models: CostModels) -> dict[str, Errors]:
    """Errors of the compute model on random combinations that it was not trained on: all, and this batch size's."""
    store = ModelStore("model_store")
    measurements, _ = read_measurements(store.measurement_file(HARDWARE))
    manifest, _ = store.read(Version.parse(models.compute.version))
    test = [m for m in comparable(measurements) if m.split is Split.TEST and m.optimizer is Optimizer.SGD]
    test = without_factors(test, [Sitting.from_dict(sitting) for sitting in manifest["sittings"]])
    return {
        "random combinations, held out": _errors_on(test, models),
        f"those of batch {BATCH_SIZE:,}": _errors_on([m for m in test if m.batch_size == BATCH_SIZE], models),
    }


def _errors_on(measurements: Sequence[ComputeMeasurement], models: CostModels) -> Errors:
    compute = models.compute
    predicted = [
        float(compute.head(compute.encode(m.tables, m.batch_size, m.optimizer).sum(axis=0)).sum()) for m in measurements
    ]
    return errors(predicted, [m.forward_ms + m.backward_ms for m in measurements])


def task_lines(result: TaskResult) -> list[str]:
    """A task's tables: its plans, and every device of them."""
    plans, order = result.found.plans, result.found.summary.order
    return [
        f"## Task {result.number}: {result.tables} tables on {_DEVICES} devices",
        "",
        "| plan | cost, predicted | measured | spread | error | slowest compute, predicted | measured | spread |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
        *map(_plan_row, plans),
        "",
        *([_order_line("cost", order)] if order else []),
        _order_line("slowest compute", _compute_order(plans)),
        *(f"- {said}" for said in result.found.assumptions),
        "",
        "Each device's compute, predicted / measured, ms:",
        "",
        "| plan | " + " | ".join(f"device {device}" for device in range(_DEVICES)) + " |",
        "|---|" + "--:|" * _DEVICES,
        *map(_devices_row, plans),
        "",
    ]


def summary_lines(results: Sequence[TaskResult], random: Mapping[str, Errors]) -> list[str]:
    """How far predictions hold over all tasks."""
    plans = [plan for result in results for plan in result.found.plans]
    ours = [plan for plan in plans if plan.name == Algorithm.NEUROSHARD.value]
    greedy = [plan for plan in plans if plan not in ours]
    found = {
        "compute of the devices of neuroshard's plans": _device_errors(ours),
        "compute of the devices of the greedy plans": _device_errors(greedy),
        **{f"compute of {what}": error for what, error in random.items()},
        "cost of neuroshard's plans": _cost_errors(ours),
        "cost of the greedy plans": _cost_errors(greedy),
    }
    by_cost = [result.found.summary.order for result in results if result.found.summary.order]
    return [
        "## All tasks",
        "",
        "| predicted | number | MAPE | bias |",
        "|---|--:|--:|--:|",
        *(f"| {what} | {e.count} | {e.mape:.1%} | {e.bias:+.1%} |" for what, e in found.items()),
        "",
        _interval_line(plans),
        _agreement_line("cost", by_cost),
        _agreement_line("slowest compute", [_compute_order(result.found.plans) for result in results]),
        f"- neuroshard / best greedy, on average: measured cost {_ratio(results, _measured_cost):.3f} "
        f"(predicted {_ratio(results, _predicted_cost):.3f}), measured slowest compute "
        f"{_ratio(results, _measured_slowest):.3f} (predicted {_ratio(results, _predicted_slowest):.3f})",
        "",
    ]


def _interval_line(plans: Sequence[PlanComparison]) -> str:
    low, high = np.array([plan.predicted_interval_ms for plan in plans]).T
    measured = np.array([plan.measured_ms for plan in plans])
    below, above = np.sum(measured < low), np.sum(measured > high)
    return (
        f"- the measured cost is within the 90% interval of the predicted one for {len(plans) - below - above} of "
        f"{len(plans)} plans, below it for {below} and above it for {above}; the intervals reach from "
        f"{np.mean(low / measured - 1):+.0%} to {np.mean(high / measured - 1):+.0%} of the measured cost on average"
    )


def _device_errors(plans: Sequence[PlanComparison]) -> Errors:
    """Errors of the compute of the devices that hold tables."""
    devices = [device for plan in plans for device in plan.devices if compute_ms(device.measured)]
    return errors([compute_ms(d.predicted) for d in devices], [compute_ms(d.measured) for d in devices])


def _cost_errors(plans: Sequence[PlanComparison]) -> Errors:
    return errors(list(map(_predicted_cost, plans)), list(map(_measured_cost, plans)))


def _plan_row(plan: PlanComparison) -> str:
    error = plan.predicted_ms / plan.measured_ms - 1
    cost = f"{plan.predicted_ms:.1f} | {plan.measured_ms:.1f} | {_spread(plan.cost_repeats_ms)} | {error:+.1%}"
    slowest = f"{_predicted_slowest(plan):.1f} | {_measured_slowest(plan):.1f}"
    return f"| {plan.name} | {cost} | {slowest} | {_spread(plan.slowest_compute_repeats_ms)} |"


def _spread(repeats_ms: Sequence[float]) -> str:
    return f"{spread(repeats_ms):.1%}"


def _devices_row(plan: PlanComparison) -> str:
    cells = [f"{compute_ms(device.predicted):.1f} / {compute_ms(device.measured):.1f}" for device in plan.devices]
    return f"| {plan.name} | " + " | ".join(cells) + " |"


def _order_line(what: str, order: Ordering) -> str:
    best = "the best was picked" if order.best_picked else f"the one picked costs {order.regret_ms:.1f} ms too much"
    return (
        f"- order by {what}: {order.pairs_ordered_the_same} of {order.pairs} pairs as predicted, besides "
        f"{order.pairs_within_noise} within noise and {order.pairs_predicted_alike} predicted alike; {best}"
    )


def _agreement_line(what: str, orders: Sequence[Ordering]) -> str:
    same, pairs = sum(o.pairs_ordered_the_same for o in orders), sum(o.pairs for o in orders)
    return (
        f"- order by {what}: {same} of {pairs} pairs as predicted, besides "
        f"{sum(o.pairs_within_noise for o in orders)} within noise and "
        f"{sum(o.pairs_predicted_alike for o in orders)} predicted alike; the best picked in "
        f"{sum(o.best_picked for o in orders)} of {len(orders)} tasks, regret "
        f"{np.mean([o.regret_ms for o in orders]):.1f} ms on average"
    )


def _compute_order(plans: Sequence[PlanComparison]) -> Ordering:
    measured = np.array([plan.slowest_compute_repeats_ms for plan in plans])
    return ordering([plan.name for plan in plans], list(map(_predicted_slowest, plans)), measured)


def _ratio(results: Sequence[TaskResult], cost: Callable[[PlanComparison], float]) -> float:
    ratios = []
    for result in results:
        costs = {plan.name: cost(plan) for plan in result.found.plans}
        ours = costs.pop(Algorithm.NEUROSHARD.value)
        ratios.append(ours / min(costs.values()))
    return float(np.mean(ratios))


def _measured_cost(plan: PlanComparison) -> float:
    return plan.measured_ms


def _predicted_cost(plan: PlanComparison) -> float:
    return plan.predicted_ms


def _measured_slowest(plan: PlanComparison) -> float:
    return float(np.median(plan.slowest_compute_repeats_ms))


def _predicted_slowest(plan: PlanComparison) -> float:
    return max(compute_ms(device.predicted) for device in plan.devices)


def heading_lines(found: CarriedOut) -> list[str]:
    """What was run, when and on what."""
    over = f"; {_DEVICES} ranks exchanged on {found.cores} cores" if found.oversubscribed else ""
    return [
        "# Plans carried out",
        "",
        f"`python -m benchmarks.measured_plans` on {datetime.now(UTC).date()}, {found.environment['device']}{over}.",
        f"Tasks of {TASK_SET}, batch {BATCH_SIZE:,}, {found.repeats} repeats, milliseconds, predicted by "
        f"{' and '.join(found.models.values())}. A plan's cost is the largest total of its devices: compute, wait and "
        "exchanges, in each repeat; the median is shown. Spread is the interquartile range relative to the median. Two "
        f"plans are told apart where the same one costs less in {SURE_SHARE:.0%} of the repeats; others are within "
        "noise.",
        "",
    ]


def main() -> None:
    """Carries the tasks' plans out, prints their tables and the summary, and writes them where told to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="*", type=int, default=TASKS, help="positions in the set of tasks")
    parser.add_argument("--repeats", type=int, default=_REPEATS, help="timed repeats")
    parser.add_argument("--write", type=Path, help="Markdown file to write the tables to")
    given = parser.parse_args()
    if not shared_data.present():
        sys.exit(f"skipped: the public tasks are not at {shared_data.SHARED}")
    if given.write and not given.write.parent.is_dir():
        parser.error(f"--write: there is no folder {given.write.parent}")
    models = ModelStore("model_store").cost_models(HARDWARE)
    random = held_out_errors(models)
    results = _carried_out(given.tasks, given.repeats, models)
    if not results:
        sys.exit("none of these tasks can be compared")
    lines = summary_lines(results, random)
    print("\n".join(lines))
    if given.write:
        tables = [line for result in results for line in task_lines(result)]
        given.write.write_text("\n".join([*heading_lines(results[0].found), *lines, *tables]), encoding="utf-8")


def _carried_out(numbers: Sequence[int], repeats: int, models: CostModels) -> list[TaskResult]:
    pool, tasks = shared_data.pool(), shared_data.tasks(TASK_SET)
    problems = {
        number: replace(task_problem(pool, tasks[number], devices=_DEVICES), global_batch_size=BATCH_SIZE)
        for number in numbers
    }
    plans = {number: found for number, problem in problems.items() if (found := _comparable(number, problem, models))}
    print(f"expected to take {sum(expected_s(found, repeats) for found in plans.values()):.0f} s or so", flush=True)
    bench = PlanBench(PlanBenchSettings(repeats=repeats, memory_bytes=_MEMORY_BYTES))
    results = []
    for number, found in plans.items():
        problem, started = problems[number], time.perf_counter()
        named = [GivenPlan(algorithm.value, plan.shards) for algorithm, plan in found.items()]
        results.append(TaskResult(number, len(problem.tables), bench.carry_out(problem, named, models)))
        print("\n".join(task_lines(results[-1])))
        print(f"(took {time.perf_counter() - started:.0f} s)\n", flush=True)
    return results


def _comparable(number: int, problem: Problem, models: CostModels) -> dict[Algorithm, PlanResult]:
    """A task's plans; none, and a word, where there is not one of neuroshard and one of a greedy to compare."""
    plans = planned(problem, models)
    if Algorithm.NEUROSHARD in plans and len(plans) > 1:
        return plans
    print(f"task {number} is skipped: only {', '.join(plans) or 'no algorithm'} found a plan of it", flush=True)
    return {}


if __name__ == "__main__":
    main()
