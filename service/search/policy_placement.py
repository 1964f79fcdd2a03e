"""Placements that DreamShard's policy makes: its likeliest devices, and samples of which the cheapest is kept."""

import numpy as np
from numpy.typing import NDArray

from service.domain.deadline import Deadline
from service.policies.dreamshard import DreamShardNetworks
from service.policies.networks import drawn
from service.search.catalogue import Integers, ticks
from service.search.episodes import Episodes
from service.search.greedy import lowest_device
from service.search.simulator import simulate
from service.search.tasks import Task
from service.search.workspace import Workspace


def dreamshard_task(workspace: Workspace, networks: DreamShardNetworks) -> Task:
    """The pieces by descending predicted cost alone, then by descending memory, with DreamShard's embeddings.

    The embedding of tables that are on one device together, or of a table that is several shards there, is their sum.
    """
    held = [workspace.catalogue.tables(piece) for piece in workspace.keys]
    encoded = networks.encode([table for tables in held for table in tables], workspace.problem.global_batch_size)
    embeddings = np.add.reduceat(encoded, np.cumsum([0, *map(len, held[:-1])]), axis=0)
    costs = ticks(networks.device_costs(embeddings).sum(axis=-1))
    return Task(workspace, np.lexsort((-workspace.memory_bytes, -costs)), embeddings)


def dreamshard_placement(
    workspace: Workspace, networks: DreamShardNetworks, samples: int, seed: int, deadline: Deadline
) -> Integers | None:
    """The cheapest placement, by the workspace's cost models, of the likeliest and some samples; the first of equals.

    Args:
        workspace: S pieces.
        networks: make the choices.
        samples: placements that are drawn beside the one of the likeliest devices.
        seed: of what is drawn.
        deadline: nothing is found where it passes first.

    Returns:
        device of each piece, [S], or None where all came to a dead end or the deadline passed.
    """
    generator = np.random.default_rng(seed)
    episodes = Episodes([dreamshard_task(workspace, networks)] * (1 + samples))
    while episodes.open.any():
        if deadline.passed():
            return None
        episodes.step(_chosen(episodes, networks.logits(episodes.sums), generator))
    placements = episodes.placements[~episodes.dead]
    if not len(placements):
        return None
    found: Integers = placements[simulate(workspace, placements).plan.argmin()]
    return found


def _chosen(episodes: Episodes, logits: NDArray[np.float64], generator: np.random.Generator) -> NDArray[np.intp]:
    """Likeliest device in the first episode, ties as in the heuristics; drawn ones in the others; [B]."""
    devices = drawn(logits, episodes.legal, generator)
    devices[0] = lowest_device(-logits[0], episodes.used[0], episodes.legal[0])
    return devices
