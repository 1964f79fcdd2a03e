"""Training steps under our plans and under TorchRec's, side by side: the same tables, lookups and ranks.

Each of two gloo ranks has a core and a thread, and holds the model under every plan at once. Blocks of steps take
turns, in each round in another order, so that drift of the machine hits all plans alike. The ranks are started again
and again, since where a model comes to lie in memory makes its steps some percent faster or slower to its end, and
change cores, since what else a machine does slows down one core more than the other. A running service is asked for our
plans, by cost models that were measured on single threads and gloo ranks of such a machine. TorchRec's planner is told
the same memory, batch, pooling factors and sharding types, table-wise and column-wise, and has its own figures for the
machine; once more it may use all of its sharding types. Only ours can be told how often ids repeat: it measures a
sample batch.

Tasks are mlperf_dlrm_dcnv2 and SET:POSITION of the published tasks. Run it alone on the machine, on two cores:
PYTHONPATH=client OMP_NUM_THREADS=1 python -m benchmarks.train_steps [TASK ...] [--quick] [--write FILE.md]
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks import shared_data
from benchmarks.machine import command_line, machine_line
from benchmarks.servers import service
from benchmarks.step_report import ArmSteps, TaskSteps, comparison_lines, noise_line, parts_lines
from benchmarks.step_tasks import RANKS, TASKS, StepTask, batches, step_task
from benchmarks.torchrec_plans import available, quiet
from service.domain.errors import MeasurementRefused
from service.profiling.ranks import run_ranks
from shardwright_client import Client

if TYPE_CHECKING:
    from benchmarks.step_models import ArmPlan
    from benchmarks.step_ranks import Trained

Plans = Mapping[str, "ArmPlan"]
Ranks = Sequence[Mapping[str, "Trained"]]

_PACKAGES = ("torch", "fbgemm_gpu-cpu", "torchrec")
_ARMS = 3
_BATCHES = 4
_STEPS = 5
_SAMPLE_SEED, _SEED = 1, 2
_WARM_UP_BATCH = 64
_TIME_LIMIT_S = 300.0
_SAME_LOSS = 1e-3


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is run.

    Attributes:
        tasks: names.
        batch_size: global.
        starts: of the ranks.
        rounds: blocks of each plan in a start.
        limit_bytes: what the tables and buffers of all plans of a task may take on both ranks together.
    """

    tasks: Sequence[str]
    batch_size: int
    starts: int
    rounds: int
    limit_bytes: int


FULL = Extent(TASKS, 4_096, 12, 6, 6 * 2**30)
QUICK = Extent(TASKS[:1], 2_048, 2, 4, 2 * 2**30)


def planned(tasks: Sequence[StepTask]) -> list[Plans]:
    """Plans of the tasks by all planners, ours by a service that runs meanwhile; a first one warms both up."""
    with (
        quiet(),
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        service(Path(folder)) as server,
        Client(server.address, timeout_s=120) as client,
    ):
        from benchmarks.step_models import plans

        every = [step_task(TASKS[0], _WARM_UP_BATCH, copies=1, limit_bytes=FULL.limit_bytes), *tasks]
        samples = [batches(task.problem, 1, _SAMPLE_SEED)[0] for task in every]
        found: list[Plans] = [plans(task, sample, client) for task, sample in zip(every, samples, strict=True)]
    return found[1:]


def trained(task: StepTask, arms: Plans, starts: int, rounds: int) -> TaskSteps:
    """Trains a task under its plans.

    Args:
        task: what is trained.
        arms: by planner.
        starts: of the ranks; in each, another model is made first, and the ranks have each other's cores.
        rounds: blocks of each plan in a start.

    Raises:
        MeasurementRefused: a rank failed, or the plans did not train the same.
    """
    found = [_started(task, arms, rounds, start) for start in range(starts)]
    places = {name: arm.places for name, arm in arms.items()}
    same = tuple((one, other) for one, other in combinations(arms, 2) if places[one] == places[other])
    cap = task.cap.cap if task.cap else None
    return TaskSteps(task.name, len(task.problem.tables), cap, _steps(arms, found), same)


def _started(task: StepTask, arms: Plans, rounds: int, start: int) -> Ranks:
    from benchmarks.step_ranks import Work, train

    first = start % len(arms)
    order = [*arms][first:] + [*arms][:first]
    work = Work(task.problem, {name: arms[name].plan for name in order}, rounds, _STEPS, _BATCHES, _SEED)
    cores = sorted(os.sched_getaffinity(0))[:RANKS][:: -1 if start % 2 else 1]
    with tempfile.TemporaryDirectory(prefix="shardwright-steps-") as folder:
        ranks = run_ranks(partial(train, work, Path(folder), cores), RANKS, _TIME_LIMIT_S)
    refuse_unlike(task.name, {name: [rank[name].loss for rank in ranks] for name in arms})
    return ranks


