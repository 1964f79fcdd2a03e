"""From a plan that is running to a better one, within the bytes that may move."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from service.domain.deadline import Deadline
from service.domain.errors import Infeasible
from service.domain.plan import Running
from service.search.catalogue import Piece
from service.search.feasibility import Found
from service.search.holdings import NONE, Holdings
from service.search.improve import improve
from service.search.moved import Moved, Widths, by_unit
from service.search.quantities import gibibytes
from service.search.refine import Refinement
from service.search.workspace import Workspace

_RUNNING_SHARE = 0.5
"""Part of the time in which the running plan is improved, before one is made from nothing."""

Search = Callable[[Workspace, int, Deadline], Found]


def replan(workspace: Workspace, search: Search, running: Running, seed: int, deadline: Deadline) -> Found:
    """The cheapest plan found within the bytes that may move.

    The running plan, as far as it still fits, is improved by changes within the limit; a plan made from nothing counts
    where it is within the limit too, once devices that are alike have been told apart so that little moves.

    Args:
        workspace: pieces that a plan from nothing is made of.
        search: makes a plan from nothing; it always finds one.
        running: the plan that is running.
        seed: of what is drawn at random.
        deadline: when the best so far is the answer.

    Raises:
        Infeasible: ``max_moved_bytes``: none was found; proven where columns that cannot stay are more.
    """
    catalogue = workspace.catalogue
    moved = Moved(catalogue, running)
    plans = []
    start, finished = _started(workspace, moved, deadline.share(_RUNNING_SHARE)), True
    if start is not None:
        if running.max_moved_bytes is not None and moved.forced()[0] > running.max_moved_bytes:
            raise _too_much(moved, moved.of(start), running.max_moved_bytes)
        plan = Refinement(start, moved.accepts)
        plan.limit = plan.cost
        plan, finished = improve(plan, seed, deadline.share(_RUNNING_SHARE))
        plans.append(plan)
    fresh = search(workspace, seed, deadline)
    plans.append(Refinement(relabelled(Holdings.of(fresh.workspace, fresh.placement), moved), moved.accepts))
    finished = finished and not fresh.cut_short
    least = [moved.of(plan.holdings) for plan in plans]
    limit = running.max_moved_bytes
    within = [(plan.worth, size, i) for i, (plan, size) in enumerate(zip(plans, least, strict=True))]
    within = [found for found in within if limit is None or found[1] <= limit]
    if not within:
        raise _too_much(moved, min(least), limit or 0)
    chosen = min(within)[2]
    space, placement = plans[chosen].holdings.workspace()
    if plans[chosen] is plans[-1]:
        return replace(fresh, workspace=space, placement=placement, cut_short=not finished)
    return Found(space, placement, cut_short=not finished)


def _started(workspace: Workspace, moved: Moved, deadline: Deadline) -> Holdings | None:
    """The running plan with what cannot stay, and what is new, on other devices; None where that finds none in time."""
    catalogue = workspace.catalogue
    holdings, homeless = Holdings(catalogue, []), []
    running = [(unit, moved.columns_before(unit)) for unit in range(len(catalogue.rules.units))]
    catalogue.positions([Piece(unit, width) for unit, columns in running for width in columns.values()])
    for unit, columns in running:
        if deadline.passed():
            return None
        left = _kept(holdings, unit, columns)
        homeless += [piece for piece in workspace.keys if piece.unit == unit] if left is None else left
    for device, limit in enumerate(workspace.limits):
        homeless += _evicted(holdings, device, int(limit))
    positions = catalogue.positions(homeless)
    sizes = catalogue.memory_bytes[positions]
    for i in np.argsort(-sizes, kind="stable"):
        if deadline.passed() or not _housed(holdings, homeless[i], moved):
            return None
    return holdings


def _kept(holdings: Holdings, unit: int, columns: Widths) -> list[Piece] | None:
    """Leaves a unit where it is, as far as it may be there.

    Returns:
        pieces that cannot stay; None where nothing can.
    """
    catalogue = holdings.catalogue
    legal, devices = holdings.legal(unit), len(holdings.held)
    pieces = {device: Piece(unit, width) for device, width in columns.items()}
    if sum(columns.values()) != catalogue.whole(unit).width or not all(map(catalogue.allowed, pieces.values())):
        return None
    stays = {device: piece for device, piece in pieces.items() if device < devices and legal[device]}
    positions = catalogue.positions(list(stays.values())).tolist()
    holdings.change([(device, NONE, position) for device, position in zip(stays, positions, strict=True)])
    return [piece for device, piece in pieces.items() if device not in stays] if stays else None


def _evicted(holdings: Holdings, device: int, limit: int) -> list[Piece]:
    """Takes pieces off a device that holds too much: the smallest that is enough, or the largest again and again."""
    catalogue, out = holdings.catalogue, []
    while holdings.used[device] > limit:
        held = np.array(sorted(holdings.held[device].values()))
        sizes = catalogue.memory_bytes[held]
        enough = np.flatnonzero(sizes >= holdings.used[device] - limit)
        chosen = int(held[enough[sizes[enough].argmin()] if enough.size else sizes.argmax()])
        holdings.change([(device, chosen, NONE)])
        out.append(catalogue.keys[chosen])
    return out


def _housed(holdings: Holdings, piece: Piece, moved: Moved) -> bool:
    """Puts a piece on the device where it moves the fewest bytes, of these on the one with the least compute."""
    catalogue, unit = holdings.catalogue, piece.unit
    columns = holdings.columns(unit)
    options = []
    for device in np.flatnonzero(holdings.legal(unit)).tolist():
        joined = Piece(unit, piece.width + columns.get(device, 0))
        if not catalogue.allowed(joined):
            continue
        taken = catalogue.position(joined)
        there = holdings.held[device].get(unit, NONE)
        grown = int(catalogue.memory_bytes[taken]) - (int(catalogue.memory_bytes[there]) if there != NONE else 0)
        if holdings.used[device] + grown <= catalogue.problem.topology.memory_bytes[device]:
            bytes_moved = moved.of_unit(unit, {**columns, device: joined.width})
            options.append((bytes_moved, int(holdings.compute[device]), device, there, taken))
    if not options:
        return False
    *_, device, there, taken = min(options)
    holdings.change([(device, there, taken)])
    return True


def relabelled(holdings: Holdings, moved: Moved) -> Holdings:
    """The same plan with devices of equal memory, which the rules treat alike, named so that little moves."""
    catalogue, devices = holdings.catalogue, range(len(holdings.held))
    allowed, limits = catalogue.rules.allowed, catalogue.problem.topology.memory_bytes
    kind = [(limits[device], allowed[:, device].tobytes()) for device in devices]
    stays = np.zeros((len(devices), len(devices)), dtype=np.int64)
    for unit, columns in by_unit(holdings).items():
        whole = catalogue.whole(unit)
        size = sum(table.weight_bytes for table in catalogue.tables(whole))
        for device, width in columns.items():
            for name, before in moved.columns_before(unit).items():
                if name < len(devices):
                    stays[device, name] += size * min(width, before) // whole.width
    named: dict[int, int] = {}
    for place in np.argsort(-stays, axis=None, kind="stable").tolist():
        device, name = divmod(place, len(devices))
        if device not in named and name not in named.values() and kind[device] == kind[name]:
            named[device] = name
    return Holdings(catalogue, [(position, named[device]) for position, device in holdings.pieces()])


def _too_much(moved: Moved, least: int, limit: int) -> Infeasible:
    """Nothing within the limit; ``least`` bytes are known to be enough."""
    forced, tables = moved.forced()
    proven = forced > limit
    said = f"no plan moves at most {limit} bytes ({gibibytes(limit)})"
    because = f"{forced} bytes are on devices that may not keep them" if proven else f"the least found is {least}"
    return Infeasible(
        f"{said}: {because}" if proven else f"{said}, as far as was found: {because}",
        reason="max_moved_bytes",
        proven=proven,
        shortfall_bytes=least - limit,
        tables=tables,
        devices=[],
        remedies=[
            f"a max_moved_bytes of {least} ({gibibytes(least)}) is enough",
            "leave max_moved_bytes out to plan without a limit",
        ],
    )
