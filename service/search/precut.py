"""Cuts that must be made before placement; every other table stays whole."""

from itertools import accumulate

from service.domain.deadline import NEVER, Deadline
from service.domain.errors import Fault, InvalidRequest
from service.domain.plan import Problem, Slice
from service.domain.ports import CostModels
from service.domain.tables import Table
from service.search.catalogue import no_plan_in_time
from service.search.cuts import needed_counts, slices_of, widths_of
from service.search.proofs import check_feasible
from service.search.rules import Rules
from service.search.workspace import Workspace

MOST_SHARDS = 10_000
"""Slices that a plan may have to be made of, at most; more would only run into the deadline."""


def posed(problem: Problem, models: CostModels, deadline: Deadline = NEVER) -> Workspace:
    """The pieces that algorithms begin with: whole tables, and needed cuts.

    Raises:
        Infeasible, InvalidRequest, NoPlanInTime: see ``precut``; also NoPlanInTime before all pieces were encoded.
    """
    return Workspace.of(problem, precut(problem, deadline), models, deadline)


def precut(problem: Problem, deadline: Deadline) -> tuple[Slice, ...]:
    """The fewest slices that a plan can be made of, each table's widths as even as possible, wider ones first.

    A table is cut where it is wider than ``max_shard_dim``, where it fits whole on no device that it may be on, or
    where ``table_wise`` is not allowed and the table can be cut at all. Tables that are on one device together are cut
    for the first and the last of these alone.

    Raises:
        Infeasible: some table fits no device that it may be on, see ``check_feasible``.
        InvalidRequest: the tables come to more than ``MOST_SHARDS`` slices.
        NoPlanInTime: the deadline passed before all tables were looked at.
    """
    counts = needed_counts(problem, Rules.of(problem))
    for i, shards in enumerate(accumulate(counts)):
        if shards > MOST_SHARDS:
            raise InvalidRequest([_too_many(i, problem.tables[i], counts[i])])
    if not all(counts):
        check_feasible(problem, deadline)
    if deadline.passed():
        raise no_plan_in_time()
    return slices_of(widths_of(problem, counts))


def _too_many(i: int, table: Table, shards: int) -> Fault:
    message = (
        f"table {table.name!r} must be cut into {shards} shards, and with those before it that is more than the "
        f"{MOST_SHARDS} that a plan may have: allow wider shards, or give a device more memory"
    )
    return Fault(f"/tables/{i}/embedding_dim", message, table.name)
