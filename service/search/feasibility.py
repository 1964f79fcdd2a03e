"""Placements by memory alone where an algorithm finds none, and what is said where there are none either."""

from dataclasses import dataclass, field

import numpy as np

from service.domain.deadline import Deadline
from service.domain.errors import Infeasible
from service.domain.plan import Algorithm, Problem, ShardingType
from service.domain.ports import CostModels
from service.search.catalogue import Integers, no_plan_in_time
from service.search.cuts import can_be_cut
from service.search.fitting import Pieces, fitting
from service.search.packing import Items, Packing, pack_by_rules
from service.search.remedies import cut_remedies, rule_remedies
from service.search.rules import Rules
from service.search.workspace import Workspace


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """A placement that fits in memory.

    Attributes:
        workspace: the pieces that were placed.
        placement: device of each piece; [S].
        cut_short: whether the deadline ended the search before it was through.
        by_memory_alone: whether costs played no part, because the algorithm itself found no placement.
        instead: the algorithm that placed them, because the one that was asked for found no placement.
    """

    workspace: Workspace = field(repr=False)
    placement: Integers = field(repr=False)
    cut_short: bool = False
    by_memory_alone: bool = False
    instead: Algorithm | None = None


def place_by_memory(workspace: Workspace, deadline: Deadline) -> Found:
    """A placement of these pieces that fits, found without regard to costs.

    Raises:
        NoPlanInTime: the deadline passed first.
        Infeasible: ``packing``; proven where no placement of whole tables exists, none may be cut and no rule binds.
            Not proven, ``pieces_that_fit`` may find other slices that fit, or prove that there are none.
    """
    packing = packed(workspace, deadline)
    if packing.assignment is not None:
        return Found(workspace, np.array(packing.assignment, dtype=np.int64), by_memory_alone=True)
    if not packing.proven and deadline.passed():
        raise no_plan_in_time()
    problem = workspace.problem
    if packing.proven and not any(can_be_cut(problem.constraints, table.embedding_dim) for table in problem.tables):
        raise _packing_failed(problem, True, deadline)
    raise _unfit(problem, proven=False, remedies=[])


def packed(workspace: Workspace, deadline: Deadline) -> Packing:
    """The S pieces packed into the devices' memory."""
    items = Items(workspace.memory_bytes.tolist(), workspace.units.tolist())
    return pack_by_rules(items, workspace.limits.tolist(), workspace.catalogue.rules, deadline)


def pieces_that_fit(problem: Problem, deadline: Deadline) -> Pieces:
    """Slices, cut as finely as need be, and devices for them that fit, found without regard to costs.

    Raises:
        NoPlanInTime: the deadline passed first.
        Infeasible: ``packing``; proven where there are no such slices, however uneven.
    """
    found = fitting(problem, deadline)
    if found.pieces is not None:
        return found.pieces
    if not found.proven and (found.cut_short or deadline.passed()):
        raise no_plan_in_time()
    raise _packing_failed(problem, found.proven, deadline)


def placed_so(problem: Problem, models: CostModels, pieces: Pieces, deadline: Deadline) -> Found:
    """The placement that comes with slices which were found to fit.

    Raises:
        NoPlanInTime: the deadline passed before all were encoded.
    """
    workspace, placement = Workspace.placed(problem, zip(pieces.slices, pieces.devices, strict=True), models, deadline)
    return Found(workspace, placement, by_memory_alone=True)


def _packing_failed(problem: Problem, proven: bool, deadline: Deadline) -> Infeasible:
    """The least shortfall is not known, only an amount that is enough."""
    remedies = rule_remedies(problem, [table.name for table in problem.tables], deadline)
    if ShardingType.COLUMN_WISE not in problem.constraints.sharding_types:
        remedies += cut_remedies(problem, deadline)
    return _unfit(problem, proven, remedies)


def _unfit(problem: Problem, proven: bool, remedies: list[str]) -> Infeasible:
    tables, devices = len(problem.tables), problem.topology.device_count
    found = "no placement exists" if proven else "the search found no placement"
    rules = " and keeps all of pin, colocate and separate" if Rules.of(problem).bind else ""
    return Infeasible(
        f"{found} of {tables} tables, cut or not, on {devices} devices that fits in memory{rules}, "
        "though together the devices hold enough",
        reason="packing",
        proven=proven,
        shortfall_bytes=0,
        tables=[table.name for table in problem.tables],
        devices=range(devices),
        remedies=remedies,
    )
