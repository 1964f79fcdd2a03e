"""Even cuts of tables into column slices: which are allowed, which are needed, and finer ones until they pack."""

import bisect
import math
from collections.abc import Sequence

import numpy as np

from service.domain.deadline import Deadline
from service.domain.plan import Constraints, Problem, ShardingType, Slice
from service.domain.tables import Table
from service.search.packing import Items, pack_by_rules
from service.search.rules import Rules

MOST_FINER_CUTS = 128
"""Slices that are added at most, one at a time, to pieces that do not pack; fewer where there are many tables."""

_NODES, _NODES_PER_PIECE = 1_000, 4  # Of each packing: finer pieces are the better chance than a longer search.

_PACKED_TABLES = 16_384  # Of all packings together.

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


def needed_slices(problem: Problem, table: Table, limit: int) -> int:
    """The fewest slices of which each fits a device of ``limit`` bytes; 0 where no allowed number of slices does."""
    multiple, dim = problem.constraints.column_multiple, table.embedding_dim
    counts = _cut_counts(problem.constraints, dim)

    def fits(count: int) -> bool:
        return _piece_bytes(problem, table, even_widths(dim, count, multiple)[0]) <= limit

    if _may_stay_whole(problem.constraints, dim, counts) and fits(1):
        return 1
    # More slices are never wider.
    first = bisect.bisect_left(counts, True, key=fits)
    return counts[first] if first < len(counts) else 0


def fewest_slices(constraints: Constraints, dim: int) -> int:
    """The fewest slices allowed of a table of ``dim`` columns, whatever memory there is; 0 where there are none."""
    counts = _cut_counts(constraints, dim)
    if _may_stay_whole(constraints, dim, counts):
        return 1
    return counts[0] if counts else 0


def needed_counts(problem: Problem, rules: Rules) -> list[int]:
    """The fewest slices of each table that fit the largest device it may be on; 0 where no number of them does.

    Tables that are on one device together are cut as little as is allowed: their slices are all on that device.
    """
    limits = np.array(problem.topology.memory_bytes)
    largest = np.where(rules.allowed, limits, 0).max(axis=1)
    return [
        needed_slices(problem, table, int(largest[unit]))
        if len(rules.units[unit]) == 1
        else fewest_slices(problem.constraints, table.embedding_dim)
        for table, unit in zip(problem.tables, rules.unit_of, strict=True)
    ]


def widths_of(problem: Problem, counts: Sequence[int]) -> list[Widths]:
    """Even widths of so many slices of each table; empty where there are none."""
    multiple = problem.constraints.column_multiple
    return [
        even_widths(table.embedding_dim, count, multiple) if count else ()
        for table, count in zip(problem.tables, counts, strict=True)
    ]


def slices_of(cuts: Sequence[Widths]) -> tuple[Slice, ...]:
    """Slices of the tables' cuts, by table and column."""
    slices = []
    for index, widths in enumerate(cuts):
        start = 0
        for width in widths:
            slices.append(Slice(index, start, start + width))
            start += width
    return tuple(slices)


def bytes_in_shards(problem: Problem, table: Table, count: int) -> int:
    """Bytes of all columns of a table in ``count`` shards, whatever their widths.

    A shard's bytes are linear in its columns (service/domain/memory.py); what does not grow with them comes once for
    each shard.
    """
    column_bytes, shard_bytes = line_of_bytes(problem, table)
    return column_bytes * table.embedding_dim + shard_bytes * count


def together_bytes(problem: Problem, tables: Sequence[int]) -> int:
    """Bytes of tables, by position, that are on one device, each in as few shards as are allowed."""
    constraints = problem.constraints
    return sum(
        bytes_in_shards(problem, table, fewest_slices(constraints, table.embedding_dim) or 1)
        for table in (problem.tables[i] for i in tables)
    )


