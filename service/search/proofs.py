"""Quick proofs that a problem has no plan, each with what binds and what would help."""

from collections.abc import Iterable, Sequence

from service.domain.deadline import Deadline
from service.domain.errors import Infeasible
from service.domain.plan import Problem
from service.domain.tables import Table
from service.search.cuts import (
    bytes_in_shards,
    can_be_cut,
    fewest_slices,
    least_bytes,
    needed_counts,
    needed_slices,
    together_bytes,
)
from service.search.quantities import gibibytes, named
from service.search.remedies import cut_remedies, room_remedy, rule_remedies, size_remedies
from service.search.rules import Flags, Rules
from service.search.transport import most_unmet


def check_feasible(problem: Problem, deadline: Deadline) -> None:
    """Looks for reasons why no plan can exist, those that are quickly told; passing it promises nothing.

    Raises:
        Infeasible: proven. ``total_memory``: the tables need more than all devices hold. ``table_exceeds_device``: a
            table fits no device however it may be cut. ``pinned``: a table fits none of the devices that it is pinned
            to, or tables that are pinned within some devices need more than these hold. ``colocate``: tables that
            must be on one device fit none. ``separate``: tables that must all be apart are more than the devices that
            they may be on.
    """
    rules = Rules.of(problem)
    counts = needed_counts(problem, rules)
    fewest = [fewest_slices(problem.constraints, table.embedding_dim) or 1 for table in problem.tables]
    least = _bytes_of_units(problem, rules, fewest)
    # What is too large for a device takes more shards than that, as long as devices do not get larger.
    needed = _bytes_of_units(problem, rules, [count or few for count, few in zip(counts, fewest, strict=True)])
    _check_total_memory(problem, sum(least), deadline)
    _check_total_memory(problem, sum(needed), deadline)
    _check_each_table(problem, rules, counts, deadline)
    _check_each_group(problem, rules, deadline)
    _check_pins(problem, rules, least, deadline)
    _check_pins(problem, rules, needed, deadline)
    _check_cliques(problem, rules, deadline)


def _bytes_of_units(problem: Problem, rules: Rules, counts: Sequence[int]) -> list[int]:
    """Bytes of each unit's tables, in so many shards each."""
    return [sum(bytes_in_shards(problem, problem.tables[i], counts[i]) for i in unit) for unit in rules.units]


def _check_total_memory(problem: Problem, need: int, deadline: Deadline) -> None:
    """Compares the least that the tables need with what the devices hold together."""
    limits = problem.topology.memory_bytes
    held = sum(limits)
    if need <= held:
        return
    raise Infeasible(
        f"tables need {gibibytes(need)}, devices hold {gibibytes(held)}: short of {gibibytes(need - held)} "
        f"({need - held} bytes)",
        reason="total_memory",
        proven=True,
        shortfall_bytes=need - held,
        tables=[table.name for table in problem.tables],
        devices=range(len(limits)),
        remedies=size_remedies(problem, need, deadline),
    )


def _check_each_table(problem: Problem, rules: Rules, counts: Sequence[int], deadline: Deadline) -> None:
    largest = max(problem.topology.memory_bytes)
    misfits = [i for i, count in enumerate(counts) if count == 0]
    anywhere = [i for i in misfits if not _fits(problem, rules, i, largest)]
    if anywhere:
        raise _exceeds_device(problem, [problem.tables[i] for i in anywhere], deadline)
    # Those that are left would fit a device that they are not allowed on.
    if misfits:
        raise _exceeds_pins(problem, rules, misfits, deadline)


def _fits(problem: Problem, rules: Rules, table: int, limit: int) -> bool:
    if len(rules.units[rules.unit_of[table]]) > 1:
        return fewest_slices(problem.constraints, problem.tables[table].embedding_dim) > 0
    return needed_slices(problem, problem.tables[table], limit) > 0


def _exceeds_device(problem: Problem, misfits: Sequence[Table], deadline: Deadline) -> Infeasible:
    worst = max(misfits, key=lambda table: least_bytes(problem, table))
    return Infeasible(
        _too_large(problem, worst),
        reason="table_exceeds_device",
        proven=True,
        shortfall_bytes=max(0, least_bytes(problem, worst) - max(problem.topology.memory_bytes)),
        tables=[table.name for table in misfits],
        devices=range(problem.topology.device_count),
        remedies=[*cut_remedies(problem, deadline), *room_remedy(problem, misfits, deadline)],
    )


def _too_large(problem: Problem, table: Table) -> str:
    need, limit, constraints = least_bytes(problem, table), max(problem.topology.memory_bytes), problem.constraints
    limits = f"{gibibytes(need)}, the largest device holds {gibibytes(limit)}"
    if can_be_cut(constraints, table.embedding_dim):
        return f"table {table.name!r}: even its narrowest slices need {limits}"
    too_wide = (
        f"is {table.embedding_dim} columns wide, a shard may have {constraints.max_shard_dim}, "
        "and no cut of it is allowed"
    )
    faults = [
        *([f"uncut needs {limits}"] if need > limit else []),
        *([too_wide] if table.embedding_dim > constraints.max_shard_dim else []),
    ]
    return f"table {table.name!r} {'; it '.join(faults)}"


