"""Devices of plans that the search returns: what a model must price well, and what random draws seldom hold."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from service.domain.deadline import Deadline
from service.domain.errors import Infeasible, InvalidRequest
from service.domain.plan import Algorithm, Problem, tables_on_devices
from service.domain.ports import CostModels
from service.domain.tables import Table
from service.domain.topology import Topology
from service.profiling.campaign import CampaignSettings
from service.profiling.combinations import (
    MOST_WORK_BYTES,
    Combination,
    drawn_batch_size,
    drawn_tables,
    work_bytes,
)
from service.usecases.make_plan import make_plan

DEVICES = (2, 8)
"""Fewest and most devices of a task."""

TABLES = (10, 60)
"""Fewest and most tables of a task."""

_FILLED = 0.9
_TRIES = 20


def planned_devices(
    rng: np.random.Generator, pool: Sequence[Table], settings: CampaignSettings, models: CostModels, count: int
) -> list[Combination]:
    """Devices of NeuroShard's plans of random tasks, each within the bench's memory and ``MOST_WORK_BYTES``.

    The same for the same generator, pool and models. Fewer than ``count`` where too few tasks can be planned.

    Args:
        rng: draws the tasks.
        pool: the tables of the tasks; their widths, batch, optimizer, precision and number are drawn.
        settings: of the campaign; its memory is that of each device.
        models: what the plans are made with.
        count: devices wanted.
    """
    found: list[Combination] = []
    for _ in range(_TRIES + count):
        if len(found) >= count:
            break
        problem = _task(rng, pool, settings)
        if problem is not None:
            found += _devices(problem, models)
    return found[:count]


def _task(rng: np.random.Generator, pool: Sequence[Table], settings: CampaignSettings) -> Problem | None:
    """A problem that fills its devices to ``_FILLED`` at most; None where too few tables fit."""
    optimizer = settings.optimizers[int(rng.integers(len(settings.optimizers)))]
    data_type = settings.data_types[int(rng.integers(len(settings.data_types)))]
    batch_size = drawn_batch_size(rng)
    # Evenly over the logarithm: plans for few devices are those whose devices hold many tables.
    devices = round(float(2 ** rng.uniform(np.log2(DEVICES[0]), np.log2(DEVICES[1]))))
    wanted = int(rng.integers(TABLES[0], TABLES[1] + 1))
    memory = _FILLED * devices * settings.memory_bytes
    work = _FILLED * devices * MOST_WORK_BYTES
    tables = drawn_tables(rng, pool, wanted, data_type, batch_size, optimizer, memory, work)
    if len(tables) < TABLES[0]:
        return None
    # A pool's table may be drawn twice.
    named = tuple(replace(table, name=f"t{i}") for i, table in enumerate(tables))
    topology = Topology(settings.hardware, (settings.memory_bytes,) * devices)
    return Problem(named, topology, batch_size, optimizer)


def _devices(problem: Problem, models: CostModels) -> list[Combination]:
    """Devices of the problem's plan that hold tables and no more work than the bench is given."""
    try:
        plan = make_plan(problem, models, Algorithm.NEUROSHARD, 0, Deadline())
    except (Infeasible, InvalidRequest):
        return []
    held = tables_on_devices(problem, plan.shards)
    return [
        Combination(tuple(tables), problem.global_batch_size, problem.optimizer)
        for tables in held
        if tables and work_bytes(tables, problem.global_batch_size) <= MOST_WORK_BYTES
    ]
