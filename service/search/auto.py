"""The portfolio behind ``auto``: cheap plans first, then NeuroShard's, each improved; the best plan seen."""

from service.domain.deadline import Deadline
from service.domain.errors import NoPlanInTime
from service.search.feasibility import Found
from service.search.greedy import WEIGHTS, greedy_placement
from service.search.holdings import Holdings
from service.search.improve import improve
from service.search.neuroshard import neuroshard
from service.search.refine import Refinement
from service.search.workspace import Workspace

_GREEDY_SHARE = 0.2
"""Part of the time in which greedy plans are improved, before NeuroShard's turn."""

_NEUROSHARD_SHARE = 0.6
"""Part of the time then left that NeuroShard may take."""


def auto(workspace: Workspace, seed: int, deadline: Deadline) -> Found:
    """The cheapest plan of the greedy heuristics, of NeuroShard and of a local search from the best of these.

    Raises:
        NoPlanInTime: the deadline passed before a placement was found.
        Infeasible: no placement fits, or none was found.
    """
    plans, finished = _greedy_plans(workspace, deadline)
    try:
        found = neuroshard(workspace, deadline.share(_NEUROSHARD_SHARE) if plans else deadline)
        plans.append(Refinement(Holdings.of(found.workspace, found.placement)))
        finished = finished and not found.cut_short and plans[-1].descend(deadline)
    except NoPlanInTime:
        if not plans:
            raise
        finished = False
    best, ended = improve(min(plans, key=lambda plan: plan.cost), seed, deadline)
    space, placement = best.holdings.workspace()
    return Found(space, placement, cut_short=not (finished and ended))


def _greedy_plans(workspace: Workspace, deadline: Deadline) -> tuple[list[Refinement], bool]:
    """The greedy heuristics' plans, improved in turn while their part of the time lasts; and whether all were."""
    share = deadline.share(_GREEDY_SHARE)
    placements = [greedy_placement(workspace, weight, deadline) for weight in WEIGHTS.values()]
    plans = [Refinement(Holdings.of(workspace, placement)) for placement in placements if placement is not None]
    plans.sort(key=lambda plan: plan.cost)
    ended = [plan.descend(share) for plan in plans]
    return plans, all(ended)
