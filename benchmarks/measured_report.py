"""Tables about plans that were carried out: predicted beside measured, and what the better plans gain."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.planner_answers import ALGORITHMS, TORCHREC
from benchmarks.search_tasks import HEURISTICS
from service.profiling.plan_bench import CarriedOut
from service.profiling.plan_summary import Errors, Ordering, PlanComparison, compute_ms, errors, ordering, spread

GREEDY = tuple(algorithm.value for algorithm in HEURISTICS)

COMPARED = (*(algorithm.value for algorithm in ALGORITHMS if algorithm not in HEURISTICS), TORCHREC)
"""Planners that are compared with the best of the greedy heuristics."""


@dataclass(frozen=True, slots=True)
class TaskResult:
    """One task's plans, carried out.

    Attributes:
        task_set: of the task.
        number: its position there.
        tables: number of its tables.
        found: its plans, named by their planners; one of a greedy heuristic at least, and one of another.
    """

    task_set: str
    number: int
    tables: int
    found: CarriedOut

    def plan(self, planner: str) -> PlanComparison | None:
        """A planner's plan, None where it has none."""
        return next((plan for plan in self.found.plans if plan.name == planner), None)

    def best_greedy(self) -> PlanComparison:
        """The greedy heuristics' plan that costs the least, measured."""
        return min((plan for plan in self.found.plans if plan.name in GREEDY), key=_measured_cost)


def balanced_ms(result: TaskResult) -> float:
    """What perfectly balanced whole tables would cost, from measurements, milliseconds.

    Compute: that of all devices of the best greedy plan, which is table-wise but for tables that no device can hold,
    evenly over the devices. Exchanges: those of the plan of the task that costs the least, a device's on average.
    Nobody waits.
    """
    best = min(result.found.plans, key=_measured_cost)
    exchanges = [device.measured.forward_transfer + device.measured.backward_comm for device in best.devices]
    return balanced_compute_ms(result) + float(np.mean(exchanges))


def balanced_compute_ms(result: TaskResult) -> float:
    """The compute in ``balanced_ms``."""
    return float(np.mean([compute_ms(device.measured) for device in result.best_greedy().devices]))


def recovered(greedy_ms: float, balanced: float, plan_ms: float) -> float:
    """Share of the distance from the best greedy plan's cost to that of balanced whole tables that a plan recovers.

    Above 1 where the plan costs less than those, NaN where there is no distance.
    """
    return (greedy_ms - plan_ms) / (greedy_ms - balanced) if greedy_ms > balanced else math.nan


def recovery_lines(results: Sequence[TaskResult]) -> list[str]:
    """What better plans of a set's tasks gain: a row for each task and the means, then all tasks together."""
    greedy = [result.best_greedy().measured_ms for result in results]
    balanced = [balanced_ms(result) for result in results]
    columns = [("best greedy", ".1f", greedy), ("balanced whole tables", ".1f", balanced)]
    peer, together = np.array(_costs(results, TORCHREC)), []
    for name in COMPARED:
        costs = _costs(results, name)
        if all(map(math.isnan, costs)):
            continue
        shares = list(map(recovered, greedy, balanced, costs))
        columns += [(name, ".1f", costs), (f"{name} recovers", ".0%", shares)]
        if name != TORCHREC:
            columns.append((f"{name} / {TORCHREC}", ".3f", [*(np.array(costs) / peer)]))
        together.append(_together_line(results, name))
    rows = [(str(result.number), [values[i] for _, _, values in columns]) for i, result in enumerate(results)]
    rows.append(("mean", [_mean(values) for _, _, values in columns]))
    forms = [form for _, form, _ in columns]
    return [
        f"## {results[0].task_set}: what better plans gain, measured",
        "",
        f"| task | {' | '.join(title for title, _, _ in columns)} |",
        "|--:|" + "--:|" * len(columns),
        *(f"| {name} | {' | '.join(map(_shown, values, forms))} |" for name, values in rows),
        "",
        *together,
        "",
    ]


