"""The portfolio behind ``auto``: cheap plans first, then NeuroShard's, each improved; the best plan seen."""

from collections.abc import Iterable

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

_TOLD_APART = 0.99
"""What brings less than a hundredth is no better as far as the models can tell, only more of a chance find."""

_NEUROSHARD_SHARE = 0.6
"""Part of the time then left that NeuroShard may take."""


def auto(workspace: Workspace, seed: int, deadline: Deadline) -> Found:
    """The plan that can be expected to cost the least, of those predicted to cost no more than any that was made.

    These are the greedy heuristics' and NeuroShard's; from the best, improved, a local search goes on. Where NeuroShard
    came to its end, the plan is the one of fewest pieces of those that the models cannot tell from the best, and as it
    was made where that has no more pieces than others.

    Raises:
        NoPlanInTime: the deadline passed before a placement was found.
        Infeasible: no placement fits, or none was found.
    """
    made, tried, finished = _greedy_plans(workspace, deadline)
    try:
        found = neuroshard(workspace, deadline.share(_NEUROSHARD_SHARE) if made else deadline)
        made.append(Refinement(Holdings.of(found.workspace, found.placement)))
        whole = not found.cut_short
    except NoPlanInTime:
        if not made:
            raise
        whole = False
    limit = min(plan.cost for plan in made)
    for plan in (*made, *tried):
        plan.limit = limit
    cheapest, start = (_best(plans, limit) for plans in (made, (*made, *tried)))
    best, ended = improve(start, seed, deadline)
    alike = [plan for plan in (cheapest, best, *made, *tried) if plan.cost <= limit and _alike(plan, best)]
    kept = min(alike, key=lambda plan: plan.holdings.count) if whole else best
    space, placement = kept.holdings.workspace()
    return Found(space, placement, cut_short=not (finished and whole and ended))


def _alike(plan: Refinement, best: Refinement) -> bool:
    return best.worth > _TOLD_APART * plan.worth and best.cost > _TOLD_APART * plan.cost


def _best(plans: Iterable[Refinement], limit: int) -> Refinement:
    return min((plan for plan in plans if plan.cost <= limit), key=lambda plan: plan.worth)


def _greedy_plans(workspace: Workspace, deadline: Deadline) -> tuple[list[Refinement], list[Refinement], bool]:
    """The greedy heuristics' plans as they are, cheapest first, and improved while their part of the time lasts.

    Last, whether all were improved to the end.
    """
    share = deadline.share(_GREEDY_SHARE)
    placements = [greedy_placement(workspace, weight, deadline) for weight in WEIGHTS.values()]
    plans = [Refinement(Holdings.of(workspace, placement)) for placement in placements if placement is not None]
    plans.sort(key=lambda plan: plan.cost)
    tried = [plan.copy() for plan in plans]
    ended = [plan.descend(share) for plan in tried]
    return plans, tried, all(ended)
