"""Policies' plans of published DreamShard tasks carried out, beside random's, a heuristic's and NeuroShard's.

Tables stay whole. Devices' compute is measured by the operator, alone on one thread, and the exchanges over as many
ranks as there are devices. Run it alone on the machine:
python -m benchmarks.policy_measured [T20:4:8] [T50:8:4] [--trained FOLDER] [--write FILE.md]
"""

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks import shared_data
from benchmarks.machine import command_line, machine_line
from benchmarks.measured_report import TaskResult, task_lines
from benchmarks.policies import Policies, shipped_policies, trained_policies
from benchmarks.policy_families import dreamshard_problems
from benchmarks.policy_quality import GREEDY, SAMPLES, WHOLE_NEUROSHARD, baselines
from benchmarks.search_tasks import HARDWARE
from service.domain.deadline import NEVER
from service.domain.plan import Algorithm, Problem, Shard
from service.domain.ports import CostModels
from service.profiling.plan_bench import GivenPlan, PlanBench, PlanBenchSettings
from service.profiling.plan_summary import SURE_SHARE, PlanComparison
from service.registry.store import ModelStore
from service.search.catalogue import Integers
from service.search.layout import shards_of
from service.search.learned import stand_in
from service.search.precut import posed
from service.search.simulator import simulate
from service.search.workspace import Workspace
from service.training.policy_evaluation import Placing, by_policy

BATCH_SIZE = 8_192
TASKS = ("T20:4:8", "T50:8:4")
BEST_HEURISTIC = "best heuristic"
_REPEATS = 15
_MEMORY_BYTES = 6 * 2**30
_PACKAGES = ("torch", "fbgemm_gpu-cpu")


@dataclass(frozen=True, slots=True)
class Named:
    """The first test tasks of a published set, on some devices."""

    task_set: str
    devices: int
    count: int

    def __str__(self) -> str:
        return f"{self.task_set} x {self.devices}"

    @classmethod
    def parse(cls, text: str) -> "Named":
        """Of ``SET:DEVICES:TASKS``.

        Raises:
            ValueError: it is not that; says what is.
        """
        parts = text.split(":")
        if len(parts) != 3 or parts[0] not in ("T20", "T50") or not all(part.isdecimal() for part in parts[1:]):
            raise ValueError(f"{text}: needs T20 or T50, a number of devices and a number of tasks, as in T20:4:8")
        return cls(parts[0], int(parts[1]), int(parts[2]))


def plans_of(workspace: Workspace, policies: Policies) -> dict[str, tuple[Shard, ...]]:
    """The plans to carry out: random's, the cheapest heuristic's by its prediction, NeuroShard's and each policy's.

    Args:
        workspace: the task's whole tables.
        policies: of each name the first one places.
    """
    placers = {name: found[0] for name, found in baselines().items()}
    greedy = [_placement(workspace, placers[name]) for name in GREEDY]
    costs = simulate(workspace, np.stack(greedy)).plan
    found = {
        Algorithm.RANDOM.value: _placement(workspace, placers[Algorithm.RANDOM.value]),
        BEST_HEURISTIC: greedy[int(costs.argmin())],
        WHOLE_NEUROSHARD: _placement(workspace, placers[WHOLE_NEUROSHARD]),
    }
    for name, several in policies.items():
        found[name] = _placement(workspace, by_policy(several[0], SAMPLES))
    return {name: shards_of(workspace, placement) for name, placement in found.items()}


def _placement(workspace: Workspace, placer: Placing) -> Integers:
    placement = placer(workspace)
    return stand_in(workspace, NEVER).placement if placement is None else placement


def carried_out(
    name: str, problems: Sequence[Problem], policies: Policies, models: CostModels, bench: PlanBench
) -> list[TaskResult]:
    """Carries out all plans of the problems of a set, and prints each one's tables."""
    results = []
    for number, problem in enumerate(problems):
        started = time.perf_counter()
        plans = plans_of(posed(problem, models), policies)
        found = bench.carry_out(problem, [GivenPlan(plan, shards) for plan, shards in plans.items()], models)
        results.append(TaskResult(name, number, len(problem.tables), found))
        print("\n".join(task_lines(results[-1])))
        print(f"(took {time.perf_counter() - started:.0f} s)\n", flush=True)
    return results


