"""What cannot be planned, and placements by memory alone where a heuristic finds none."""

from dataclasses import dataclass, field

import numpy as np

from service.domain.deadline import Deadline
from service.domain.errors import Infeasible
from service.domain.plan import Problem, ShardingType
from service.search.catalogue import Integers, no_plan_in_time
from service.search.cuts import can_be_cut
from service.search.packing import Packing, missing_everywhere, pack
from service.search.quantities import gibibytes
from service.search.remedies import cut_remedies, size_remedies
from service.search.workspace import Workspace


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """A placement that fits in memory.

    Attributes:
        workspace: the pieces that were placed.
        placement: device of each piece; [S].
        cut_short: whether the deadline ended the search before it was through.
        by_memory_alone: whether costs played no part, because the algorithm itself found no placement.
    """

    workspace: Workspace = field(repr=False)
    placement: Integers = field(repr=False)
    cut_short: bool = False
    by_memory_alone: bool = False


def check_total_memory(problem: Problem, deadline: Deadline) -> None:
    """Compares the least that the tables can need, each of them whole, with what the devices hold together.

    Raises:
        Infeasible: ``total_memory``, proven, with the exact shortfall.
    """
    limits = problem.topology.memory_bytes
    need = sum(problem.memory_of(table).total for table in problem.tables)
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


def place_by_memory(workspace: Workspace, deadline: Deadline) -> Found:
    """A placement that fits, found without regard to costs.

    Raises:
        NoPlanInTime: the deadline passed first.
        Infeasible: ``packing``; proven where no placement of whole tables exists and no table may be cut. Other
            slices, even the finest, prove nothing: uneven ones may fit, and those that merge on a device need less.
    """
    packing = packed(workspace, deadline)
    if packing.assignment is not None:
        return Found(workspace, np.array(packing.assignment, dtype=np.int64), by_memory_alone=True)
    if not packing.proven and deadline.passed():
        raise no_plan_in_time()
    proven = packing.proven and not _cuts_could_help(workspace)
    raise _packing_failed(workspace, proven, deadline)


def packed(workspace: Workspace, deadline: Deadline) -> Packing:
    """The S slices packed into the devices' memory."""
    return pack(workspace.memory_bytes.tolist(), workspace.limits.tolist(), deadline)


def _cuts_could_help(workspace: Workspace) -> bool:
    """Whether other slices than these are allowed."""
    constraints = workspace.problem.constraints
    return any(can_be_cut(constraints, table.embedding_dim) for table in workspace.problem.tables)


def _packing_failed(workspace: Workspace, proven: bool, deadline: Deadline) -> Infeasible:
    """The least shortfall is not known, only an amount that is enough."""
    problem = workspace.problem
    missing = missing_everywhere(workspace.memory_bytes.tolist(), workspace.limits.tolist())
    pieces, devices = len(workspace.pieces), workspace.device_count
    found = "no placement exists" if proven else "the search found no placement"
    remedies = [f"{gibibytes(missing)} ({missing} bytes) more memory on each device are enough"]
    if ShardingType.COLUMN_WISE not in problem.constraints.sharding_types:
        remedies += cut_remedies(problem, deadline)
    return Infeasible(
        f"{found} of {pieces} tables or slices on {devices} devices that fits in memory, "
        "though together the devices hold enough for the uncut tables",
        reason="packing",
        proven=proven,
        shortfall_bytes=0,
        tables=[table.name for table in problem.tables],
        devices=range(devices),
        remedies=remedies,
    )
