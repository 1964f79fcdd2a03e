"""Policies that place tables, in one run: what their plans of unseen tables cost, how they learn, how long they take.

One process, one thread. All plans are priced by our models. Policies are those of the model store, and those that the
part ``curves`` has trained: their folder can be kept by --trained. Run: OMP_NUM_THREADS=1 python -m
benchmarks.policies [curves] [quality] [times] [--quick] [--trained FOLDER] [--write benchmarks/results]
"""

import argparse
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks import shared_data
from benchmarks.machine import command_line, machine_line
from benchmarks.planner_answers import Answer, Outcome, Planner
from benchmarks.planning_times import Size, grown_problem, time_lines, timed
from benchmarks.policy_courses import COURSES, PAPERS
from benchmarks.policy_curves import HOW, Curve, beside, curve, curve_lines, draw
from benchmarks.policy_families import MOST_TASKS, judged_families
from benchmarks.policy_quality import (
    MOST_ABOVE,
    RANDOM_SEEDS,
    ROOM,
    WHOLE_NEUROSHARD,
    baselines,
    cutters,
    family_lines,
    judged,
    policy_placers,
    summary_lines,
)
from benchmarks.search_tasks import HARDWARE
from service.domain.plan import LEARNED, Algorithm, Problem
from service.domain.policy import PlacementPolicy
from service.domain.ports import CostModels
from service.domain.versions import Version
from service.policies.table_features import POLICY_FEATURES_VERSION
from service.registry.store import ModelStore
from service.search.catalogue import TICKS_PER_MS
from service.search.precut import posed
from service.search.simulator import simulate
from service.training.policy_evaluation import by_policy

_PACKAGES = ("numpy", "torch")
_WARM_UP = Size(10, 2)

Policies = Mapping[str, Sequence[PlacementPolicy]]
"""Policies by what they were trained on; those of one name differ in the seed of their training."""


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is run.

    Attributes:
        suffix: of the files that are written.
        tasks: tasks of each family, and held-out tasks of each course.
        cut: first tasks of each family for which cuts are tried.
        share: part of its steps that each course trains for.
        tables: numbers of tables that placing is timed for.
        devices: numbers of devices that it is timed for.
    """

    suffix: str
    tasks: int
    cut: int
    share: float
    tables: Sequence[int]
    devices: Sequence[int]


FULL = Extent("", MOST_TASKS, 5, 1.0, (10, 20, 50, 100, 200, 500), (2, 4, 8, 16, 32, 64))
QUICK = Extent("-quick", 4, 1, 0.1, (20, 100, 500), (2, 8, 64))


@dataclass(frozen=True, slots=True)
class Run:
    """What a part of the benchmark is given.

    Attributes:
        models: price all plans.
        shipped: the policies of the model store.
        trained: keeps the policies of courses.
        extent: how much to run.
        seeds: of the training runs of a course.
        limit_s: time that those who cut tables get for a task.
        write: folder to write plots to, None for none.
    """

    models: CostModels
    shipped: Policies
    trained: ModelStore
    extent: Extent
    seeds: int
    limit_s: float
    write: Path | None

    def policies(self) -> dict[str, Sequence[PlacementPolicy]]:
        """All that there are now."""
        return {**self.shipped, **trained_policies(self.trained)}


def shipped_policies(store: ModelStore) -> Policies:
    """The newest policy of each algorithm, by the algorithm's name."""
    newest = [(algorithm.value, store.latest(HARDWARE, algorithm.value)) for algorithm in LEARNED]
    return {f"{name}, shipped": [store.policy(version)] for name, version in newest if version}


def keep(store: ModelStore, algorithm: Algorithm, course: str, run: Curve) -> Version:
    """Keeps the policy that a course came to."""
    facts = {"features_version": POLICY_FEATURES_VERSION, "course": course, "seed": run.seed}
    return store.write(HARDWARE, algorithm.value, run.arrays, facts)


def trained_policies(store: ModelStore) -> Policies:
    """The policies that courses came to, the newest of each seed, by the course's name."""
    found: dict[str, dict[int, PlacementPolicy]] = defaultdict(dict)
    for algorithm in LEARNED:
        newest = store.latest(HARDWARE, algorithm.value)
        for number in range(1, newest.number + 1 if newest else 1):
            version = Version(HARDWARE, algorithm.value, number)
            manifest, _ = store.read(version)
            found[manifest["course"]][manifest["seed"]] = store.policy(version)
    return {course: [of[seed] for seed in sorted(of)] for course, of in found.items()}


def curves_lines(run: Run) -> list[str]:
    """Learning curves of every course; keeps what they come to, but for the papers' own runs."""
    lines = [
        "## Learning curves",
        "",
        "Rewards and held-out costs are predicted. Held-out tasks are placed by the likeliest devices and by the best "
        f"of those and {max(HOW.values())} samples. The seconds are of training alone.",
        "",
    ]
    for plotted, (algorithm, build) in COURSES.items():
        course = build(run.models, run.extent.tasks, run.extent.share)
        others, curves = beside(course), []
        for seed in range(run.seeds):
            curves.append(curve(course, seed))
            if plotted not in PAPERS:
                keep(run.trained, algorithm, course.name, curves[-1])
        if run.write:
            plot = f"{plotted}-curves{run.extent.suffix}.png"
            draw(course, curves, others, run.write / plot)
            lines += [f"![{course.name}]({plot})", ""]
        lines += curve_lines(course, curves, others)
    return lines


