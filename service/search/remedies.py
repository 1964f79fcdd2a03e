"""What would help where there is no plan; said only where pieces that fit with it are known."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

from service.domain.deadline import Deadline
from service.domain.plan import Constraints, Problem, ShardingType
from service.domain.tables import DIM_MULTIPLE, Table
from service.search.cuts import (
    Widths,
    can_be_cut,
    cuts_that_pack,
    items_of,
    least_bytes,
    needed_counts,
    together_bytes,
    widths_of,
)
from service.search.fitting import fitting
from service.search.packing import missing_everywhere, pack_by_rules
from service.search.quantities import gibibytes, named
from service.search.rules import Rules

_NAMED = 5
_NODES = 5_000
_MOST_DEVICES = 1_024
_WORK = 0.5  # Of the integer program's solver for one remedy.


def rule_remedies(problem: Problem, names: Sequence[str], deadline: Deadline) -> list[str]:
    """Memory and devices that are enough with all rules kept, and each kind of rule on some tables to drop."""
    remedies = []
    more = _enough_more(problem)
    if more:
        remedies.append(f"{gibibytes(more)} ({more} bytes) more memory on each device are enough")
    remedies += _more_devices(problem, problem.topology.device_count + 1, deadline)
    for words, constraints in _relaxed(problem.constraints, names):
        if fitting(replace(problem, constraints=constraints), deadline, _WORK).pieces is not None:
            remedies.append(words)
    return remedies


def _relaxed(constraints: Constraints, names: Sequence[str]) -> Iterator[tuple[str, Constraints]]:
    """Constraints without what is said of some tables, one kind after the other, and what was left out."""
    pinned = [name for name in names if name in constraints.pin]
    if pinned:
        pin = {name: devices for name, devices in constraints.pin.items() if name not in pinned}
        yield f"without the pin of {named(pinned)}", replace(constraints, pin=pin)
    for kind in ("colocate", "separate"):
        groups: tuple[tuple[str, ...], ...] = getattr(constraints, kind)
        dropped = [group for group in groups if not set(group).isdisjoint(names)]
        if dropped:
            kept = tuple(group for group in groups if group not in dropped)
            words = named([f"[{named(group)}]" for group in dropped])
            changed = replace(constraints, colocate=kept) if kind == "colocate" else replace(constraints, separate=kept)
            yield f"without {kind} {words}", changed


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


def room_remedy(problem: Problem, misfits: Sequence[Table], deadline: Deadline) -> list[str]:
    """The ``max_shard_dim`` and the memory that together help where some tables fit no device; empty for none known."""
    constraints, limits = problem.constraints, problem.topology.memory_bytes
    uncuttable = [table.embedding_dim for table in misfits if not can_be_cut(constraints, table.embedding_dim)]
    wide = replace(constraints, max_shard_dim=max([constraints.max_shard_dim, *uncuttable]))
    need = max([*limits, *(least_bytes(problem, table) for table in misfits)])
    changes = [f"a max_shard_dim of {wide.max_shard_dim}"] if wide != constraints else []
    relaxed = replace(problem, constraints=wide)
    largest = limits.index(max(limits))
    one_larger = _with_memory(relaxed, [*limits[:largest], need, *limits[largest + 1 :]])
    if cuts_that_pack(one_larger, deadline) is None:
        each = _enough_everywhere(relaxed, need)
        if each is None:
            return []
        changes.append(f"at least {gibibytes(each)} ({each} bytes) of memory on each device")
    elif need > limits[largest]:
        more = need - limits[largest]
        changes.append(f"at least {gibibytes(need)} ({need} bytes) of memory on a device, {more} bytes more")
    return [" and ".join(changes)]


def size_remedies(problem: Problem, need: int, deadline: Deadline) -> list[str]:
    """Amounts that are enough where ``need`` bytes are more than all devices hold: on each device, and of devices."""
    limits = problem.topology.memory_bytes
    wide = max(table.embedding_dim for table in problem.tables)
    least = max(-(-need // len(limits)), *limits)
    widened = replace(problem, constraints=replace(problem.constraints, max_shard_dim=wide))
    remedies = []
    if (each := _enough_everywhere(problem, least)) is not None:
        remedies.append(f"{gibibytes(each)} ({each} bytes) of memory on each of the {len(limits)} devices are enough")
    elif (each := _enough_everywhere(widened, least)) is not None:
        remedies.append(f"a max_shard_dim of {wide}, and {gibibytes(each)} ({each} bytes) of memory on each device")
    return [*remedies, *_more_devices(problem, -(-need // max(limits)), deadline)]


def _more_devices(problem: Problem, fewest: int, deadline: Deadline) -> list[str]:
    """A number of devices like those given that is known to be enough; empty where they differ or none is known."""
    limit = max(problem.topology.memory_bytes)
    if limit != min(problem.topology.memory_bytes):
        return []
    tried = sorted({fewest, fewest + 1, fewest + 2, fewest + fewest // 8 + 2, 2 * fewest + 2})
    enough = (n for n in tried if n <= _MOST_DEVICES and _packs(problem, [limit] * n, deadline))
    return [f"{n} devices of {gibibytes(limit)} ({limit} bytes) are enough" for n in itertools.islice(enough, 1)]


def _packs(problem: Problem, limits: Sequence[int], deadline: Deadline) -> bool:
    changed = _with_memory(problem, limits)
    rules = Rules.of(changed)
    counts = needed_counts(changed, rules)
    if not all(counts):
        return False
    items = items_of(changed, rules, widths_of(changed, counts))
    return pack_by_rules(items, limits, rules, deadline, _NODES).assignment is not None


def _enough_everywhere(problem: Problem, least: int) -> int | None:
    """Bytes, ``least`` or more, that are known to be enough on every device; None where none are."""
    more = _enough_more(_with_memory(problem, [least] * problem.topology.device_count))
    return None if more is None else least + more


def _enough_more(problem: Problem) -> int | None:
    """Bytes that, added to every device, are known to be enough; None where none are."""
    rules = Rules.of(problem)
    lacking = _lacking(problem, rules)
    raised = _with_memory(problem, [limit + lacking for limit in problem.topology.memory_bytes])
    counts = needed_counts(raised, rules)
    if not all(counts):
        return None
    items = items_of(raised, rules, widths_of(raised, counts))
    return missing_everywhere(items, problem.topology.memory_bytes, rules)


def _lacking(problem: Problem, rules: Rules) -> int:
    """Bytes that the largest device which a unit may be on lacks at most for its widest piece, or for all of it."""
    lacking = 0
    for unit, members in enumerate(rules.units):
        limits = [problem.topology.memory_bytes[device] for device in rules.allowed[unit].nonzero()[0]]
        need = least_bytes(problem, problem.tables[members[0]])
        if len(members) > 1:
            need = together_bytes(problem, members)
        lacking = max(lacking, need - max(limits, default=need))
    return lacking


def _with_memory(problem: Problem, limits: Sequence[int]) -> Problem:
    return replace(problem, topology=replace(problem.topology, memory_bytes=tuple(limits)))


def _as_slices(problem: Problem, cuts: Sequence[Widths]) -> str:
    """What becomes of the tables whose cuts these change, the first few of them by name."""
    needed = needed_counts(problem, Rules.of(problem))
    changed = [
        f"{table.name} fits as {len(widths)} slices of {' or '.join(map(str, dict.fromkeys(widths)))} columns"
        for table, widths, count in zip(problem.tables, cuts, needed, strict=True)
        if len(widths) > 1 and len(widths) != count
    ]
    more = [f"and {len(changed) - _NAMED} more tables"] if len(changed) > _NAMED else []
    return ", ".join([*changed[:_NAMED], *more])
