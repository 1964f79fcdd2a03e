"""Published planning tasks as problems, and the heuristics that plans of them are compared with."""

from dataclasses import replace

from benchmarks import shared_data
from service.domain.deadline import Deadline
from service.domain.errors import Infeasible
from service.domain.plan import Algorithm, Constraints, Problem
from service.domain.ports import CostModels
from service.domain.tables import Optimizer, Table
from service.domain.topology import Topology
from service.usecases.make_plan import make_plan

HARDWARE = "cpu-fbgemm"
BATCH_SIZE = 65_536
DEVICE_BYTES = 4 * 2**30
HEURISTICS = (
    Algorithm.DIM_GREEDY,
    Algorithm.SIZE_GREEDY,
    Algorithm.LOOKUP_GREEDY,
    Algorithm.SIZE_LOOKUP_GREEDY,
)

TASK_SETS = {"4gpu_maxdim128": 4, "4gpu_maxdim16": 4, "8gpu_maxdim64": 8}
"""Devices of each set of a hundred tasks."""


def task_problems(task_set: str) -> list[Problem]:
    """All tasks of a set."""
    pool = shared_data.pool()
    return [task_problem(pool, task, TASK_SETS[task_set]) for task in shared_data.tasks(f"neuroshard_{task_set}_seed0")]


def task_problem(pool: tuple[Table, ...], task: dict[str, list[int]], devices: int) -> Problem:
    """A published task as a problem: weights only, fp32, sgd, 4 GiB a device."""
    tables = tuple(
        replace(pool[i], name=f"{i}_{n}", embedding_dim=dim)
        for n, (i, dim) in enumerate(zip(task["table_ids"], task["dims"], strict=True))
    )
    topology = Topology(HARDWARE, (DEVICE_BYTES,) * devices)
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