def quality_lines(run: Run) -> list[str]:
    """What policies' plans of every family cost."""
    policies = run.policies()
    by_policy = policy_placers(policies)
    placers = {**baselines(), **by_policy}
    results, tables = [], []
    for family in judged_families(run.extent.tasks):
        started = time.perf_counter()
        results.append(judged(family, run.models, placers, cutters(policies), run.extent.cut, run.limit_s))
        tables += family_lines(results[-1])
        print("\n".join(family_lines(results[-1])))
        print(f"(took {time.perf_counter() - started:.0f} s)\n", flush=True)
    return [
        "## Plans of unseen tables",
        "",
        "Tables stay whole. Costs are predicted means over tasks; / best heuristic: relative to the mean of the single "
        "heuristic whose mean is the lowest on these tasks; / bound: mean over tasks. Tasks have room where the "
        f"cheapest heuristic costs more than {ROOM} of the bound for whole tables. Random is the mean of "
        f"{RANDOM_SEEDS} seeds; of several trained policies the mean and the range are shown. At a dead end "
        "size_greedy's plan counts or, where it has none, the one by memory alone. Balance is the least compute of a "
        "device over the most.",
        "",
        *summary_lines(results, [WHOLE_NEUROSHARD, *by_policy]),
        *tables,
    ]


def times_lines(run: Run) -> list[str]:
    """How long placing takes, by tables and devices."""
    every = {
        f"{name}, {how}": placing(found[0], samples, run.models)
        for name, found in run.policies().items()
        for how, samples in HOW.items()
    }
    for planner in every.values():
        planner(grown_problem(shared_data.pool(), _WARM_UP))
    found = timed(shared_data.pool(), every, run.extent.tables, run.extent.devices)
    told = "Encoding the tables for the cost models is part of the time; weights fill half of the memory."
    return ["## Placing time", "", told, "", *time_lines(found)]


def placing(policy: PlacementPolicy, samples: int, models: CostModels) -> Planner:
    """A policy as it places whole tables."""

    def plan(problem: Problem) -> Answer:
        started = time.perf_counter()
        workspace = posed(problem, models)
        placement = by_policy(policy, samples)(workspace)
        seconds = time.perf_counter() - started
        if placement is None:
            return Answer(Outcome.NOT_FOUND, seconds, reason="dead end")
        cost = float(simulate(workspace, placement[None]).plan[0]) / TICKS_PER_MS
        return Answer(Outcome.PLANNED, seconds, cost)

    return plan


PARTS: dict[str, Callable[[Run], list[str]]] = {
    "curves": curves_lines,
    "quality": quality_lines,
    "times": times_lines,
}
"""In the order in which they are run: what ``curves`` trains, the others judge."""


def heading_lines(models: CostModels, shipped: Policies) -> list[str]:
    """What was run, when and on what."""
    names = ", ".join(policy.version for found in shipped.values() for policy in found)
    return [
        "# Policies compared",
        "",
        f"`OMP_NUM_THREADS=1 {command_line('benchmarks.policies')}` on {machine_line(_PACKAGES)}. All plans are priced "
        f"by {' and '.join(models.versions.values())}. Shipped policies: {names or 'none'}. A family should cost at "
        f"most {MOST_ABOVE} of the best single heuristic, and less than it over tasks with room. One process, one "
        "thread.",
        "",
    ]


def main() -> None:
    """Runs the parts, prints their tables, and writes them and the plots where told to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=[*PARTS], help=f"of {', '.join(PARTS)}; all where none is named")
    parser.add_argument("--quick", action="store_true", help="a few tasks, steps and sizes, a few minutes in all")
    parser.add_argument("--seeds", type=int, default=3, help="training runs of each course")
    parser.add_argument("--limit-s", type=float, default=2.0, help="time to cut and place a task's tables, seconds")
    parser.add_argument("--trained", type=Path, help="folder that keeps what curves trained, for later runs")
    parser.add_argument("--write", type=Path, help="folder to write the report and the plots to")
    given = parser.parse_args()
    if unknown := [part for part in given.parts if part not in PARTS]:
        parser.error(f"there is no part {unknown[0]}: name of {', '.join(PARTS)}")
    if given.seeds < 1:
        parser.error("--seeds must be 1 or more")
    if os.environ.get("OMP_NUM_THREADS") != "1":
        parser.error("placing is timed on one thread: set OMP_NUM_THREADS=1")
    if not shared_data.present():
        sys.exit(f"skipped: the public tasks are not at {shared_data.SHARED}")
    if given.write:
        given.write.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    store, extent = ModelStore("model_store"), QUICK if given.quick else FULL
    models, shipped = store.cost_models(HARDWARE), shipped_policies(store)
    lines = heading_lines(models, shipped)
    with tempfile.TemporaryDirectory() as passing:
        trained = ModelStore(str(given.trained or passing))
        run = Run(models, shipped, trained, extent, given.seeds, given.limit_s, given.write)
        for part, told in PARTS.items():
            if part in given.parts:
                lines += told(run)
    print("\n".join(lines))
    if given.write:
        (given.write / f"policies{extent.suffix}.md").write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
