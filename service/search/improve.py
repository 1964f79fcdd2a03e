"""Iterated local search: the best of what descents from random kicks lead to."""

import numpy as np

from service.domain.deadline import Deadline
from service.search.kicks import kick
from service.search.refine import Refinement

STALE = 10
"""Kicks that brought next to nothing after which the search ends."""

_COUNTS = 0.999
"""What brings less than a thousandth is taken, but keeps no search going: models cannot tell a hundredth."""


def improve(plan: Refinement, seed: int, deadline: Deadline) -> tuple[Refinement, bool]:
    """A plan that is better than the one given, or that one; and whether the search came to its end.

    Args:
        plan: to start from, which stays as it is; what is found is predicted to cost no more than its limit.
        seed: of the kicks.
        deadline: when the best so far is returned.
    """
    generator = np.random.default_rng(seed)
    best, tried = plan, plan.copy()
    finished, stale, mark = tried.descend(deadline), 0, plan.worth
    while True:
        if tried.worth < best.worth and tried.cost <= best.limit:
            best = tried
        if best.worth < _COUNTS * mark:
            stale, mark = 0, best.worth
        finished = finished and not deadline.passed()
        if stale == STALE or not finished:
            return best, finished
        tried = best.copy()
        stale += 1
        if kick(tried, generator):
            finished = tried.descend(deadline)
