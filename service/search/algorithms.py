"""The algorithms of the contract, by name."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from service.domain.deadline import Deadline
from service.domain.errors import UnsupportedAlgorithm
from service.domain.plan import LEARNED, Algorithm
from service.domain.ports import CostModels
from service.search.auto import auto
from service.search.feasibility import Found
from service.search.greedy import WEIGHTS, Weight, greedy, random
from service.search.learned import learned
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
"""Those that need no trained policy."""


def search_of(algorithm: Algorithm, models: CostModels, hardware: str) -> Search:
    """The function that runs an algorithm.

    Args:
        algorithm: one of the contract's.
        models: of the hardware; with the policy where the algorithm is one of ``LEARNED``.
        hardware: its name.

    Raises:
        UnsupportedAlgorithm: no policy of it was trained for this hardware.
    """
    if algorithm not in LEARNED:
        return SEARCHES[algorithm]
    policy = models.policy
    if policy is None or policy.algorithm is not algorithm:
        raise no_policy(algorithm, hardware, [policy.algorithm] if policy else [])
    return partial(learned, policy)


def no_policy(algorithm: Algorithm, hardware: str, trained: Sequence[Algorithm]) -> UnsupportedAlgorithm:
    """The error for an algorithm without its policy.

    Args:
        algorithm: that was asked for.
        hardware: that it has no policy for.
        trained: algorithms that have one.
    """
    available = [known.value for known in (*SEARCHES, *trained)]
    return UnsupportedAlgorithm(
        f"no {algorithm.value} policy was trained for hardware {hardware!r}: train one with `shardwright train "
        f"{algorithm.value} --hardware {hardware}`, or ask for one of {', '.join(available)}",
        algorithm=algorithm.value,
        available=available,
    )