def refuse_unlike(task: str, losses: Mapping[str, Sequence[float]]) -> None:
    """Raises MeasurementRefused where the ranks' last losses depend on the plan: it must not change what is trained."""
    first, *others = losses.values()
    if any(not np.allclose(first, other, rtol=_SAME_LOSS) for other in others):
        raise MeasurementRefused(f"{task}: plans must train the same, but the last losses of the ranks are {losses}")


def _steps(arms: Plans, starts: Sequence[Ranks]) -> dict[str, ArmSteps]:
    return {
        name: ArmSteps(
            step_ms=np.array([ranks[0][name].step_ms for ranks in starts]),
            processor_ms=tuple(
                float(np.median([ranks[rank][name].processor_ms for ranks in starts])) for rank in range(RANKS)
            ),
            planning_s=arm.planning_s,
            kinds=arm.kinds,
            predicted=tuple(device.cost_ms for device in arm.estimate.devices) if arm.estimate else None,
            parts_ms=tuple(_medians([ranks[rank][name].parts_ms for ranks in starts]) for rank in range(RANKS)),
        )
        for name, arm in arms.items()
    }


def _medians(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Of each part over the starts in which it was told apart."""
    known = [parts for parts in found if parts]
    return {name: float(np.median([parts[name] for parts in known])) for name in (known[0] if known else ())}


def report(results: Sequence[TaskSteps], extent: Extent, versions: Mapping[str, str]) -> list[str]:
    """What is to be told, as Markdown."""
    ours, *others = results[0].arms
    return [
        "# Training steps under our plans and under TorchRec's",
        "",
        f"`OMP_NUM_THREADS=1 {command_line('benchmarks.train_steps')}` on {machine_line(_PACKAGES)}.",
        "",
        *(__doc__ or "").split("Tasks are")[0].strip().splitlines()[2:],
        "",
        f"Global batch {extent.batch_size:,}, fp32, sgd; {_BATCHES} batches of lookups in turn, drawn to the tables' "
        f"pooling factors and reuse histograms; {extent.starts} starts with {extent.rounds} blocks of {_STEPS} timed "
        "steps for each plan. Tables' "
        f"rows are cut so that all plans of a task fit into {extent.limit_bytes / 2**30:g} GiB. A step has the "
        "exchange of ids, lookups, pooled exchanges, one dense layer, and the backward pass with the update of all "
        f"weights. Costs are predicted by {' and '.join(versions.values())}.",
        "",
        "Ratio: geometric mean over the starts, below 1 ours is faster, with Student's interval over the starts. Gain: "
        "milliseconds of a step by which ours is faster, a median where measured. Planning: one plan each; ours has "
        "the call to the service and the sample's measuring in it.",
        "",
        *(line for other in others for line in comparison_lines(results, ours, other)),
        noise_line(results),
        "",
        *parts_lines(results),
    ]


def main() -> None:
    """Plans, trains, prints the report and writes it where told to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", help=f"by default {' '.join(TASKS)}")
    parser.add_argument("--quick", action="store_true", help="one task, few rounds, little memory")
    parser.add_argument("--starts", type=int, help=f"of the ranks, by default {FULL.starts}")
    parser.add_argument("--write", type=Path, help="Markdown file to write the report to")
    given = parser.parse_args()
    if given.write and not given.write.parent.is_dir():
        parser.error(f"--write: there is no folder {given.write.parent}")
    if given.starts is not None and given.starts < QUICK.starts:
        parser.error(f"--starts is {given.starts}: an interval needs {QUICK.starts} at least")
    if len(os.sched_getaffinity(0)) < RANKS:
        parser.error(f"{RANKS} ranks need a core each, and this process may use one: allow more (taskset)")
    if not (shared_data.present() and available()):
        sys.exit(
            f"skipped: needs TorchRec (benchmarks/requirements-torchrec.txt) and the tables at {shared_data.SHARED}"
        )
    extent = QUICK if given.quick else FULL
    extent = replace(extent, tasks=given.tasks or extent.tasks, starts=given.starts or extent.starts)
    try:
        tasks = [step_task(name, extent.batch_size, _ARMS, extent.limit_bytes) for name in extent.tasks]
    except ValueError as fault:
        parser.error(str(fault))
    lines = report(*measured(tasks, extent))
    print("\n".join(lines))
    if given.write:
        given.write.write_text("\n".join(lines), encoding="utf-8")


def measured(tasks: Sequence[StepTask], extent: Extent) -> tuple[list[TaskSteps], Extent, Mapping[str, str]]:
    """The arguments of ``report``; says when a task is done."""
    results, plans = [], planned(tasks)
    for task, arms in zip(tasks, plans, strict=True):
        started = time.perf_counter()
        results.append(trained(task, arms, extent.starts, extent.rounds))
        print(f"{task.name}: {time.perf_counter() - started:.0f} s", flush=True)
    versions = next(arm.estimate.models for arms in plans for arm in arms.values() if arm.estimate)
    return results, extent, versions


if __name__ == "__main__":
    main()
