"""Iterated local search: the best of what descents from random kicks lead to."""

import numpy as np

from service.domain.deadline import Deadline
from service.search.kicks import kick
from service.search.refine import Refinement

STALE = 60
"""Kicks without a better plan after which the search ends."""


def improve(plan: Refinement, seed: int, deadline: Deadline) -> tuple[Refinement, bool]:
    """A plan no dearer than the one given, which is improved itself; and whether the search came to its end."""
    generator = np.random.default_rng(seed)
    best, finished, stale = plan, plan.descend(deadline), 0
    while stale < STALE and finished:
        tried = best.copy()
        stale += 1
        if kick(tried, generator):
            finished = tried.descend(deadline)
            if tried.cost < best.cost:
                best, stale = tried, 0
        finished = finished and not deadline.passed()
    return best, finished
