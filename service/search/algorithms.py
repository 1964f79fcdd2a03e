"""The algorithms of the contract that exist, by name."""

from collections.abc import Callable, Mapping
from functools import partial

from service.domain.deadline import Deadline
from service.domain.errors import UnsupportedAlgorithm
from service.domain.plan import Algorithm
from service.search.auto import auto
from service.search.feasibility import Found
from service.search.greedy import WEIGHTS, Weight, greedy, random
from service.search.neuroshard import neuroshard
from service.search.workspace import Workspace

Search = Callable[[Workspace, int, Deadline], Found]
"""A search: workspace, seed and deadline in, a placement that fits in memory out.

It raises NoPlanInTime where the deadline passed before a placement was found, and Infeasible where no placement
fits or none was found.
"""


def _greedy(weight: Weight, workspace: Workspace, seed: int, deadline: Deadline) -> Found:
    return greedy(workspace, weight, deadline)


def _neuroshard(workspace: Workspace, seed: int, deadline: Deadline) -> Found:
    return neuroshard(workspace, deadline)


SEARCHES: Mapping[Algorithm, Search] = {
    Algorithm.AUTO: auto,
    Algorithm.NEUROSHARD: _neuroshard,
    **{algorithm: partial(_greedy, weight) for algorithm, weight in WEIGHTS.items()},
    Algorithm.RANDOM: random,
}


def search_of(algorithm: Algorithm) -> Search:
    """The function that runs an algorithm.

    Raises:
        UnsupportedAlgorithm: this version does not have it; ``data['available']`` names those that it has.
    """
    found = SEARCHES.get(algorithm)
    if found is None:
        available = [known.value for known in SEARCHES]
        detail = f"algorithm {algorithm.value!r} is not available, these are: {', '.join(available)}"
        raise UnsupportedAlgorithm(detail, algorithm=algorithm.value, available=available)
    return found
