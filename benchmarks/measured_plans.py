"""Our planners' and TorchRec's plans of public tasks carried out: what better plans gain, and how far prices hold.

Every device's compute is measured by the operator, alone on one thread, and the exchanges over as many ranks as there
are devices. Tasks are named SET:POSITION,POSITION,... Run it alone on the machine:
python -m benchmarks.measured_plans [4gpu_maxdim128:0,1 8gpu_maxdim64:0 ...] [--write FILE.md]
"""

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks import shared_data
from benchmarks.machine import command_line, machine_line
from benchmarks.measured_report import (
    COMPARED,
    GREEDY,
    TaskResult,
    accuracy_lines,
    recovery_lines,
    task_lines,
)
from benchmarks.planner_answers import Answer, planners
from benchmarks.search_tasks import HARDWARE, TASK_SETS, task_problems
from benchmarks.torchrec_plans import available
from service.domain.errors import MeasurementRefused
from service.domain.measurements import ComputeMeasurement, Split, comparable
from service.domain.plan import Problem
from service.domain.ports import CostModels
from service.domain.tables import Optimizer
from service.domain.versions import Version
from service.profiling.plan_bench import GivenPlan, PlanBench, PlanBenchSettings
from service.profiling.plan_summary import SURE_SHARE, Errors, errors
from service.registry.store import ModelStore
from service.storage.measurement_files import read_measurements
from service.training.sittings import Sitting, without_factors

BATCH_SIZE = 8_192
TASKS = ("4gpu_maxdim128:0,1,2,5,9,12", "8gpu_maxdim64:0,1,2,3")
_REPEATS = 15
_LIMIT_S = 10.0
_MEMORY_BYTES = 6 * 2**30
_PREPARING_S = 15.0
_RANKS_S = 10.0
_CACHES_MS = 30.0
_PACKAGES = ("torch", "fbgemm_gpu-cpu", "torchrec")


@dataclass(frozen=True, slots=True)
class Task:
    """A task to carry out plans of.

    Attributes:
        task_set: its set.
        number: its position there.
        problem: with the batch that is measured.
        plans: the answers that can be carried out, by planner.
    """

    task_set: str
    number: int
    problem: Problem
    plans: Mapping[str, Answer]


def named_tasks(names: Sequence[str]) -> list[tuple[str, int]]:
    """Sets and positions of tasks that are named ``SET:POSITION,POSITION,...``.

    Raises:
        ValueError: there is no such set, or a position is no number from 0 to 99; says which.
    """
    found = []
    for name in names:
        task_set, _, positions = name.partition(":")
        if task_set not in TASK_SETS:
            raise ValueError(f"{name}: there is no set {task_set!r}, these are: {', '.join(TASK_SETS)}")
        for position in positions.split(","):
            if not (position.isdecimal() and int(position) < 100):
                raise ValueError(f"{name}: positions are numbers from 0 to 99 with commas between, got {position!r}")
            found.append((task_set, int(position)))
    return found


def planned(names: Sequence[tuple[str, int]], models: CostModels, limit_s: float) -> Iterator[Task]:
    """The tasks with the plans of every planner that finds one; a word on those with nothing to compare.

    Args:
        names: sets and positions.
        models: price the plans.
        limit_s: time of each of our planners.
    """
    every = planners(models, limit_s)
    for task_set, number in names:
        problem = replace(task_problems(task_set)[number], global_batch_size=BATCH_SIZE)
        answers = {name: planner(problem) for name, planner in every.items()}
        plans = {name: answer for name, answer in answers.items() if answer.priced}
        if plans.keys() & set(GREEDY) and plans.keys() & set(COMPARED):
            yield Task(task_set, number, problem, plans)
        else:
            print(f"{task_set} {number} is skipped: only {', '.join(plans) or 'no planner'} found a plan of it")


def expected_s(task: Task, repeats: int) -> float:
    """About how long carrying a task's plans out takes, seconds, by their predicted costs."""
    devices = task.problem.topology.device_count
    computes_ms = sum(devices * (plan.cost_ms + _CACHES_MS) for plan in task.plans.values())
    exchanges_ms = sum(2 * plan.cost_ms for plan in task.plans.values())
    return _PREPARING_S + 2 * _RANKS_S + (repeats + 2) * (computes_ms + exchanges_ms) / 1e3