def set_lines(results: Sequence[TaskResult]) -> list[str]:
    """What the plans of a set cost, predicted and measured, beside the best heuristic's."""
    by_plan: dict[str, list[PlanComparison]] = {
        plan.name: [plans for result in results if (plans := result.plan(plan.name))] for plan in results[0].found.plans
    }
    best = by_plan[BEST_HEURISTIC]
    return [
        f"## {results[0].task_set}: {len(results)} tasks",
        "",
        "| plan | predicted, ms | measured, ms | predicted / best heuristic | measured / best heuristic | tasks: "
        "cheaper | within noise | dearer |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
        *(_row(name, plans, best) for name, plans in by_plan.items()),
        "",
    ]


def _row(name: str, plans: Sequence[PlanComparison], best: Sequence[PlanComparison]) -> str:
    predicted, measured = (_means(plans, of) for of in ("predicted_ms", "measured_ms"))
    cheaper, dearer = (
        sum(_told_apart(a, b) for a, b in pairs)
        for pairs in (zip(plans, best, strict=True), zip(best, plans, strict=True))
    )
    cells = [
        name,
        f"{predicted:.1f}",
        f"{measured:.1f}",
        f"{predicted / _means(best, 'predicted_ms'):.3f}",
        f"{measured / _means(best, 'measured_ms'):.3f}",
        *map(str, (cheaper, len(plans) - cheaper - dearer, dearer)),
    ]
    return f"| {' | '.join(cells)} |"


def _means(plans: Sequence[PlanComparison], of: str) -> float:
    return float(np.mean([getattr(plan, of) for plan in plans]))


def _told_apart(plan: PlanComparison, other: PlanComparison) -> bool:
    """Whether a plan costs less than another in so many repeats that this is no noise."""
    less = np.array(plan.cost_repeats_ms) < np.array(other.cost_repeats_ms)
    return bool(less.mean() >= SURE_SHARE)


def heading_lines(results: Sequence[TaskResult], policies: Policies) -> list[str]:
    """What was run, when and on what."""
    found = results[0].found
    names = ", ".join(f"{name}: {several[0].version}" for name, several in policies.items())
    return [
        "# Policies' plans carried out",
        "",
        f"`{command_line('benchmarks.policy_measured')}` on {machine_line(_PACKAGES)}; ranks exchanged on "
        f"{found.cores} cores.",
        f"Batch {BATCH_SIZE:,}, fp16, dim 16, {found.repeats} repeats, predicted by "
        f"{' and '.join(found.models.values())}. Policies ({names}) place by the best of the likeliest and {SAMPLES} "
        "sampled placements by predicted cost. The best heuristic is each task's, by predicted cost. Means over tasks; "
        f"a plan is cheaper or dearer than the best heuristic's where it is in {SURE_SHARE:.0%} of the repeats.",
        "",
    ]


def main() -> None:
    """Carries the plans out, prints their tables and the summary, and writes them where told to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", default=TASKS, help=f"SET:DEVICES:TASKS, by default {' '.join(TASKS)}")
    parser.add_argument("--repeats", type=int, default=_REPEATS, help="timed repeats")
    parser.add_argument("--trained", type=Path, help="folder of policies that benchmarks.policies trained, to be used "
                        "instead of the shipped ones")  # fmt: skip
    parser.add_argument("--write", type=Path, help="Markdown file to write the tables to")
    given = parser.parse_args()
    if not shared_data.present():
        sys.exit(f"skipped: the public tasks are not at {shared_data.SHARED}")
    if given.write and not given.write.parent.is_dir():
        parser.error(f"--write: there is no folder {given.write.parent}")
    try:
        names = [Named.parse(name) for name in given.tasks]
    except ValueError as fault:
        parser.error(str(fault))
    store = ModelStore("model_store")
    models = store.cost_models(HARDWARE)
    policies = trained_policies(ModelStore(str(given.trained))) if given.trained else shipped_policies(store)
    bench = PlanBench(PlanBenchSettings(repeats=given.repeats, memory_bytes=_MEMORY_BYTES))
    by_set: dict[str, list[TaskResult]] = {}
    for name in names:
        problems = dreamshard_problems(name.task_set, "test", name.devices, BATCH_SIZE, name.count)
        by_set[str(name)] = carried_out(str(name), problems, policies, models, bench)
    lines = report_lines(by_set, policies)
    print("\n".join(lines))
    if given.write:
        tables = [line for results in by_set.values() for result in results for line in task_lines(result)]
        given.write.write_text("\n".join([*lines, *tables]), encoding="utf-8")


def report_lines(by_set: Mapping[str, Sequence[TaskResult]], policies: Policies) -> list[str]:
    """Heading and summary of each set that has tasks."""
    every = [results for results in by_set.values() if results]
    return [*heading_lines(every[0], policies), *(line for results in every for line in set_lines(results))]


if __name__ == "__main__":
    main()