def _exceeds_pins(problem: Problem, rules: Rules, misfits: Sequence[int], deadline: Deadline) -> Infeasible:
    def missing(table: int) -> int:
        return least_bytes(problem, problem.tables[table]) - _most(problem, _allowed(rules, table))

    worst = max(misfits, key=missing)
    need, most = least_bytes(problem, problem.tables[worst]), _most(problem, _allowed(rules, worst))
    names = [problem.tables[i].name for i in misfits]
    return Infeasible(
        f"table {problem.tables[worst].name!r} is pinned to {_devices(_allowed(rules, worst))}, of which the largest "
        f"holds {gibibytes(most)}: its narrowest slices, or all of it where it may not be cut, need {gibibytes(need)}",
        reason="pinned",
        proven=True,
        shortfall_bytes=missing(worst),
        tables=names,
        devices=sorted({device for i in misfits for device in _allowed(rules, i)}),
        remedies=[*rule_remedies(problem, names, deadline), *cut_remedies(problem, deadline)],
    )


def _check_each_group(problem: Problem, rules: Rules, deadline: Deadline) -> None:
    for members in rules.units:
        if len(members) == 1:
            continue
        need, names = together_bytes(problem, members), [problem.tables[i].name for i in members]
        devices = _allowed(rules, members[0])
        most = _most(problem, devices)
        if need <= most:
            continue
        raise Infeasible(
            f"tables {named(names)} must be on one device and need {gibibytes(need)}, "
            f"but the largest of {_devices(devices)} holds {gibibytes(most)}",
            reason="colocate",
            proven=True,
            shortfall_bytes=need - most,
            tables=names,
            devices=devices,
            remedies=rule_remedies(problem, names, deadline),
        )


def _check_pins(problem: Problem, rules: Rules, needs: Sequence[int], deadline: Deadline) -> None:
    """Every set of pinned tables at once: what they need against what the devices hold that they may be on."""
    limits = problem.topology.memory_bytes
    pinned = [unit for unit in range(len(rules.units)) if not rules.allowed[unit].all()]
    unmet = most_unmet([needs[unit] for unit in pinned], limits, rules.allowed[pinned], deadline)
    if unmet is None:
        return
    names = _names(problem, rules, (pinned[source] for source in unmet.sources))
    held = sum(limits[device] for device in unmet.devices)
    tables, are, need = ("tables", "are", "need") if len(names) > 1 else ("table", "is", "needs")
    hold = "hold" if len(unmet.devices) > 1 else "holds"
    raise Infeasible(
        f"{tables} {named(names)} {are} pinned to {_devices(unmet.devices)}, which {hold} {gibibytes(held)}, and "
        f"{need} {gibibytes(held + unmet.amount)}: short of {gibibytes(unmet.amount)} ({unmet.amount} bytes)",
        reason="pinned",
        proven=True,
        shortfall_bytes=unmet.amount,
        tables=names,
        devices=unmet.devices,
        remedies=rule_remedies(problem, names, deadline),
    )


def _check_cliques(problem: Problem, rules: Rules, deadline: Deadline) -> None:
    """Tables that must all be apart need a device each of those that they may be on (Hall's theorem)."""
    ones, choices = [1] * problem.topology.device_count, rules.allowed.sum(axis=1)
    for units in {_grown(clique, rules.apart): None for clique in rules.cliques}:
        if (choices[list(units)] >= len(units)).all():
            continue  # One after the other finds a device that none before it has taken.
        unmet = most_unmet([1] * len(units), ones, rules.allowed[list(units)], deadline)
        if unmet is None:
            continue
        names, count = _names(problem, rules, (units[source] for source in unmet.sources)), len(unmet.devices)
        raise Infeasible(
            f"tables {named(names)} must all be on different devices, and there "
            f"{'is 1 device' if count == 1 else f'are {count} devices'} that they may be on",
            reason="separate",
            proven=True,
            shortfall_bytes=0,
            tables=names,
            devices=unmet.devices,
            remedies=rule_remedies(problem, names, deadline),
        )


def _grown(clique: Sequence[int], apart: Flags) -> tuple[int, ...]:
    """A clique with units added that must be apart from all of it, the first ones first."""
    units = list(clique)
    common = apart[units].all(axis=0)
    while units and common.any():
        units.append(int(common.argmax()))
        common &= apart[units[-1]]
    return tuple(sorted(units))


def _allowed(rules: Rules, table: int) -> list[int]:
    return [int(device) for device in rules.allowed[rules.unit_of[table]].nonzero()[0]]


def _most(problem: Problem, devices: Iterable[int]) -> int:
    return max((problem.topology.memory_bytes[device] for device in devices), default=0)


def _names(problem: Problem, rules: Rules, units: Iterable[int]) -> list[str]:
    tables = sorted(table for unit in units for table in rules.units[unit])
    return [problem.tables[table].name for table in tables]


def _devices(devices: Sequence[int]) -> str:
    return f"device{'s' if len(devices) > 1 else ''} {named(list(map(str, devices)))}"