def _together_line(results: Sequence[TaskResult], name: str) -> str:
    """What a planner recovers of the distances of all tasks together, those of costs and those of compute alone."""
    plans = [(result, plan) for result in results if (plan := result.plan(name))]
    costs = [(r.best_greedy().measured_ms, balanced_ms(r), plan.measured_ms) for r, plan in plans]
    computes = [
        (_measured_slowest(r.best_greedy()), balanced_compute_ms(r), _measured_slowest(plan)) for r, plan in plans
    ]
    by_cost, by_compute = (recovered(*np.sum(values, axis=0).tolist()) for values in (costs, computes))
    return (
        f"- of all tasks together {name} recovers {_shown(by_cost, '.0%')}, of the slowest compute alone, without "
        f"exchanges, {_shown(by_compute, '.0%')}"
    )


def _costs(results: Sequence[TaskResult], planner: str) -> list[float]:
    """Measured cost of a planner's plan of each task, NaN where it has none."""
    plans = [result.plan(planner) for result in results]
    return [plan.measured_ms if plan else math.nan for plan in plans]


def _shown(value: float, form: str) -> str:
    return "-" if math.isnan(value) else f"{value:{form}}"


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return float(np.mean(known)) if known else math.nan


def task_lines(result: TaskResult) -> list[str]:
    """A task's tables: its plans, and every device of them."""
    plans, order = result.found.plans, result.found.summary.order
    devices = len(plans[0].devices)
    return [
        f"## {result.task_set}, task {result.number}: {result.tables} tables on {devices} devices",
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
        "| plan | " + " | ".join(f"device {device}" for device in range(devices)) + " |",
        "|---|" + "--:|" * devices,
        *map(_devices_row, plans),
        "",
    ]


def accuracy_lines(results: Sequence[TaskResult], random: Mapping[str, Errors]) -> list[str]:
    """How far predictions hold over all tasks."""
    plans = [plan for result in results for plan in result.found.plans]
    groups = {name: [plan for plan in plans if plan.name == name] for name in COMPARED}
    groups["the greedy heuristics"] = [plan for plan in plans if plan.name in GREEDY]
    groups = {name: group for name, group in groups.items() if group}
    found = {
        **{f"compute of the devices of plans of {name}": _device_errors(group) for name, group in groups.items()},
        **{f"compute of {what}": error for what, error in random.items()},
        **{f"cost of plans of {name}": _cost_errors(group) for name, group in groups.items()},
    }
    by_cost = [result.found.summary.order for result in results if result.found.summary.order]
    return [
        "## How far predictions hold",
        "",
        "| predicted | number | MAPE | bias |",
        "|---|--:|--:|--:|",
        *(f"| {what} | {e.count} | {e.mape:.1%} | {e.bias:+.1%} |" for what, e in found.items()),
        "",
        _interval_line(plans),
        _agreement_line("cost", by_cost),
        _agreement_line("slowest compute", [_compute_order(result.found.plans) for result in results]),
        *(_ratio_line(results, name) for name in groups if name in COMPARED),
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


def _ratio_line(results: Sequence[TaskResult], name: str) -> str:
    return (
        f"- {name} / best greedy, on average: measured cost {_ratio(results, name, _measured_cost):.3f} (predicted "
        f"{_ratio(results, name, _predicted_cost):.3f}), measured slowest compute "
        f"{_ratio(results, name, _measured_slowest):.3f} (predicted {_ratio(results, name, _predicted_slowest):.3f})"
    )


def _ratio(results: Sequence[TaskResult], name: str, cost: Callable[[PlanComparison], float]) -> float:
    ratios = []
    for result in results:
        if plan := result.plan(name):
            ratios.append(cost(plan) / min(cost(other) for other in result.found.plans if other.name in GREEDY))
    return float(np.mean(ratios))


def _measured_cost(plan: PlanComparison) -> float:
    return plan.measured_ms


def _predicted_cost(plan: PlanComparison) -> float:
    return plan.predicted_ms


def _measured_slowest(plan: PlanComparison) -> float:
    return float(np.median(plan.slowest_compute_repeats_ms))


def _predicted_slowest(plan: PlanComparison) -> float:
    return max(compute_ms(device.predicted) for device in plan.devices)
