"""What keeps a problem from being planned at all, apart from its size."""

from collections import Counter
from collections.abc import Iterator

from service.domain.errors import Fault
from service.domain.plan import Problem
from service.domain.reuse import reuse_fault
from service.domain.tables import DIM_MULTIPLE, Table, histogram_faults


def problem_faults(problem: Problem) -> list[Fault]:
    """Every field that contradicts another or the contract, with its JSON pointer; empty for a sound problem."""
    return [
        *_tables_faults(problem),
        *_device_faults(problem),
        *_constraint_faults(problem),
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
        message = f"{constraints.min_shard_dim} is above max_shard_dim, {constraints.max_shard_dim}"
        yield Fault("/constraints/min_shard_dim", message)
