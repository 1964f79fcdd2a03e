"""NeuroShard's plans beside the greedy heuristics' on public tasks, by predicted cost, and the planning time.

The first tasks, and those of the hundred that hold a table larger than a device, which only cuts can place.
Run: python -m benchmarks.search_tasks [tasks]
"""

import sys
import time
from dataclasses import replace

import numpy as np

from benchmarks import shared_data
from service.domain.deadline import Deadline
from service.domain.errors import Infeasible
from service.domain.plan import Algorithm, Constraints, Problem
from service.domain.ports import CostModels
from service.domain.tables import Optimizer, Table
from service.domain.topology import Topology
from service.registry.store import ModelStore
from service.usecases.make_plan import make_plan

BATCH_SIZE = 65_536
DEVICE_BYTES = 4 * 2**30
HEURISTICS = (
    Algorithm.DIM_GREEDY,
    Algorithm.SIZE_GREEDY,
    Algorithm.LOOKUP_GREEDY,
    Algorithm.SIZE_LOOKUP_GREEDY,
)


def task_problem(pool: tuple[Table, ...], task: dict[str, list[int]], devices: int) -> Problem:
    """A published task as a problem: weights only, fp32, sgd, 4 GiB a device."""
    tables = tuple(
        replace(pool[i], name=f"{i}_{n}", embedding_dim=dim)
        for n, (i, dim) in enumerate(zip(task["table_ids"], task["dims"], strict=True))
    )
    topology = Topology("cpu-fbgemm", (DEVICE_BYTES,) * devices)
    return Problem(tables, topology, BATCH_SIZE, Optimizer.SGD, Constraints(count_buffers=False))


def predicted(problem: Problem, algorithm: Algorithm, models: CostModels) -> float:
    """Predicted cost of an algorithm's plan, milliseconds; infinite where it finds none."""
    try:
        return make_plan(problem, models, algorithm, 0, Deadline()).max_cost_ms
    except Infeasible:
        return float("inf")


def needs_cuts(problem: Problem) -> bool:
    """Whether a table is too large for any device."""
    largest = max(problem.topology.memory_bytes)
    return any(problem.memory_of(table).total > largest for table in problem.tables)


def main() -> None:
    """Prints a row for each task and the summary."""
    if not shared_data.present():
        sys.exit(f"skipped: the public tasks are not at {shared_data.SHARED}")
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    pool = shared_data.pool()
    models = ModelStore("model_store").cost_models("cpu-fbgemm")
    problems = [task_problem(pool, task, devices=4) for task in shared_data.tasks("neuroshard_4gpu_maxdim128_seed0")]
    ratios, seconds = [], []
    for number, problem in enumerate(problems):
        if number >= count and not needs_cuts(problem):
            continue
        started = time.perf_counter()
        ours = predicted(problem, Algorithm.NEUROSHARD, models)
        seconds.append(time.perf_counter() - started)
        best = min(predicted(problem, algorithm, models) for algorithm in HEURISTICS)
        ratios.append(ours / best)
        cuts = ", a table larger than a device" if needs_cuts(problem) else ""
        size = f"{len(problem.tables)} tables{cuts}"
        print(f"task {number}: {size}, neuroshard {ours:.1f} ms, best greedy {best:.1f} ms, {seconds[-1]:.2f} s")
    print(
        f"{len(ratios)} tasks: neuroshard / best greedy {np.mean(ratios):.3f} on average, {np.max(ratios):.3f} at "
        f"most; {np.mean(seconds):.2f} s a plan, {np.max(seconds):.2f} s at most"
    )


if __name__ == "__main__":
    main()
