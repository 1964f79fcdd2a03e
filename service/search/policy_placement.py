"""Placements that a policy makes: its likeliest devices, and samples of which the cheapest is kept."""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from service.domain.deadline import Deadline
from service.domain.policy import PlacementPolicy, Seen
from service.domain.ports import Floats
from service.policies.networks import drawn
from service.search.catalogue import Integers, ticks
from service.search.episodes import Episodes
from service.search.greedy import lowest_device
from service.search.simulator import simulate
from service.search.tasks import Task
from service.search.workspace import Workspace


def policy_task(workspace: Workspace, policy: PlacementPolicy) -> Task:
    """The pieces by descending cost alone as the policy predicts it, then by descending memory, with its embeddings.

    The embedding of tables that are on one device together, or of a table that is several shards there, is their sum.
    """
    return ordered(workspace, unit_embeddings(workspace, policy), policy.single_costs)


def ordered(workspace: Workspace, embeddings: Floats, single_costs: Callable[[Floats], Floats]) -> Task:
    """The pieces by descending cost alone, then by descending memory, with these features; [S, F]."""
    costs = ticks(single_costs(embeddings))
    return Task(workspace, np.lexsort((-workspace.memory_bytes, -costs)), embeddings)


def unit_embeddings(workspace: Workspace, policy: PlacementPolicy) -> Floats:
    """Sums of a policy's embeddings over the tables, or shards, that each piece consists of; [S, F]."""
    held = [workspace.catalogue.tables(piece) for piece in workspace.keys]
    encoded = policy.encode([table for tables in held for table in tables], workspace.problem.global_batch_size)
    summed: Floats = np.add.reduceat(encoded, np.cumsum([0, *map(len, held[:-1])]), axis=0)
    return summed


def seen(episodes: Episodes) -> Seen:
    """What a policy sees of episodes whose tasks are ``policy_task``'s."""
    used = np.divide(episodes.used, episodes.limits, out=np.zeros(episodes.used.shape), where=episodes.limits > 0)
    return Seen(episodes.next_features, episodes.placed, episodes.sums, used, episodes.devices)


def policy_placement(
    workspace: Workspace, policy: PlacementPolicy, samples: int, seed: int, deadline: Deadline
) -> Integers | None:
    """The cheapest placement, by the workspace's cost models, of the likeliest and some samples; the first of equals.

    Args:
        workspace: S pieces.
        policy: makes the choices.
        samples: placements that are drawn beside the one of the likeliest devices.
        seed: of what is drawn.
        deadline: the likeliest devices alone are the answer where it passes before samples are complete.

    Returns:
        device of each piece, [S], or None where all came to a dead end or the deadline passed.
    """
    task = policy_task(workspace, policy)
    # Episodes of a batch end together: where time may run out, the likeliest is brought to its end first.
    first = _played(task, policy, 0, seed, deadline) if samples and deadline.at < math.inf else None
    placements = _played(task, policy, samples, seed, deadline)
    if placements is None:
        placements = first
    if placements is None or not len(placements):
        return None
    found: Integers = placements[simulate(workspace, placements).plan.argmin()]
    return found


def _played(task: Task, policy: PlacementPolicy, samples: int, seed: int, deadline: Deadline) -> Integers | None:
    """Placements of the likeliest devices and of samples, without dead ends, [N, S]; None where the deadline passed."""
    generator = np.random.default_rng(seed)
    episodes = Episodes([task] * (1 + samples))
    scorer = policy.begin(1 + samples)
    while episodes.open.any():
        if deadline.passed():
            return None
        episodes.step(_chosen(episodes, scorer.logits(seen(episodes)), generator))
    return episodes.placements[~episodes.dead]


def _chosen(episodes: Episodes, logits: NDArray[np.float64], generator: np.random.Generator) -> NDArray[np.intp]:
    """Likeliest device in the first episode, ties as in the heuristics; drawn ones in the others; [B]."""
    devices = drawn(logits, episodes.legal, generator)
    if episodes.open[0]:
        devices[0] = lowest_device(-logits[0], episodes.used[0], episodes.legal[0])
    return devices
