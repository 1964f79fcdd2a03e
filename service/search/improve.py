"""Iterated local search: the best of what descents from random kicks lead to."""

import numpy as np

from service.domain.deadline import Deadline
from service.search.kicks import kick
from service.search.refine import Refinement

STALE = 30
"""Kicks without a better plan after which the search ends."""


def improve(plan: Refinement, seed: int, deadline: Deadline) -> tuple[Refinement, bool]:
    """A plan that is better than the one given, or that one; and whether the search came to its end.

    Args:
        plan: to start from, which stays as it is; what is found is predicted to cost no more than its limit.
        seed: of the kicks.
        deadline: when the best so far is returned.
    """
    generator = np.random.default_rng(seed)
    best, tried = plan, plan.copy()
    finished, stale = tried.descend(deadline), 0
    while True:
        if tried.worth < best.worth and tried.cost <= best.limit:
            best, stale = tried, 0
        finished = finished and not deadline.passed()
        if stale == STALE or not finished:
            return best, finished
        tried = best.copy()
        stale += 1
        if kick(tried, generator):
            finished = tried.descend(deadline)
