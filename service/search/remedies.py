"""What would help where there is no plan; said only where pieces that pack with it are known."""

from collections.abc import Sequence
from dataclasses import replace

from service.domain.deadline import Deadline
from service.domain.plan import Problem, ShardingType
from service.domain.tables import DIM_MULTIPLE, Table
from service.search.cuts import Widths, can_be_cut, cuts_that_pack, least_bytes, needed_widths, piece_bytes
from service.search.packing import missing_everywhere, pack
from service.search.quantities import gibibytes

_NAMED = 5
_NODES = 5_000
_MOST_DEVICES = 1_024


def cut_remedies(problem: Problem, deadline: Deadline) -> list[str]:
    """The least change of how tables may be cut that would help; empty where none is known."""
    constraints = problem.constraints
    types = constraints.sharding_types | {ShardingType.COLUMN_WISE}
    for multiple in sorted({constraints.column_multiple, DIM_MULTIPLE}, reverse=True):
        changes = [
            *([f"allow {ShardingType.COLUMN_WISE}"] if types != constraints.sharding_types else []),
            *([f"a column_multiple of {multiple}"] if multiple != constraints.column_multiple else []),
        ]
        relaxed = replace(constraints, sharding_types=types, column_multiple=multiple)
        cuts = cuts_that_pack(replace(problem, constraints=relaxed), deadline) if changes else None
        if cuts is not None:
            return [f"{' and '.join(changes)}: {_as_slices(problem, cuts)}"]
    return []


def room_remedy(problem: Problem, misfits: Sequence[Table], deadline: Deadline) -> str:
    """The ``max_shard_dim`` and the memory that together help where some tables fit no device."""
    constraints, limits = problem.constraints, sorted(problem.topology.memory_bytes)
    uncuttable = [table.embedding_dim for table in misfits if not can_be_cut(constraints, table.embedding_dim)]
    wide = replace(constraints, max_shard_dim=max([constraints.max_shard_dim, *uncuttable]))
    need = max([limits[-1], *(least_bytes(problem, table) for table in misfits)])
    changes = [f"a max_shard_dim of {wide.max_shard_dim}"] if wide != constraints else []
    relaxed = replace(problem, constraints=wide)
    if cuts_that_pack(_with_memory(relaxed, [*limits[:-1], need]), deadline) is None:
        each = _enough_everywhere(relaxed, need)
        changes.append(f"at least {gibibytes(each)} ({each} bytes) of memory on each device")
    elif need > limits[-1]:
        more = need - limits[-1]
        changes.append(f"at least {gibibytes(need)} ({need} bytes) of memory on a device, {more} bytes more")
    return " and ".join(changes)


def size_remedies(problem: Problem, need: int, deadline: Deadline) -> list[str]:
    """Amounts that are enough where ``need`` bytes are more than all devices hold: on each device, and of devices."""
    limits = problem.topology.memory_bytes
    least = max([-(-need // len(limits)), *limits, *(least_bytes(problem, table) for table in problem.tables)])
    wide = max(table.embedding_dim for table in problem.tables)
    remedies = []
    if all(needed_widths(_with_memory(problem, [least]), table) for table in problem.tables):
        each = _enough_everywhere(problem, least)
        remedies.append(f"{gibibytes(each)} ({each} bytes) of memory on each of the {len(limits)} devices are enough")
    else:
        remedies.append(f"a max_shard_dim of {wide}, and devices of {gibibytes(need)} or more")
    count = _enough_devices(problem, need, deadline)
    return remedies if count is None else [*remedies, f"{count} devices of {gibibytes(limits[0])} are enough"]


def _enough_devices(problem: Problem, need: int, deadline: Deadline) -> int | None:
    """A number of devices like those given that is known to be enough; None where they differ or none is known."""
    limit = max(problem.topology.memory_bytes)
    pieces = [needed_widths(problem, table) for table in problem.tables]
    fewest = -(-need // limit)
    if limit != min(problem.topology.memory_bytes) or not all(pieces) or fewest > _MOST_DEVICES:
        return None
    sizes = piece_bytes(problem, pieces)
    tried = sorted({fewest, fewest + 1, fewest + 2, fewest + fewest // 8 + 2, 2 * fewest + 2})
    enough = (n for n in tried if pack(sizes, [limit] * n, deadline, _NODES).assignment is not None)
    return next((n for n in enough if n <= _MOST_DEVICES), None)


def _enough_everywhere(problem: Problem, least: int) -> int:
    """Bytes, ``least`` or more, that are enough on every device; each table has a piece that fits in ``least``."""
    limits = [least] * problem.topology.device_count
    even = _with_memory(problem, limits)
    needed = [needed_widths(even, table) for table in problem.tables]
    return least + missing_everywhere(piece_bytes(even, needed), limits)


def _with_memory(problem: Problem, limits: Sequence[int]) -> Problem:
    return replace(problem, topology=replace(problem.topology, memory_bytes=tuple(limits)))


def _as_slices(problem: Problem, cuts: Sequence[Widths]) -> str:
    """What becomes of the tables whose cuts these change, the first few of them by name."""
    changed = [
        f"{table.name} fits as {len(widths)} slices of {' or '.join(map(str, dict.fromkeys(widths)))} columns"
        for table, widths in zip(problem.tables, cuts, strict=True)
        if len(widths) > 1 and widths != needed_widths(problem, table)
    ]
    more = [f"and {len(changed) - _NAMED} more tables"] if len(changed) > _NAMED else []
    return ", ".join([*changed[:_NAMED], *more])
