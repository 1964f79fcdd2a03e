"""Our planners and TorchRec's in one run: plans of published tasks, planning times, and public models.

One process, one thread. All plans are priced by our models. TorchRec is asked where it is installed.
Run: OMP_NUM_THREADS=1 python -m benchmarks.planners [tasks] [times] [models] [--quick] [--write benchmarks/results]
"""

import argparse
import math
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import shared_data
from benchmarks.machine import command_line, machine_line
from benchmarks.planner_answers import (
    ALGORITHMS,
    TORCHREC,
    TORCHREC_DEFAULTS,
    WIDTHS,
    Planner,
    ours,
    planners,
    torchrec,
    torchrec_defaults,
)
from benchmarks.planning_times import LONGEST_S, Size, draw, grown_problem, time_lines, timed
from benchmarks.public_models import MODELS, model_lines, model_problem
from benchmarks.search_tasks import BATCH_SIZE, HARDWARE, TASK_SETS, needs_cuts, task_problems
from benchmarks.task_quality import asked, set_lines
from benchmarks.torchrec_plans import available
from service.domain.plan import Algorithm
from service.domain.ports import CostModels
from service.registry.store import ModelStore

_PACKAGES = ("numpy", "ortools", "torch", "torchrec")
_TIMED = (Algorithm.LOOKUP_GREEDY, Algorithm.NEUROSHARD, Algorithm.AUTO)
_WARM_UP = Size(10, 2)


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is run.

    Attributes:
        file: name of the report, without a suffix.
        tasks: first tasks of each set; those with a table larger than a device come on top.
        defaults: of them, those that TorchRec with its defaults is asked for.
        tables: numbers of tables that planning is timed for.
        devices: numbers of devices that it is timed for.
        timeout_s: when TorchRec stops proposing for a public model, in each of its runs.
    """

    file: str
    tasks: int
    defaults: int
    tables: Sequence[int]
    devices: Sequence[int]
    timeout_s: int


FULL = Extent("planners", 100, 20, (10, 20, 50, 120, 250, 500, 1_000), (4, 8, 16, 32, 64), 60)
QUICK = Extent("planners-quick", 12, 2, (20, 120, 500), (4, 8, 16), 5)


@dataclass(frozen=True, slots=True)
class Run:
    """What a part of the benchmark is given.

    Attributes:
        models: price all plans.
        extent: how much to run.
        limit_s: time that our planners get for a task.
        write: folder to write plots to, None for none.
    """

    models: CostModels
    extent: Extent
    limit_s: float
    write: Path | None


def task_lines(run: Run) -> list[str]:
    """Plans of the published tasks."""
    every = planners(run.models, run.limit_s)
    if available():
        every[TORCHREC_DEFAULTS] = torchrec_defaults(run.models)
    widths = ", ".join(str(width or 128) for width in WIDTHS)
    lines = [
        "## Published tasks",
        "",
        f"Batch {BATCH_SIZE:,}, fp32, sgd, weights alone count, 4 GiB a device; ours have {run.limit_s:g} s a plan. "
        "Answered is planned or proven infeasible. Ratios and gaps are means over the tasks where both have a plan. "
        f"TorchRec searches no column widths: {TORCHREC} is the best by our models of a run for each least width "
        f"({widths}), whole tables allowed, and its seconds are of these runs together.",
        "",
    ]
    for task_set in TASK_SETS:
        problems = {
            number: problem
            for number, problem in enumerate(task_problems(task_set))
            if number < run.extent.tasks or needs_cuts(problem)
        }
        found = asked(task_set, problems, every, {TORCHREC_DEFAULTS: run.extent.defaults})
        lines += set_lines(found)
    return lines


def timing_lines(run: Run) -> list[str]:
    """Planning time by tables and devices."""
    limits = {Algorithm.AUTO: run.limit_s}
    every = {a.value: ours(a, run.models, limits.get(a, math.inf)) for a in _TIMED if a in ALGORITHMS}
    if available():
        every[TORCHREC] = torchrec(run.models, WIDTHS[:1])
        every[TORCHREC_DEFAULTS] = torchrec_defaults(run.models)
    found = timed(shared_data.pool(), every, run.extent.tables, run.extent.devices)
    lines = [
        "## Planning time",
        "",
        f"Tables of the public pool, dims 16 to 128, weights fill half of the memory. auto has {run.limit_s:g} s, the "
        "others have no limit; no planner is asked for more tables once the next number would take it more than "
        f"{LONGEST_S:.0f} s." + (f" {TORCHREC} is one run here, for its default width." if available() else ""),
        "",
    ]
    if run.write:
        draw(found, run.write / f"{run.extent.file}.png")
        lines += [f"![Planning time by tables and devices]({run.extent.file}.png)", ""]
    return [*lines, *time_lines(found)]


def public_model_lines(run: Run) -> list[str]:
    """Plans of public models."""
    lines = [
        "## Public models",
        "",
        f"fp32, sgd, buffers count. TorchRec stops proposing after {run.extent.timeout_s} s in each of its runs.",
        "",
    ]
    for model in MODELS:
        problem, answers = model_problem(model), {}
        for name, planner in planners(run.models, model.limit_s, run.extent.timeout_s).items():
            answers[name] = planner(problem)
            print(f"{model.name}, {name}: {answers[name].cost_ms:.1f} ms, {answers[name].seconds:.2f} s", flush=True)
        lines += model_lines(model, problem, answers)
    return lines


PARTS: dict[str, Callable[[Run], list[str]]] = {
    "tasks": task_lines,
    "times": timing_lines,
    "models": public_model_lines,
}


def main() -> None:
    """Runs the parts, prints their tables, and writes them and the plot where told to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=[*PARTS], help=f"of {', '.join(PARTS)}; all where none is named")
    parser.add_argument("--quick", action="store_true", help="a few tasks and sizes, a few minutes in all")
    parser.add_argument("--limit-s", type=float, default=2.0, help="time that our planners get for a task, seconds")
    parser.add_argument("--write", type=Path, help="folder to write the report and the plot to")
    given = parser.parse_args()
    if unknown := [part for part in given.parts if part not in PARTS]:
        parser.error(f"there is no part {unknown[0]}: name of {', '.join(PARTS)}")
    if os.environ.get("OMP_NUM_THREADS") != "1":
        parser.error("planning is timed on one thread: set OMP_NUM_THREADS=1")
    if not shared_data.present():
        sys.exit(f"skipped: the public tasks are not at {shared_data.SHARED}")
    if given.write:
        given.write.mkdir(parents=True, exist_ok=True)
    models = ModelStore("model_store").cost_models(HARDWARE)
    run = Run(models, QUICK if given.quick else FULL, given.limit_s, given.write)
    lines = heading_lines(models)
    _warm_up(planners(models, given.limit_s))
    for part in given.parts:
        lines += PARTS[part](run)
    print("\n".join(lines))
    if given.write:
        (given.write / f"{run.extent.file}.md").write_text("\n".join(lines), encoding="utf-8")


def heading_lines(models: CostModels) -> list[str]:
    """What was run, when and on what."""
    missing = "TorchRec is not installed, its rows are missing: `make bench` installs it."
    without = [] if available() else [missing, ""]
    return [
        "# Planners compared",
        "",
        f"`OMP_NUM_THREADS=1 {command_line('benchmarks.planners')}` on {machine_line(_PACKAGES)}. All plans are priced "
        f"by {' and '.join(models.versions.values())}. One process, one thread.",
        "",
        *without,
    ]


def _warm_up(every: dict[str, Planner]) -> None:
    """What a first plan loads is no part of planning time."""
    problem = grown_problem(shared_data.pool(), _WARM_UP)
    for planner in every.values():
        planner(problem)


if __name__ == "__main__":
    main()