def line_of_bytes(problem: Problem, table: Table) -> tuple[int, int]:
    """Bytes of a shard by its columns: those of each column, and those that come once for each shard."""
    one, two = (_piece_bytes(problem, table, width) for width in (1, 2))
    return two - one, 2 * one - two


def items_of(problem: Problem, rules: Rules, cuts: Sequence[Widths]) -> Items:
    """What cut tables are placed as: each piece by itself, by table and column, or tables that are together as one."""
    sizes, units = [], []
    for unit, members in enumerate(rules.units):
        pieces = [_piece_bytes(problem, problem.tables[table], width) for table in members for width in cuts[table]]
        pieces = pieces if len(members) == 1 else [sum(pieces)]
        sizes += pieces
        units += [unit] * len(pieces)
    return Items(sizes, units)


def least_bytes(problem: Problem, table: Table) -> int:
    """Bytes of the widest slice of the finest cut allowed: no device that lacks them can take part of the table."""
    counts = _cut_counts(problem.constraints, table.embedding_dim)
    finest = counts[-1] if counts else 1
    return _piece_bytes(
        problem, table, even_widths(table.embedding_dim, finest, problem.constraints.column_multiple)[0]
    )


def cuts_that_pack(problem: Problem, deadline: Deadline) -> list[Widths] | None:
    """Cuts of each table whose pieces were found to fit into the devices' memory together, by the rules.

    From the needed cuts on, the table with the largest piece gets one more slice, again and again. In the end each
    table goes back to its needed cuts where the others' finer ones are enough.

    Returns:
        None where none were found, which proves nothing: the cuts are even, their number and each packing limited.
    """
    rules = Rules.of(problem)
    needed = widths_of(problem, needed_counts(problem, rules))
    cuts = _finer_until_packed(problem, rules, needed, deadline) if all(needed) else None
    if cuts is None:
        return None
    for i in [i for i, widths in enumerate(needed) if cuts[i] != widths]:
        coarser = [*cuts[:i], needed[i], *cuts[i + 1 :]]
        if _packs(problem, rules, coarser, deadline):
            cuts = coarser
    return cuts


def _finer_until_packed(problem: Problem, rules: Rules, cuts: list[Widths], deadline: Deadline) -> list[Widths] | None:
    held = sum(problem.topology.memory_bytes)
    for _ in range(min(MOST_FINER_CUTS, _PACKED_TABLES // len(problem.tables)) + 1):
        if _packs(problem, rules, cuts, deadline):
            return cuts
        finer = _one_more_slice(problem, rules, cuts)
        # Buffers and row-wise state come once for each slice: more slices never need less in all.
        if finer is None or deadline.passed() or sum(items_of(problem, rules, finer).sizes) > held:
            return None
        cuts = finer
    return None


def _one_more_slice(problem: Problem, rules: Rules, cuts: list[Widths]) -> list[Widths] | None:
    """One more for the table with the largest piece, of those that may have one; None where none may."""
    constraints, tables = problem.constraints, problem.tables
    bytes_by_table = {
        i: _piece_bytes(problem, tables[i], widths[0])
        for i, widths in enumerate(cuts)
        if len(rules.units[rules.unit_of[i]]) == 1
        and len(widths) + 1 in _cut_counts(constraints, tables[i].embedding_dim)
    }
    if not bytes_by_table:
        return None
    i = max(bytes_by_table, key=bytes_by_table.__getitem__)
    finer = even_widths(tables[i].embedding_dim, len(cuts[i]) + 1, constraints.column_multiple)
    return [*cuts[:i], finer, *cuts[i + 1 :]]


def _packs(problem: Problem, rules: Rules, cuts: Sequence[Widths], deadline: Deadline) -> bool:
    items = items_of(problem, rules, cuts)
    nodes = max(_NODES, _NODES_PER_PIECE * len(items.sizes))
    return pack_by_rules(items, problem.topology.memory_bytes, rules, deadline, nodes).assignment is not None


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