def carried_out(tasks: Sequence[Task], repeats: int, models: CostModels) -> list[TaskResult]:
    """Carries out all plans of the tasks that can be measured here, and prints each task's tables."""
    bench = PlanBench(PlanBenchSettings(repeats=repeats, memory_bytes=_MEMORY_BYTES))
    results = []
    for task in tasks:
        started = time.perf_counter()
        named = [GivenPlan(name, plan.shards) for name, plan in task.plans.items()]
        try:
            found = bench.carry_out(task.problem, named, models)
        except MeasurementRefused as refused:
            print(f"{task.task_set} {task.number} is skipped: {refused.detail}", flush=True)
            continue
        results.append(TaskResult(task.task_set, task.number, len(task.problem.tables), found))
        print("\n".join(task_lines(results[-1])))
        print(f"(took {time.perf_counter() - started:.0f} s)\n", flush=True)
    return results


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


def heading_lines(results: Sequence[TaskResult]) -> list[str]:
    """What was run, when and on what."""
    found = results[0].found
    ranks = sorted({len(result.found.plans[0].devices) for result in results if result.found.oversubscribed})
    over = f"; {' and '.join(map(str, ranks))} ranks exchanged on {found.cores} cores" if ranks else ""
    without = [] if available() else ["TorchRec is not installed: its plans are missing.", ""]
    return [
        "# Plans carried out",
        "",
        f"`{command_line('benchmarks.measured_plans')}` on {machine_line(_PACKAGES)}{over}.",
        f"Batch {BATCH_SIZE:,}, {found.repeats} repeats, milliseconds, predicted by "
        f"{' and '.join(found.models.values())}. A plan's cost is the largest total of its devices: compute, wait and "
        "exchanges, in each repeat; the median is shown. Spread is the interquartile range relative to the median. Two "
        f"plans are told apart where the same one costs less in {SURE_SHARE:.0%} of the repeats; others are within "
        "noise.",
        "",
        "Balanced whole tables: the compute of all devices of the best greedy plan evenly over the devices, and the "
        "exchanges of the plan that costs the least, on average over its devices. A plan recovers its share of the "
        "distance from the best greedy plan's cost to that. Tables that are cut can cost less than whole ones.",
        "",
        *without,
    ]


def main() -> None:
    """Carries the tasks' plans out, prints their tables and the summary, and writes them where told to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", default=TASKS, help=f"sets and positions, by default {' '.join(TASKS)}")
    parser.add_argument("--repeats", type=int, default=_REPEATS, help="timed repeats")
    parser.add_argument("--limit-s", type=float, default=_LIMIT_S, help="time of each of our planners, seconds")
    parser.add_argument("--write", type=Path, help="Markdown file to write the tables to")
    given = parser.parse_args()
    if not shared_data.present():
        sys.exit(f"skipped: the public tasks are not at {shared_data.SHARED}")
    if given.write and not given.write.parent.is_dir():
        parser.error(f"--write: there is no folder {given.write.parent}")
    try:
        names = named_tasks(given.tasks)
    except ValueError as fault:
        parser.error(str(fault))
    models = ModelStore("model_store").cost_models(HARDWARE)
    random = held_out_errors(models)
    tasks = list(planned(names, models, given.limit_s))
    print(f"expected to take {sum(expected_s(task, given.repeats) for task in tasks):.0f} s or so", flush=True)
    results = carried_out(tasks, given.repeats, models)
    if not results:
        sys.exit("no plans were carried out")
    sets = {task_set: [r for r in results if r.task_set == task_set] for task_set in TASK_SETS}
    gains = [line for found in sets.values() if found for line in recovery_lines(found)]
    lines = [*heading_lines(results), *gains, *accuracy_lines(results, random)]
    print("\n".join(lines))
    if given.write:
        tables = [line for result in results for line in task_lines(result)]
        given.write.write_text("\n".join([*lines, *tables]), encoding="utf-8")


if __name__ == "__main__":
    main()
