"""Cuts that must be made before placement; every other table stays whole."""

from collections.abc import Sequence

from service.domain.deadline import Deadline
from service.domain.errors import Fault, Infeasible, InvalidRequest
from service.domain.plan import Problem, Slice
from service.domain.tables import Table
from service.search.catalogue import no_plan_in_time
from service.search.cuts import Widths, can_be_cut, least_bytes, needed_widths
from service.search.quantities import gibibytes
from service.search.remedies import cut_remedies, room_remedy

MOST_SHARDS = 10_000
"""Slices that a plan may have to be made of, at most; more would only run into the deadline."""


def precut(problem: Problem, deadline: Deadline) -> tuple[Slice, ...]:
    """The fewest slices that a plan can be made of, each table's widths as even as possible, wider ones first.

    A table is cut where it is wider than ``max_shard_dim``, where it fits no device whole, or where ``table_wise``
    is not allowed and the table can be cut at all.

    Raises:
        Infeasible: ``table_exceeds_device``, proven: some table fits no device however it may be cut.
        InvalidRequest: the tables come to more than ``MOST_SHARDS`` slices.
        NoPlanInTime: the deadline passed before all tables were looked at.
    """
    widths: list[Widths] = []
    shards = 0
    for i, table in enumerate(problem.tables):
        if deadline.passed():
            raise no_plan_in_time()
        widths.append(needed_widths(problem, table))
        shards += len(widths[-1])
        if shards > MOST_SHARDS:
            raise InvalidRequest([_too_many(i, table, len(widths[-1]))])
    misfits = [table for table, found in zip(problem.tables, widths, strict=True) if not found]
    if misfits:
        raise _exceeds_device(problem, misfits, deadline)
    return slices_of(widths)


def _too_many(i: int, table: Table, shards: int) -> Fault:
    message = (
        f"table {table.name!r} must be cut into {shards} shards, and with those before it that is more than the "
        f"{MOST_SHARDS} that a plan may have: allow wider shards, or give a device more memory"
    )
    return Fault(f"/tables/{i}/embedding_dim", message, table.name)


def slices_of(cuts: Sequence[Widths]) -> tuple[Slice, ...]:
    """Slices of the tables' cuts, by table and column."""
    slices = []
    for index, widths in enumerate(cuts):
        start = 0
        for width in widths:
            slices.append(Slice(index, start, start + width))
            start += width
    return tuple(slices)


def _exceeds_device(problem: Problem, misfits: Sequence[Table], deadline: Deadline) -> Infeasible:
    worst = max(misfits, key=lambda table: least_bytes(problem, table))
    return Infeasible(
        _sentence(problem, worst),
        reason="table_exceeds_device",
        proven=True,
        shortfall_bytes=max(0, least_bytes(problem, worst) - max(problem.topology.memory_bytes)),
        tables=[table.name for table in misfits],
        devices=range(problem.topology.device_count),
        remedies=[*cut_remedies(problem, deadline), room_remedy(problem, misfits, deadline)],
    )


def _sentence(problem: Problem, table: Table) -> str:
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
