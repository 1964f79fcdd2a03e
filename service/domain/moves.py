"""What comes to another device when one plan takes the place of another."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

from service.domain.memory import optimizer_bytes
from service.domain.plan import Problem, Running, Shard
from service.domain.tables import DataType, Optimizer, Table

Columns = tuple[int, int, int]
"""Columns [start, stop) of a table, and the device that has them."""

_MOST_PERMUTED = 5


@dataclass(frozen=True, slots=True)
class Move:
    """Columns [start, stop) of a table that come to a device which did not have them.

    Attributes:
        table: its name.
        start: first column.
        stop: column behind the last one.
        origin: the device that had them; there may be no such device any more.
        device: the device that they come to.
        bytes: of their weights and optimizer state.
    """

    table: str
    start: int
    stop: int
    origin: int
    device: int
    bytes: int


def held_before(problem: Problem, running: Running) -> dict[str, list[Columns]]:
    """Where the columns of each table are that can be moved: by name, sorted by column.

    A table of other rows, dim or precision than the running one of its name is new: it is not among them.
    """
    asked = {table.name: _layout(table) for table in problem.tables}
    kept = {table.name for table in running.tables if asked.get(table.name) == _layout(table)}
    return _by_table(shard for shard in running.shards if shard.table in kept)


def moves(problem: Problem, running: Running, shards: Iterable[Shard]) -> tuple[Move, ...]:
    """What a plan has on devices that did not have it: by the problem's tables and by column, as few ranges as can be.

    Devices are told by their index, also where their number or hardware differs from before: columns on one that is
    gone move. The bytes of a range are its weights and, under the problem's optimizer, its state. Row-wise state counts
    once for a device that had no columns of the table, with the first of them; one that had some has it already.

    Args:
        problem: what the plan is of.
        running: what it takes the place of.
        shards: the plan; they tile every table.
    """
    before, after = held_before(problem, running), _by_table(shards)
    return tuple(
        move
        for table in problem.tables
        if table.name in before
        for move in table_moves(table, problem.optimizer, before[table.name], after[table.name])
    )


def moved_bytes(made: Iterable[Move]) -> int:
    """Bytes of all moves."""
    return sum(move.bytes for move in made)


def tiled(before: Sequence[Columns], widths: Mapping[int, Sequence[int]]) -> list[Columns]:
    """Lays out the columns of one table so that many of them stay where they are.

    Each device's columns are contiguous. Up to 5 devices take the order in which the most columns stay, more of them
    the order of the columns that they have; where that leaves a choice, ascending.

    Args:
        before: where the columns are; empty for a table that is nowhere yet.
        widths: widths of the shards that each device is to have, in their order; together the table's columns.

    Returns:
        The shards, sorted by column.
    """
    found = []
    start = 0
    for device in _order(before, {device: sum(given) for device, given in widths.items() if given}):
        for width in widths[device]:
            found.append((start, start + width, device))
            start += width
    return found


def _layout(table: Table) -> tuple[int, int, DataType]:
    return table.num_embeddings, table.embedding_dim, table.data_type


def _by_table(shards: Iterable[Shard]) -> dict[str, list[Columns]]:
    held: dict[str, list[Columns]] = defaultdict(list)
    for shard in sorted(shards):
        held[shard.table].append((shard.start, shard.stop, shard.device))
    return dict(held)


def table_moves(
    table: Table, optimizer: Optimizer, before: Sequence[Columns], after: Sequence[Columns]
) -> Iterable[Move]:
    """Moves of one table, by column; from where its columns were to where they are."""
    have_state = {device for _, _, device in before}
    for start, stop, origin, device in _ranges(before, after):
        moved = table.sliced(stop - start)
        state = optimizer is not Optimizer.ROWWISE_ADAGRAD or device not in have_state
        have_state.add(device)
        size = moved.weight_bytes + (optimizer_bytes(moved, optimizer) if state else 0)
        yield Move(table.name, start, stop, origin, device, size)


def _ranges(before: Sequence[Columns], after: Sequence[Columns]) -> list[tuple[int, int, int, int]]:
    """Columns [start, stop) that come from one device to another, sorted; those that touch are one."""
    found: list[tuple[int, int, int, int]] = []
    for after_start, after_stop, device in after:
        for before_start, before_stop, origin in before:
            start, stop = max(before_start, after_start), min(before_stop, after_stop)
            if start >= stop or origin == device:
                continue
            if found and found[-1][1:] == (start, origin, device):
                start = found.pop()[0]
            found.append((start, stop, origin, device))
    return found


def _order(before: Sequence[Columns], columns: Mapping[int, int]) -> Sequence[int]:
    devices = sorted(columns)
    if before and len(devices) <= _MOST_PERMUTED:
        return max(permutations(devices), key=lambda order: _staying(before, columns, order))
    first: dict[int, int] = {}
    for start, _, device in sorted(before):
        first.setdefault(device, start)
    return sorted(devices, key=lambda device: (first.get(device, math.inf), device))


def _staying(before: Sequence[Columns], columns: Mapping[int, int], order: Sequence[int]) -> int:
    """Columns that stay on their device where devices have theirs in this order."""
    staying = begin = 0
    for device in order:
        end = begin + columns[device]
        staying += sum(max(0, min(end, stop) - max(begin, start)) for start, stop, origin in before if origin == device)
        begin = end
    return staying
