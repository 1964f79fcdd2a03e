"""Tables that are trained side by side under several plans, and the lookups of the steps."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks import shared_data
from benchmarks.search_tasks import HARDWARE, TASK_SETS, task_problems
from service.domain.plan import Problem
from service.domain.tables import Optimizer, Table
from service.domain.topology import Topology
from service.profiling.pools import read_pool
from service.profiling.rows_cap import RowsCap, capped, rows_cap
from service.profiling.workload import index_stream

Integers = NDArray[np.int64]

RANKS = 2
RANK_BYTES = 16 * 2**30
"""Memory that planners are told a rank has: more than any task needs, so that only times matter."""

MLPERF = "mlperf_dlrm_dcnv2"
TASKS = (MLPERF, *(f"4gpu_maxdim128:{position}" for position in range(9)))
"""MLPerf's tables, and the first published tasks with tables of the public pool up to 128 columns wide."""


@dataclass(frozen=True, slots=True)
class StepTask:
    """Tables to train.

    Attributes:
        name: a public model, or SET:POSITION of a published task.
        problem: with rows that fit.
        cap: how far rows were cut, None for not at all.
    """

    name: str
    problem: Problem
    cap: RowsCap | None


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Lookups of samples.

    Attributes:
        ids: [L] rows, feature by feature and sample by sample.
        lengths: [F, B] lookups of each of F features in each of B samples.
    """

    ids: Integers
    lengths: Integers

    def part(self, rank: int, ranks: int) -> "Batch":
        """The samples of a rank: one of so many equal shares, in order."""
        own = np.arange(self.lengths.shape[1]) * ranks // self.lengths.shape[1] == rank
        kept = np.repeat(np.broadcast_to(own, self.lengths.shape).ravel(), self.lengths.ravel())
        return Batch(self.ids[kept], self.lengths[:, own])


def step_task(name: str, batch_size: int, copies: int, limit_bytes: int) -> StepTask:
    """A task whose rows are cut so that several copies of its tables fit.

    Args:
        name: of ``TASKS``, or another one of the kind.
        batch_size: the global one.
        copies: as many as there are plans.
        limit_bytes: what weights and buffers of all copies may take.

    Raises:
        ValueError: there is no such task; says why.
        MeasurementRefused: the copies do not fit however few rows are kept.
    """
    tables = _tables(name)
    problem = Problem(tables, Topology(HARDWARE, (RANK_BYTES,) * RANKS), batch_size, Optimizer.SGD)
    cap = rows_cap(problem, [tables] * copies, limit_bytes, shared=False)
    return StepTask(name, capped(problem, cap), cap)


def batches(problem: Problem, count: int, seed: int) -> list[Batch]:
    """Global batches whose ids repeat as the tables say, drawn independently of each other."""
    rng = np.random.default_rng(seed)
    return [_batch(problem, rng) for _ in range(count)]


def _batch(problem: Problem, rng: np.random.Generator) -> Batch:
    streams = [index_stream(table, problem.global_batch_size, rng) for table in problem.tables]
    lengths = np.concatenate([np.diff(stream.offsets) for stream in streams])
    ids = np.concatenate([stream.indices for stream in streams])
    return Batch(ids, lengths.reshape(-1, problem.global_batch_size))


def _tables(name: str) -> tuple[Table, ...]:
    task_set, _, position = name.partition(":")
    if task_set == MLPERF and not position:
        return read_pool(shared_data.SHARED / "data" / "tables" / f"{MLPERF}.json")
    if task_set not in TASK_SETS:
        raise ValueError(f"{name}: there is {MLPERF}, and SET:POSITION with one of the sets {', '.join(TASK_SETS)}")
    if not (position.isdecimal() and int(position) < 100):
        raise ValueError(f"{name}: a position is a number from 0 to 99, got {position!r}")
    return task_problems(task_set)[int(position)].tables
