"""Planning problems, plans, and what makes a plan valid."""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from service.domain.errors import Fault
from service.domain.memory import Memory, table_memory
from service.domain.tables import DIM_MULTIPLE, Optimizer, Table
from service.domain.topology import Topology


class ShardingType(StrEnum):
    """Ways of sharding that the cost models describe."""

    TABLE_WISE = "table_wise"
    COLUMN_WISE = "column_wise"


class Algorithm(StrEnum):
    """Planning algorithms of the contract; a version may not have all of them."""

    AUTO = "auto"
    NEUROSHARD = "neuroshard"
    DREAMSHARD = "dreamshard"
    AUTOSHARD = "autoshard"
    DIM_GREEDY = "dim_greedy"
    SIZE_GREEDY = "size_greedy"
    LOOKUP_GREEDY = "lookup_greedy"
    SIZE_LOOKUP_GREEDY = "size_lookup_greedy"
    RANDOM = "random"


LEARNED = (Algorithm.DREAMSHARD, Algorithm.AUTOSHARD)
"""Algorithms that need a policy which was trained for the hardware."""


@dataclass(frozen=True, slots=True)
class Constraints:
    """What a plan may do.

    Attributes:
        sharding_types: at least one; without ``table_wise`` every table that can be cut is cut.
        column_multiple: widths of slices are multiples of this, itself a multiple of 4.
        min_shard_dim: narrowest slice, columns.
        max_shard_dim: widest shard, columns; wider tables are cut.
        count_buffers: whether a step's buffers count as memory.
        pin: devices allowed for every slice of a table, by the table's name.
        colocate: groups of tables, by name; all slices of a group's tables are on one device.
        separate: groups of tables, by name, no two of which have slices on the same device.
    """

    sharding_types: frozenset[ShardingType] = frozenset(ShardingType)
    column_multiple: int = DIM_MULTIPLE
    min_shard_dim: int = DIM_MULTIPLE
    max_shard_dim: int = 1024
    count_buffers: bool = True
    pin: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    colocate: tuple[tuple[str, ...], ...] = ()
    separate: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Problem:
    """Everything that decides which plans are valid and what they cost."""

    tables: tuple[Table, ...]
    topology: Topology
    global_batch_size: int
    optimizer: Optimizer
    constraints: Constraints = field(default_factory=Constraints)

    def memory_of(self, table: Table) -> Memory:
        """Memory of one table or slice under this problem's batch, optimizer and constraints."""
        return table_memory(table, self.global_batch_size, self.optimizer, self.constraints.count_buffers)


@dataclass(frozen=True, slots=True, order=True)
class Slice:
    """Columns [start, stop) of the table with index ``table`` in the problem."""

    table: int
    start: int
    stop: int

    @property
    def width(self) -> int:
        """Columns of the slice."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True, order=True)
class Shard:
    """A slice on a device: columns [start, stop) of table ``table`` on device ``device``."""

    table: str
    start: int
    stop: int
    device: int

    @property
    def width(self) -> int:
        """Columns of the shard."""
        return self.stop - self.start

    def __reduce__(self) -> tuple[type["Shard"], tuple[str, int, int, int]]:
        # As tables: they go to planning processes and back by the hundred.
        return Shard, (self.table, self.start, self.stop, self.device)


@dataclass(frozen=True, slots=True)
class Running:
    """A plan that is running, from which another one is to be reached.

    Attributes:
        tables: the tables that it places; a table of the problem that is not among them is new and costs no move.
        shards: where their columns are.
        max_moved_bytes: bytes of weights and optimizer state that may come to a device that did not hold them; None
            for any number.
    """

    tables: tuple[Table, ...]
    shards: tuple[Shard, ...]
    max_moved_bytes: int | None = None


def tables_on_devices(problem: Problem, shards: Iterable[Shard]) -> list[list[Table]]:
    """The shards of each device as tables of their width; D lists."""
    by_name = {table.name: table for table in problem.tables}
    held: list[list[Table]] = [[] for _ in problem.topology.memory_bytes]
    for shard in shards:
        held[shard.device].append(by_name[shard.table].sliced(shard.width))
    return held


def memory_on_devices(problem: Problem, held: Iterable[Iterable[Table]]) -> list[Memory]:
    """Memory of each device that holds these tables or slices; D entries."""
    return [sum(map(problem.memory_of, tables), Memory()) for tables in held]


def tiling_faults(tables: Sequence[Table], device_count: int, shards: Sequence[Shard]) -> list[Fault]:
    """Everything that keeps shards from being a placement of the tables; empty where they are one.

    Checks names, devices, column ranges, widths in multiples of 4, and that every table's columns are covered
    exactly once. Memory is not checked: an overfull plan can still be priced.
    """
    by_name = {table.name: table for table in tables}
    faults = []
    ranges: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for i, shard in enumerate(shards):
        fault = _shard_fault(i, shard, by_name, device_count)
        if fault:
            faults.append(fault)
        else:
            ranges[shard.table].append((shard.start, shard.stop))
    if not faults:
        for table in tables:
            gap = _tiling_gap(table.embedding_dim, sorted(ranges[table.name]))
            if gap:
                faults.append(Fault("/shards", f"table {table.name!r}: {gap}", table.name))
    return faults


def _shard_fault(i: int, shard: Shard, tables: Mapping[str, Table], device_count: int) -> Fault | None:
    table = tables.get(shard.table)
    if table is None:
        return Fault(f"/shards/{i}/table", f"no table is named {shard.table!r}", shard.table)
    if not 0 <= shard.device < device_count:
        return Fault(f"/shards/{i}/device", f"device must be from 0 to {device_count - 1}", shard.table)
    if not 0 <= shard.start < shard.stop <= table.embedding_dim or shard.width % DIM_MULTIPLE:
        wanted = f"columns must be a range [start, stop) within 0..{table.embedding_dim}, a multiple of 4 wide"
        return Fault(f"/shards/{i}/columns", f"table {shard.table!r}: {wanted}", shard.table)
    return None


def _tiling_gap(dim: int, ranges: Sequence[tuple[int, int]]) -> str | None:
    position = 0
    for start, stop in ranges:
        if start > position:
            return f"columns {position} to {start} are on no device"
        if start < position:
            return f"columns {start} to {min(position, stop)} are on more than one shard"
        position = stop
    return None if position == dim else f"columns {position} to {dim} are on no device"


def content_hash(content: Mapping[str, Any]) -> str:
    """Hash of JSON-like content that does not depend on key order; 32 hex digits."""
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:32]
