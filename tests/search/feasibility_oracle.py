"""Memory feasibility by trying all columns of every table on every device."""

import itertools
import math
from collections.abc import Iterator, Sequence

from service.domain.plan import Constraints, Problem, ShardingType, Slice
from service.domain.tables import Table
from tests.search.oracle import can_be_cut

Row = tuple[int, ...]
"""Columns of a table on each device; D of them."""


def fits(problem: Problem) -> bool:
    """Whether any columns of all tables on all devices are allowed and fit in memory."""
    return _placeable(problem, [], list(problem.topology.memory_bytes))


def _placeable(problem: Problem, rows: list[Row], room: Sequence[int]) -> bool:
    if len(rows) == len(problem.tables):
        return True
    table = problem.tables[len(rows)]
    for row in legal_rows(problem.constraints, table, len(room)):
        left = [free - bytes_on(problem, table, columns) for free, columns in zip(room, row, strict=True)]
        if min(left) >= 0 and keeps_rules(problem, [*rows, row]) and _placeable(problem, [*rows, row], left):
            return True
    return False


def legal_rows(constraints: Constraints, table: Table, devices: int) -> Iterator[Row]:
    counts = [n for n in range(table.embedding_dim + 1) if n == 0 or shards(constraints, table, n) < math.inf]
    for row in itertools.product(counts, repeat=devices):
        if sum(row) == table.embedding_dim:
            yield row


def shards(constraints: Constraints, table: Table, columns: int) -> float:
    """The fewest shards of allowed widths that columns on one device can be; infinity where there are none."""
    return _fewest(allowed_widths(constraints, table.embedding_dim), columns)


def allowed_widths(constraints: Constraints, dim: int) -> list[int]:
    widths = [
        width
        for width in range(constraints.column_multiple, dim, constraints.column_multiple)
        if constraints.min_shard_dim <= width <= constraints.max_shard_dim
        and ShardingType.COLUMN_WISE in constraints.sharding_types
        and can_be_cut(constraints, dim)
    ]
    stays_whole = ShardingType.TABLE_WISE in constraints.sharding_types or not can_be_cut(constraints, dim)
    return [*widths, dim] if stays_whole and dim <= constraints.max_shard_dim else widths


def _fewest(widths: Sequence[int], columns: int) -> float:
    fewest = [0.0] + [math.inf] * columns
    for total in range(1, columns + 1):
        fewest[total] = min((fewest[total - width] + 1 for width in widths if width <= total), default=math.inf)
    return fewest[columns]


def bytes_on(problem: Problem, table: Table, columns: int) -> int:
    """Bytes of columns of a table on one device, in the fewest shards, of whatever widths."""
    widths: list[int] = []
    left, allowed = columns, allowed_widths(problem.constraints, table.embedding_dim)
    while left:
        width = next(w for w in allowed if w <= left and _fewest(allowed, left - w) + 1 == _fewest(allowed, left))
        widths.append(width)
        left -= width
    return sum(problem.memory_of(table.sliced(width)).total for width in widths)


def least_bytes(problem: Problem, table: Table) -> int:
    """Bytes of a table on one device of any size."""
    return bytes_on(problem, table, table.embedding_dim)


def keeps_rules(problem: Problem, rows: Sequence[Row]) -> bool:
    """Whether pin, colocate and separate hold among the first tables, whose columns are given."""
    where = {
        table.name: {device for device, columns in enumerate(row) if columns}
        for table, row in zip(problem.tables, rows, strict=False)
    }
    constraints = problem.constraints
    return (
        all(where[name] <= set(devices) for name, devices in constraints.pin.items() if name in where)
        and all(
            len(set().union(*(where[name] for name in group if name in where))) <= 1 for group in constraints.colocate
        )
        and all(
            not where[one] & where[other]
            for group in constraints.separate
            for one, other in itertools.combinations(group, 2)
            if one in where and other in where
        )
    )


def rows_of(problem: Problem, slices: Sequence[Slice], devices: Sequence[int]) -> list[Row]:
    """Columns of each table on each device under a placement of slices."""
    rows = [[0] * problem.topology.device_count for _ in problem.tables]
    for piece, device in zip(slices, devices, strict=True):
        rows[piece.table][device] += piece.width
    return [tuple(row) for row in rows]


def assert_is_a_plan(problem: Problem, rows: Sequence[Row]) -> None:
    room = list(problem.topology.memory_bytes)
    for table, row in zip(problem.tables, rows, strict=True):
        assert sum(row) == table.embedding_dim
        for device, columns in enumerate(row):
            assert shards(problem.constraints, table, columns) < math.inf
            room[device] -= bytes_on(problem, table, columns)
    assert min(room) >= 0
    assert keeps_rules(problem, rows)
