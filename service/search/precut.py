"""Cuts that must be made before placement; every other table stays whole."""

import math
from collections.abc import Sequence
from dataclasses import replace

from service.domain.deadline import Deadline
from service.domain.errors import Infeasible
from service.domain.plan import Constraints, Problem, ShardingType, Slice
from service.domain.tables import Table
from service.search.packing import pack
from service.search.quantities import gibibytes

_REMEDY_NODES = 5_000


def precut(problem: Problem) -> tuple[Slice, ...]:
    """The fewest slices that a plan can be made of, each table's widths as even as possible, wider ones first.

    A table is cut where it is wider than ``max_shard_dim``, where it fits no device whole, or where ``table_wise``
    is not allowed and the table can be cut at all.

    Raises:
        Infeasible: ``table_exceeds_device``, proven: some table fits no device however it may be cut.
    """
    widths = [needed_widths(problem, table) for table in problem.tables]
    misfits = [table for table, found in zip(problem.tables, widths, strict=True) if not found]
    if misfits:
        raise _exceeds_device(problem, misfits)
    slices = []
    for index, found in enumerate(widths):
        start = 0
        for width in found:
            slices.append(Slice(index, start, start + width))
            start += width
    return tuple(slices)


def needed_widths(problem: Problem, table: Table) -> tuple[int, ...]:
    """Widths of the fewest slices that fit the largest device; empty where no allowed number of slices does."""
    limit = max(problem.topology.memory_bytes)
    for count in _slice_counts(problem.constraints, table.embedding_dim):
        widths = even_widths(table.embedding_dim, count, problem.constraints.column_multiple)
        if problem.memory_of(table.sliced(widths[0])).total <= limit:
            return widths
    return ()


def even_widths(dim: int, count: int, multiple: int) -> tuple[int, ...]:
    """Widths of ``count`` slices of ``dim`` columns, as even as multiples of ``multiple`` allow, wider ones first.

    One slice is the whole table, whatever its width.
    """
    if count == 1:
        return (dim,)
    base, wider = divmod(dim // multiple, count)
    return (multiple * (base + 1),) * wider + (multiple * base,) * (count - wider)


def can_be_cut(constraints: Constraints, dim: int) -> bool:
    """Whether a table of ``dim`` columns may be cut at all."""
    return len(_cut_counts(constraints, dim)) > 0


def _slice_counts(constraints: Constraints, dim: int) -> Sequence[int]:
    """Numbers of slices that a table may have, ascending."""
    cuts = _cut_counts(constraints, dim)
    must_cut = ShardingType.TABLE_WISE not in constraints.sharding_types and len(cuts) > 0
    if must_cut or dim > constraints.max_shard_dim:
        return cuts
    return [1, *cuts]


def _cut_counts(constraints: Constraints, dim: int) -> range:
    """Numbers of slices, two or more, whose even widths are all allowed."""
    multiple = constraints.column_multiple
    if ShardingType.COLUMN_WISE not in constraints.sharding_types or dim % multiple:
        return range(0)
    narrowest = max(1, math.ceil(constraints.min_shard_dim / multiple))
    widest = constraints.max_shard_dim // multiple
    if widest < narrowest:
        return range(0)
    units = dim // multiple
    return range(max(2, math.ceil(units / widest)), units // narrowest + 1)


def _exceeds_device(problem: Problem, misfits: Sequence[Table]) -> Infeasible:
    limit = max(problem.topology.memory_bytes)
    needs = {table.name: _least_memory(problem, table) for table in misfits}
    worst = max(needs, key=needs.__getitem__)
    shortfall = max(0, needs[worst] - limit)
    return Infeasible(
        _sentence(problem, next(table for table in misfits if table.name == worst), needs[worst]),
        reason="table_exceeds_device",
        proven=True,
        shortfall_bytes=shortfall,
        tables=list(needs),
        devices=range(problem.topology.device_count),
        remedies=_remedies(problem, misfits, needs[worst]),
    )


def _least_memory(problem: Problem, table: Table) -> int:
    """Bytes of the widest slice of the finest cut allowed: no device that lacks them can take part of the table."""
    counts = _cut_counts(problem.constraints, table.embedding_dim)
    finest = counts[-1] if counts else 1
    widths = even_widths(table.embedding_dim, finest, problem.constraints.column_multiple)
    return problem.memory_of(table.sliced(widths[0])).total


def _sentence(problem: Problem, table: Table, need: int) -> str:
    limit, constraints = max(problem.topology.memory_bytes), problem.constraints
    if can_be_cut(constraints, table.embedding_dim):
        return (
            f"table {table.name!r}: even its narrowest slices need {gibibytes(need)}, "
            f"the largest device holds {gibibytes(limit)}"
        )
    if need > limit:
        return f"table {table.name!r} uncut needs {gibibytes(need)}, the largest device holds {gibibytes(limit)}"
    return (
        f"table {table.name!r} is {table.embedding_dim} columns wide, a shard may have {constraints.max_shard_dim}, "
        "and no cut of it is allowed"
    )


def _remedies(problem: Problem, misfits: Sequence[Table], need: int) -> list[str]:
    remedies = _split_remedies(problem, misfits)
    limit = max(problem.topology.memory_bytes)
    if need > limit:
        remedies.append(f"at least {gibibytes(need)} ({need} bytes) of memory on a device, {need - limit} bytes more")
    else:
        remedies.append(f"a max_shard_dim of {max(table.embedding_dim for table in misfits)}")
    return remedies


def _split_remedies(problem: Problem, misfits: Sequence[Table]) -> list[str]:
    """What allowing column splits would do, said only where a placement with them was found."""
    constraints = problem.constraints
    if ShardingType.COLUMN_WISE in constraints.sharding_types:
        return []
    allowed = constraints.sharding_types | {ShardingType.COLUMN_WISE}
    relaxed = replace(problem, constraints=replace(constraints, sharding_types=allowed))
    cuts = [needed_widths(relaxed, table) for table in relaxed.tables]
    sizes = [
        relaxed.memory_of(table.sliced(width)).total
        for table, widths in zip(relaxed.tables, cuts, strict=True)
        for width in widths
    ]
    if not all(cuts) or pack(sizes, problem.topology.memory_bytes, Deadline(), _REMEDY_NODES).assignment is None:
        return []
    by_name = dict(zip((table.name for table in relaxed.tables), cuts, strict=True))
    return [
        f"allow {ShardingType.COLUMN_WISE}: {table.name} fits as {len(by_name[table.name])} slices of "
        f"{_columns(by_name[table.name])} columns"
        for table in misfits
    ]


def _columns(widths: Sequence[int]) -> str:
    return " or ".join(str(width) for width in dict.fromkeys(widths))
