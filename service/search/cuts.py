"""Even cuts of tables into column slices: which are allowed, which are needed, and finer ones until they pack."""

import bisect
import math
from collections.abc import Sequence

from service.domain.deadline import Deadline
from service.domain.plan import Constraints, Problem, ShardingType
from service.domain.tables import Table
from service.search.packing import pack

MOST_FINER_CUTS = 128
"""Slices that are added at most, one at a time, to pieces that do not pack."""

_NODES, _NODES_PER_PIECE = 1_000, 4  # Of each packing: finer pieces are the better chance than a longer search.

Widths = tuple[int, ...]
"""Widths of a table's slices, wider ones first; one slice is the whole table."""


def even_widths(dim: int, count: int, multiple: int) -> Widths:
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


def can_be_halved(constraints: Constraints, width: int) -> bool:
    """Whether a piece of ``width`` columns may become two of half the width."""
    half, odd = divmod(width, 2)
    allowed = ShardingType.COLUMN_WISE in constraints.sharding_types and not odd
    return allowed and half % constraints.column_multiple == 0 and half >= constraints.min_shard_dim


def needed_widths(problem: Problem, table: Table) -> Widths:
    """Widths of the fewest slices that fit the largest device; empty where no allowed number of slices does."""
    limit, dim = max(problem.topology.memory_bytes), table.embedding_dim
    multiple = problem.constraints.column_multiple
    counts = _cut_counts(problem.constraints, dim)

    def fits(count: int) -> bool:
        return _piece_bytes(problem, table, even_widths(dim, count, multiple)[0]) <= limit

    if _may_stay_whole(problem.constraints, dim, counts) and fits(1):
        return (dim,)
    # More slices are never wider.
    first = bisect.bisect_left(counts, True, key=fits)
    return even_widths(dim, counts[first], multiple) if first < len(counts) else ()


def least_bytes(problem: Problem, table: Table) -> int:
    """Bytes of the widest slice of the finest cut allowed: no device that lacks them can take part of the table."""
    counts = _cut_counts(problem.constraints, table.embedding_dim)
    finest = counts[-1] if counts else 1
    return _piece_bytes(
        problem, table, even_widths(table.embedding_dim, finest, problem.constraints.column_multiple)[0]
    )


def piece_bytes(problem: Problem, cuts: Sequence[Widths]) -> list[int]:
    """Bytes of every piece of cut tables, by table and column."""
    return [
        _piece_bytes(problem, table, width)
        for table, widths in zip(problem.tables, cuts, strict=True)
        for width in widths
    ]


def cuts_that_pack(problem: Problem, deadline: Deadline) -> list[Widths] | None:
    """Cuts of each table whose pieces were found to fit into the devices' memory together.

    From the needed cuts on, the table with the largest piece gets one more slice, again and again. In the end each
    table goes back to its needed cuts where the others' finer ones are enough.

    Returns:
        None where none were found, which proves nothing: the cuts are even, their number and each packing limited.
    """
    needed = [needed_widths(problem, table) for table in problem.tables]
    cuts = _finer_until_packed(problem, needed, deadline) if all(needed) else None
    if cuts is None:
        return None
    for i in [i for i, widths in enumerate(needed) if cuts[i] != widths]:
        coarser = [*cuts[:i], needed[i], *cuts[i + 1 :]]
        if _packs(problem, coarser, deadline):
            cuts = coarser
    return cuts


def _finer_until_packed(problem: Problem, cuts: list[Widths], deadline: Deadline) -> list[Widths] | None:
    held = sum(problem.topology.memory_bytes)
    for _ in range(MOST_FINER_CUTS + 1):
        if _packs(problem, cuts, deadline):
            return cuts
        finer = _one_more_slice(problem, cuts)
        # Buffers and row-wise state come once for each slice: more slices never need less in all.
        if finer is None or deadline.passed() or sum(piece_bytes(problem, finer)) > held:
            return None
        cuts = finer
    return None


def _one_more_slice(problem: Problem, cuts: list[Widths]) -> list[Widths] | None:
    """One more for the table with the largest piece, of those that may have one; None where none may."""
    constraints, tables = problem.constraints, problem.tables
    bytes_by_table = {
        i: _piece_bytes(problem, tables[i], widths[0])
        for i, widths in enumerate(cuts)
        if len(widths) + 1 in _cut_counts(constraints, tables[i].embedding_dim)
    }
    if not bytes_by_table:
        return None
    i = max(bytes_by_table, key=bytes_by_table.__getitem__)
    finer = even_widths(tables[i].embedding_dim, len(cuts[i]) + 1, constraints.column_multiple)
    return [*cuts[:i], finer, *cuts[i + 1 :]]


def _packs(problem: Problem, cuts: Sequence[Widths], deadline: Deadline) -> bool:
    sizes = piece_bytes(problem, cuts)
    nodes = max(_NODES, _NODES_PER_PIECE * len(sizes))
    return pack(sizes, problem.topology.memory_bytes, deadline, nodes).assignment is not None


def _piece_bytes(problem: Problem, table: Table, width: int) -> int:
    return problem.memory_of(table.sliced(width)).total


def _may_stay_whole(constraints: Constraints, dim: int, cuts: range) -> bool:
    must_cut = ShardingType.TABLE_WISE not in constraints.sharding_types and len(cuts) > 0
    return not must_cut and dim <= constraints.max_shard_dim


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
