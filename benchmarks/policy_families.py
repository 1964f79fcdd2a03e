"""The families of tasks that policies are judged on, of tables that none of them was trained on.

Tables are those of the test halves of the published DreamShard tasks, and all that is not varied is as in those or in
AutoShard's: weights alone count, sgd.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from benchmarks import shared_data
from benchmarks.search_tasks import BATCH_SIZE, HARDWARE
from service.domain.plan import Constraints, Problem, ShardingType
from service.domain.tables import DataType, Optimizer, Table
from service.domain.topology import Topology
from service.training.task_families import MIXED_DIMS, TaskFamily, draw_problems

DREAMSHARD_BYTES = 5 * 2**30
"""Memory of a device in DreamShard's tasks."""

AUTOSHARD_BYTES = 7 * 10**9
"""Memory of a device in AutoShard's, 7 GB."""

MOST_TASKS = 50
"""Tasks of a family, as many as the published ones have."""

_SEED = 100
_SETS = ("T20", "T50")


@dataclass(frozen=True, slots=True)
class JudgedFamily:
    """Tasks that are judged together.

    Attributes:
        name: what reports call them.
        problems: the tasks; tables stay whole.
    """

    name: str
    problems: tuple[Problem, ...]


def dreamshard_problems(
    task_set: str, half: str, devices: int = 4, batch_size: int = BATCH_SIZE, count: int = MOST_TASKS
) -> tuple[Problem, ...]:
    """Published DreamShard tasks: dim 16, fp16, 5 GiB a device.

    Args:
        task_set: ``T20`` or ``T50``.
        half: ``train`` or ``test``; they share no table.
        devices: how many; 4 as published.
        batch_size: global.
        count: the first so many.
    """
    pool = shared_data.pool()
    tasks = shared_data.tasks(f"dreamshard_{task_set}_seed0")[half][:count]
    return tuple(_dreamshard_problem([pool[i] for i in ids], devices, batch_size) for ids in tasks)


def half_of_tables(half: str) -> tuple[Table, ...]:
    """The tables of the public set that published DreamShard tasks of a half have, in order."""
    ids = {i for task_set in _SETS for task in shared_data.tasks(f"dreamshard_{task_set}_seed0")[half] for i in task}
    pool = shared_data.pool()
    return tuple(pool[i] for i in sorted(ids))


def autoshard_problems(
    half: str, tables: int = 80, devices: int = 8, batch_size: int = BATCH_SIZE, count: int = MOST_TASKS
) -> tuple[Problem, ...]:
    """Tasks as AutoShard's: dims 16 or 32, fp32, 7 GB a device, or more where tables need half of what there is."""
    family = _family(f"{tables} x {devices}", tables, devices, (16, 32), batch_size)
    found = []
    for problem in draw_problems(family, half_of_tables(half), HARDWARE, count, _SEED):
        need = problem.topology.memory_bytes[0]
        found.append(_with_memory(problem, max(AUTOSHARD_BYTES, 2 * need // devices)))
    return tuple(found)


def judged_families(count: int = MOST_TASKS) -> Iterable[JudgedFamily]:
    """All of them, with at most so many tasks each."""
    test = half_of_tables("test")
    for task_set, devices in (("T20", 4), ("T50", 4), ("T50", 8)):
        yield JudgedFamily(f"{task_set} x {devices}", dreamshard_problems(task_set, "test", devices, count=count))
    hundred = draw_problems(_family("T100", 100, 8, (16,)), test, HARDWARE, count, _SEED)
    yield JudgedFamily("T100 x 8", tuple(_dreamshard_problem(problem.tables, 8, BATCH_SIZE) for problem in hundred))
    mixed = TaskFamily(
        "mixed dims",
        (20, 80),
        (4, 8),
        MIXED_DIMS,
        batch_sizes=(8_192, BATCH_SIZE),
        widest_share=1.0,
        count_buffers=False,
    )
    tight = replace(mixed, name="tight memory", tightness=1.1, widest_share=None)
    for family in (mixed, tight):
        problems = draw_problems(family, test, HARDWARE, count, _SEED)
        yield JudgedFamily(family.name, tuple(map(whole, problems)))
    for tables, devices in ((80, 8), (20, 8), (40, 8), (160, 8), (300, 8), (80, 4), (80, 16)):
        yield JudgedFamily(
            f"{tables} x {devices}, dims 16/32", autoshard_problems("test", tables, devices, count=count)
        )


def whole(problem: Problem) -> Problem:
    """The problem with tables that may not be cut."""
    constraints = replace(problem.constraints, sharding_types=frozenset({ShardingType.TABLE_WISE}))
    return replace(problem, constraints=constraints)


def _family(name: str, tables: int, devices: int, dims: tuple[int, ...], batch_size: int = BATCH_SIZE) -> TaskFamily:
    sizes = (tables, tables)
    return TaskFamily(name, sizes, (devices,), dims, (DataType.FP32,), batch_sizes=(batch_size,), count_buffers=False)


def _dreamshard_problem(tables: Iterable[Table], devices: int, batch_size: int) -> Problem:
    named = tuple(
        replace(table, name=f"{table.name}_{n}", embedding_dim=16, data_type=DataType.FP16)
        for n, table in enumerate(tables)
    )
    topology = Topology(HARDWARE, (DREAMSHARD_BYTES,) * devices)
    return whole(Problem(named, topology, batch_size, Optimizer.SGD, Constraints(count_buffers=False)))


def _with_memory(problem: Problem, memory_bytes: int) -> Problem:
    topology = Topology(HARDWARE, (memory_bytes,) * problem.topology.device_count)
    return whole(replace(problem, topology=topology))
