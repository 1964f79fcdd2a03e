"""What keeps a problem from being planned at all, apart from its size."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from service.domain.errors import Fault, escaped
from service.domain.plan import Problem
from service.domain.reuse import reuse_fault
from service.domain.tables import DIM_MULTIPLE, Table, histogram_faults


def problem_faults(problem: Problem) -> list[Fault]:
    """Every field that contradicts another or the contract, with its JSON pointer; empty for a sound problem."""
    return [
        *_tables_faults(problem),
        *_device_faults(problem),
        *_constraint_faults(problem),
        *_pin_faults(problem),
        *_group_faults(problem, "colocate", problem.constraints.colocate),
        *_group_faults(problem, "separate", problem.constraints.separate),
        *_contradictions(problem),
    ]


def _tables_faults(problem: Problem) -> Iterator[Fault]:
    if not problem.tables:
        yield Fault("/tables", "there is no table to plan")
    uses = Counter(table.name for table in problem.tables)
    for i, table in enumerate(problem.tables):
        if uses[table.name] > 1:
            message = f"{uses[table.name]} tables are named {table.name!r}; names must be unique"
            yield Fault(f"/tables/{i}/name", message, table.name)
        if table.embedding_dim % DIM_MULTIPLE:
            message = f"table {table.name!r}: {table.embedding_dim} is not a multiple of {DIM_MULTIPLE}"
            yield Fault(f"/tables/{i}/embedding_dim", message, table.name)
        yield from _histogram_faults(i, table)
        yield from _distinct_rows_faults(i, table, problem.global_batch_size)


def _histogram_faults(i: int, table: Table) -> Iterator[Fault]:
    histogram = table.reuse_histogram
    if histogram is None:
        return
    message = histogram_faults(histogram.fractions)
    if message is None:
        empty = not any(histogram.fractions)
        lookups = table.lookups(histogram.batch_size)
        if empty and lookups:
            message = f"all fractions are 0, but a batch of {histogram.batch_size} has {lookups} lookups"
        elif not empty and table.pooling_factor == 0:
            message = "the pooling factor is 0: without lookups all fractions must be 0"
        else:
            message = reuse_fault(table)
    if message:
        yield Fault(f"/tables/{i}/reuse_histogram/fractions", f"table {table.name!r}: {message}", table.name)


def _distinct_rows_faults(i: int, table: Table, batch_size: int) -> Iterator[Fault]:
    distinct = table.distinct_rows
    if distinct is None:
        return
    counted = table.reuse_histogram.batch_size if table.reuse_histogram else batch_size
    lookups = table.lookups(counted)
    if lookups and distinct < 1:
        message = f"table {table.name!r}: {lookups} lookups in a batch of {counted} are of 1 distinct row at least"
        yield Fault(f"/tables/{i}/distinct_rows", message, table.name)
    for bound, what in ((table.num_embeddings, "rows"), (lookups, f"lookups in a batch of {counted}")):
        if distinct > bound:
            message = f"table {table.name!r}: {distinct:g} distinct rows are more than its {bound} {what}"
            yield Fault(f"/tables/{i}/distinct_rows", message, table.name)


def _device_faults(problem: Problem) -> Iterator[Fault]:
    if not problem.topology.device_count:
        yield Fault("/devices", "there is no device to plan for")
    for i, limit in enumerate(problem.topology.memory_bytes):
        if limit <= 0:
            yield Fault(f"/devices/memory_bytes/{i}", f"device {i}: memory must be above 0 bytes")


def _constraint_faults(problem: Problem) -> Iterator[Fault]:
    constraints = problem.constraints
    if not constraints.sharding_types:
        yield Fault("/constraints/sharding_types", "at least one way of sharding must be allowed")
    if constraints.column_multiple < DIM_MULTIPLE or constraints.column_multiple % DIM_MULTIPLE:
        message = f"must be a multiple of {DIM_MULTIPLE}, is {constraints.column_multiple}"
        yield Fault("/constraints/column_multiple", message)
    if constraints.min_shard_dim > constraints.max_shard_dim:
        narrowest, widest = constraints.min_shard_dim, constraints.max_shard_dim
        message = f"{narrowest} is above max_shard_dim, {widest}: lower it or raise that"
        yield Fault("/constraints/min_shard_dim", message)


def _pin_faults(problem: Problem) -> Iterator[Fault]:
    names = {table.name for table in problem.tables}
    count = problem.topology.device_count
    for name, devices in problem.constraints.pin.items():
        pointer = f"/constraints/pin/{escaped(name)}"
        if name not in names:
            yield Fault(pointer, f"{_unknown(name)}, or leave the pin out", name)
        if not devices:
            message = f"table {name!r} is pinned to no device: give at least one, or leave the pin out"
            yield Fault(pointer, message, name)
        missing = [i for i, device in enumerate(devices) if not 0 <= device < count]
        if missing and count:
            listed = ", ".join(str(devices[i]) for i in missing)
            message = (
                f"table {name!r}: there is no device {listed}: give devices from 0 to {count - 1}, or a higher count"
            )
            yield Fault(f"{pointer}/{missing[0]}", message, name)


def _group_faults(problem: Problem, field: str, groups: Sequence[Sequence[str]]) -> Iterator[Fault]:
    tables = {table.name for table in problem.tables}
    for i, group in enumerate(groups):
        pointer = f"/constraints/{field}/{i}"
        met: set[str] = set()
        for j, name in enumerate(group):
            if name not in tables:
                yield Fault(f"{pointer}/{j}", f"{_unknown(name)}, or leave it out of the group", name)
            if name in met:
                yield Fault(f"{pointer}/{j}", f"table {name!r} is in this group already: name it once", name)
            met.add(name)
        if len(met) < 2:
            named = f"only {group[0]!r}" if group else "no table"
            message = f"names {named}: name at least two different tables, or leave the group out"
            yield Fault(pointer, message, group[0] if group else None)


def _unknown(name: str) -> str:
    return f"no table is named {name!r}: give the name of one of the tables"


def _contradictions(problem: Problem) -> Iterator[Fault]:
    """Tables that are to be together and apart, and pins of tables together that leave no device."""
    together = _together(problem.constraints.colocate)
    for i, group in enumerate(problem.constraints.separate):
        first: dict[str, str] = {}
        for j, name in enumerate(group):
            other = first.setdefault(together.get(name, name), name)
            if other != name:
                message = (
                    f"tables {other!r} and {name!r} are to be apart, but constraints/colocate has them together, in a "
                    "group or through groups that share tables: take one of them out of either"
                )
                yield Fault(f"/constraints/separate/{i}/{j}", message, name)
    yield from _pins_apart(problem, together)


def _pins_apart(problem: Problem, together: Mapping[str, str]) -> Iterator[Fault]:
    left: dict[str, set[int]] = {}
    first: dict[str, str] = {}
    for name, devices in problem.constraints.pin.items():
        here = {device for device in devices if 0 <= device < problem.topology.device_count}
        group = together.get(name)
        if group is None or not here:
            continue
        others = left.setdefault(group, here)
        if others and not others & here:
            allowed = ", ".join(map(str, sorted(others)))
            message = (
                f"table {name!r} is to be together with table {first[group]!r}, and the pins of their group have no "
                f"device in common: pin it to some of {allowed}, or take it out of constraints/colocate"
            )
            yield Fault(f"/constraints/pin/{escaped(name)}", message, name)
        first.setdefault(group, name)
        left[group] = others & here


def _together(groups: Sequence[Sequence[str]]) -> dict[str, str]:
    """Of each name in groups, the name that stands for all that it is together with; groups that share one are one."""
    parent: dict[str, str] = {}

    def root(name: str) -> str:
        while parent.setdefault(name, name) != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    for group in groups:
        for name in group:
            parent[root(name)] = root(group[0])
    return {name: root(name) for name in parent}
