"""Cutting tables' rows so that plans can be carried out in less memory than they were made for.

One cap holds for every table of every plan, so that plans stay comparable. Fewer rows change where lookups go, not how
often they repeat: a cut table keeps the distinct ids that one batch of it looks up and its reuse histogram, also where
these were only inferred. Where told distinct ids contradict the law that a missing histogram is inferred by, they alone
are kept.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from service.cost_models.assumptions import listed
from service.domain.errors import MeasurementRefused
from service.domain.memory import buffer_bytes, optimizer_bytes
from service.domain.plan import Problem
from service.domain.reuse import reuse_fault, reuse_profile
from service.domain.tables import Optimizer, ReuseHistogram, Table

# Rounding to whole ids may take a few hundredths more of them, and reuse_fault allows for one.
_ROOM = 1.05

Devices = Sequence[Sequence[Table]]
"""Tables (or slices) of each device, over the devices of all plans."""


@dataclass(frozen=True, slots=True)
class RowsCap:
    """How far rows were cut.

    Attributes:
        cap: most rows of a table, unless one batch looks up more distinct ids than that.
        tables: rows that the tables had which were cut, by name.
    """

    cap: int
    tables: Mapping[str, int]

    def sentence(self) -> str:
        """What was cut, for people."""
        return (
            f"rows of {listed(list(self.tables))} were cut to {self.cap}, or to the distinct ids that a batch looks up "
            "where those are more, to fit in memory: all costs and their order, predicted and measured, are of the cut "
            "tables"
        )


def needed_memory(devices: Devices, batch_size: int, optimizer: Optimizer, shared: bool) -> int:
    """Bytes that devices prepared together take: weights with optimizer state, and the buffers of each.

    Args:
        devices: of all plans, one at least.
        batch_size: the global batch.
        optimizer: the fused optimizer.
        shared: whether the weights of all are the same memory, as large as the largest, and so their states.
    """
    weights = [sum(table.weight_bytes for table in tables) for tables in devices]
    states = [sum(optimizer_bytes(table, optimizer) for table in tables) for tables in devices]
    buffers = sum(buffer_bytes(table, batch_size) for tables in devices for table in tables)
    return (max(weights) + max(states) if shared else sum(weights) + sum(states)) + buffers


def rows_cap(problem: Problem, devices: Devices, limit_bytes: int, shared: bool) -> RowsCap | None:
    """The largest cap under which the devices fit into memory together, None where they do uncut.

    Args:
        problem: whose tables the devices hold.
        devices: of all plans.
        limit_bytes: what ``needed_memory`` may be.
        shared: as in ``needed_memory``.

    Raises:
        MeasurementRefused: they do not fit however few rows are kept; ``data`` has the bytes needed and the limit.
    """
    least = {table.name: least_rows(table, problem.global_batch_size) for table in problem.tables}

    def needed(cap: int) -> int:
        cut = [[_cut_to(table, max(cap, least[table.name])) for table in tables] for tables in devices]
        return needed_memory(cut, problem.global_batch_size, problem.optimizer, shared)

    most = max(table.num_embeddings for table in problem.tables)
    if needed(most) <= limit_bytes:
        return None
    if needed(1) > limit_bytes:
        raise MeasurementRefused(
            f"carrying the plans out needs {needed(1) / 2**30:.2f} GiB however few rows the tables keep, "
            f"{limit_bytes / 2**30:.2f} GiB are allowed: allow more, give fewer plans or a smaller batch",
            needed_bytes=needed(1),
            limit_bytes=limit_bytes,
        )
    cap = _largest(lambda rows: needed(rows) <= limit_bytes, 1, most)
    rows = {table.name: table.num_embeddings for table in problem.tables}
    return RowsCap(cap, {name: had for name, had in rows.items() if had > max(cap, least[name])})


def capped(problem: Problem, cap: RowsCap | None) -> Problem:
    """The problem with its tables cut, how often their ids repeat unchanged."""
    if cap is None:
        return problem
    batch_size = problem.global_batch_size
    tables = (_capped(table, cap.cap, batch_size) if table.name in cap.tables else table for table in problem.tables)
    return replace(problem, tables=tuple(tables))


def least_rows(table: Table, batch_size: int) -> int:
    """Fewest rows that a table may be cut to: room for the distinct ids of one batch, the planned and the counted."""
    distinct = max(reuse_profile(table, batch).distinct for batch in (batch_size, _counted_batch(table, batch_size)))
    return min(table.num_embeddings, max(1, math.ceil(distinct * _ROOM)))


def _capped(table: Table, cap: int, batch_size: int) -> Table:
    """The table cut, its distinct rows and its histogram pinned to what they were inferred to be before."""
    counted = _counted_batch(table, batch_size)
    cut = _cut_to(table, max(cap, least_rows(table, batch_size)))
    if not table.lookups(counted):
        return cut
    before = reuse_profile(table, counted)
    cut = replace(cut, distinct_rows=before.distinct if table.distinct_rows is None else table.distinct_rows)
    inferred = ReuseHistogram(counted, tuple(before.fractions.tolist()))
    pinned = replace(cut, reuse_histogram=table.reuse_histogram or inferred)
    return cut if reuse_fault(pinned) else pinned


def _counted_batch(table: Table, batch_size: int) -> int:
    """The batch that a table's ``distinct_rows`` belongs to."""
    return table.reuse_histogram.batch_size if table.reuse_histogram else batch_size


def _cut_to(table: Table, rows: int) -> Table:
    return replace(table, num_embeddings=min(table.num_embeddings, rows))


def _largest(fits: Callable[[int], bool], low: int, high: int) -> int:
    """The largest number in [low, high) that fits; ``low`` does, ``high`` does not."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
