"""The baselines of all three papers: random placement and four greedy heuristics."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from service.domain.deadline import NEVER, Deadline
from service.domain.plan import Algorithm
from service.domain.tables import Table
from service.search.catalogue import Integers, no_plan_in_time
from service.search.feasibility import Found, place_by_memory
from service.search.rules import Flags, Presence
from service.search.workspace import Workspace

RANDOM_ATTEMPTS = 16

_PIECES_BETWEEN_CLOCKS = 256

Weight = Callable[[Table], float]

_LARGEST = np.iinfo(np.int64).max


def _size(table: Table) -> float:
    return float(table.num_embeddings * table.embedding_dim)


def _dim(table: Table) -> float:
    return float(table.embedding_dim)


def _lookup(table: Table) -> float:
    return table.embedding_dim * table.pooling_factor


def _size_lookup(table: Table) -> float:
    # Rounded, because the last bit of a logarithm differs between mathematical libraries.
    return table.embedding_dim * table.pooling_factor * round(float(np.log10(table.num_embeddings)), 9)


WEIGHTS: dict[Algorithm, Weight] = {
    Algorithm.SIZE_GREEDY: _size,
    Algorithm.DIM_GREEDY: _dim,
    Algorithm.LOOKUP_GREEDY: _lookup,
    Algorithm.SIZE_LOOKUP_GREEDY: _size_lookup,
}
"""What each heuristic balances, of a shard as a table of its width."""


def lowest_device(load: NDArray[np.generic], used: Integers, legal: Flags) -> NDArray[np.intp]:
    """The legal device with the least load; ties go to the one with less memory used, then to the lower index.

    Args:
        load: [..., D], whole numbers below 2^53 or floats.
        used: bytes used; [..., D].
        legal: at least one device in each row; [..., D].
    """
    masked = np.where(legal, load, np.inf)
    tied = legal & (masked == masked.min(axis=-1, keepdims=True))
    chosen: NDArray[np.intp] = np.where(tied, used, _LARGEST).argmin(axis=-1)
    return chosen


def greedy_placement(workspace: Workspace, weight: Weight, deadline: Deadline = NEVER) -> Integers | None:
    """Pieces by descending weight, each to the device with the smallest sum of weights among those that may take it.

    A piece of weight 0 changes no sum, so all devices tie for it and memory decides: such pieces do not pile up.

    Returns:
        device of each piece, [S], or None where one finds no device or the deadline passed.
    """
    weights = np.array([sum(map(weight, workspace.catalogue.tables(piece))) for piece in workspace.keys])
    memory, units = workspace.memory_bytes, workspace.units
    loads = np.zeros(workspace.device_count)
    used = np.zeros(workspace.device_count, dtype=np.int64)
    present, row = Presence(workspace.catalogue.rules, 1), np.zeros(1, dtype=np.intp)
    placement = np.zeros(len(weights), dtype=np.int64)
    for n, i in enumerate(np.lexsort((-memory, -weights))):
        if n % _PIECES_BETWEEN_CLOCKS == 0 and deadline.passed():
            return None
        legal = (used + memory[i] <= workspace.limits) & present.legal(row, units[[i]])[0]
        if not legal.any():
            return None
        device = lowest_device(loads if weights[i] else np.zeros_like(loads), used, legal)
        present.put(row, device[None], units[[i]])
        placement[i] = device
        loads[device] += weights[i]
        used[device] += memory[i]
    return placement


def greedy(workspace: Workspace, weight: Weight, deadline: Deadline) -> Found:
    """One heuristic's placement, or one by memory alone where the heuristic finds none.

    Raises:
        NoPlanInTime: the deadline passed before a placement was found.
        Infeasible: no placement fits, or none was found.
    """
    if deadline.passed():
        raise no_plan_in_time()
    placement = greedy_placement(workspace, weight, deadline)
    if placement is None and deadline.passed():
        raise no_plan_in_time()
    return place_by_memory(workspace, deadline) if placement is None else Found(workspace, placement)


def random(workspace: Workspace, seed: int, deadline: Deadline) -> Found:
    """Each piece, largest first, to a random device among those that may take it; of several attempts the first.

    Raises:
        NoPlanInTime: the deadline passed before a placement was found.
        Infeasible: no placement fits, or none was found.
    """
    generator = np.random.default_rng(seed)
    for _ in range(RANDOM_ATTEMPTS):
        if deadline.passed():
            raise no_plan_in_time()
        placement = _random_placement(workspace, generator)
        if placement is not None:
            return Found(workspace, placement)
    return place_by_memory(workspace, deadline)


def _random_placement(workspace: Workspace, generator: np.random.Generator) -> Integers | None:
    room, memory, units = workspace.limits.copy(), workspace.memory_bytes, workspace.units
    present, row = Presence(workspace.catalogue.rules, 1), np.zeros(1, dtype=np.intp)
    placement = np.zeros(len(memory), dtype=np.int64)
    for i in np.argsort(-memory, kind="stable"):
        legal = np.flatnonzero((room >= memory[i]) & present.legal(row, units[[i]])[0])
        if not legal.size:
            return None
        device = legal[[generator.integers(legal.size)]]
        present.put(row, device, units[[i]])
        placement[i] = device[0]
        room[device] -= memory[i]
    return placement
