"""Pieces of tables and devices for them that fit in memory: heuristics first, the integer program where they fail."""

from collections.abc import Sequence
from dataclasses import dataclass

from service.domain.deadline import Deadline
from service.domain.plan import Problem, Slice
from service.search.cuts import Widths, cuts_that_pack, items_of, slices_of
from service.search.exact import DEFAULT_WORK, Columns, columns_that_fit
from service.search.filling import filled
from service.search.packing import pack_by_rules
from service.search.rules import Rules
from service.search.shards import shard_widths

_EVEN_SHARE = 0.5
"""Part of the time in which even cuts are tried, before uneven ones."""


@dataclass(frozen=True, slots=True)
class Pieces:
    """S slices that tile the tables, by table and column, and the device of each."""

    slices: tuple[Slice, ...]
    devices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Fitting:
    """What became of the search for pieces.

    Attributes:
        pieces: None where none were found.
        proven: whether that is certain.
        cut_short: whether it is uncertain because of the deadline.
    """

    pieces: Pieces | None
    proven: bool
    cut_short: bool = False


def fitting(problem: Problem, deadline: Deadline, work: float = DEFAULT_WORK) -> Fitting:
    """Pieces that fit and keep all rules, found without regard to costs, or whether there are none.

    Args:
        problem: what is planned.
        deadline: neither pieces nor a proof where it passes first.
        work: the most that the integer program's solver may work, in its deterministic seconds.
    """
    rules = Rules.of(problem)
    cuts = cuts_that_pack(problem, deadline.share(_EVEN_SHARE))
    if cuts is not None:
        assignment = pack_by_rules(
            items_of(problem, rules, cuts), problem.topology.memory_bytes, rules, deadline
        ).assignment
        if assignment is not None:
            return Fitting(Pieces(slices_of(cuts), _devices(rules, cuts, assignment)), proven=True)
    columns = filled(problem, rules, deadline)
    if columns is not None:
        return Fitting(_pieces(problem, columns), proven=True)
    outcome = columns_that_fit(problem, rules, deadline, work)
    if outcome.columns is None:
        return Fitting(None, outcome.proven, outcome.cut_short)
    return Fitting(_pieces(problem, outcome.columns), proven=True)


def _devices(rules: Rules, cuts: Sequence[Widths], assignment: Sequence[int]) -> tuple[int, ...]:
    """Device of each slice, by table and column, from those of the items that the cuts come to."""
    left = iter(assignment)
    devices: list[list[int]] = [[] for _ in cuts]
    for members in rules.units:
        if len(members) == 1:
            devices[members[0]] = [next(left) for _ in cuts[members[0]]]
            continue
        device = next(left)
        for table in members:
            devices[table] = [device] * len(cuts[table])
    return tuple(device for placed in devices for device in placed)


def _pieces(problem: Problem, columns: Columns) -> Pieces:
    cuts: list[Widths] = []
    devices: list[int] = []
    for table, row in zip(problem.tables, columns.tolist(), strict=True):
        shards = [
            (device, shard_widths(problem.constraints, table.embedding_dim, n)) for device, n in enumerate(row) if n
        ]
        cuts.append(tuple(width for _, widths in shards for width in widths))
        devices += [device for device, widths in shards for _ in widths]
    return Pieces(slices_of(cuts), tuple(devices))
