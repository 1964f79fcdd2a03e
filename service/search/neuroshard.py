"""NeuroShard's inner search: a greedy grid search over caps on a device's output width (MLSys 2023)."""

import numpy as np
from numpy.typing import NDArray

from service.domain.deadline import Deadline
from service.search.feasibility import Found, packed, place_by_memory
from service.search.greedy import WEIGHTS, greedy_placement, lowest_device
from service.search.simulator import simulate
from service.search.workspace import Integers, Workspace, no_plan_in_time, ticks

CAP_COUNT = 11
"""Caps are spread evenly from 1.0 to 1.5 times the mean width of a device; with these comes no cap at all, since
every cap can refuse an easy task (ten 128-wide tables on 8 devices)."""


def neuroshard(workspace: Workspace, deadline: Deadline) -> Found:
    """The cheapest predicted plan of the grid of caps and of the four greedy heuristics, the first of equals.

    A heuristic that finds no placement counts with the one by memory alone that it then answers.

    Raises:
        NoPlanInTime: the deadline passed before a placement was found.
        Infeasible: no placement fits, or none was found.
    """
    baselines = _greedy_placements(workspace, deadline)
    grid = _Grid(workspace)
    finished = grid.run(deadline)
    candidates = [*(grid.placements() if finished else []), *baselines]
    if not candidates:
        if not finished:
            raise no_plan_in_time()
        return place_by_memory(workspace, deadline)
    if finished and len(baselines) < len(WEIGHTS):
        packing = packed(workspace, deadline)
        finished = packing.proven or not deadline.passed()
        candidates += [np.array(packing.assignment)] if packing.assignment is not None else []
    costs = simulate(workspace, np.stack(candidates)).plan
    return Found(candidates[int(costs.argmin())], cut_short=not finished)


def width_caps(workspace: Workspace) -> Integers:
    """Caps on a device's output columns: ``CAP_COUNT`` ascending ones, then one that never binds; [C]."""
    total, steps = int(workspace.output_widths.sum()), 2 * (CAP_COUNT - 1)
    # In whole numbers, because a cap that binds exactly must not depend on rounding.
    caps = [total * (steps + i) // (steps * workspace.device_count) for i in range(CAP_COUNT)]
    return np.array([*caps, total], dtype=np.int64)


def _greedy_placements(workspace: Workspace, deadline: Deadline) -> list[Integers]:
    placements = []
    for weight in WEIGHTS.values():
        if deadline.passed():
            break
        placement = greedy_placement(workspace, weight)
        if placement is not None:
            placements.append(placement)
    return placements


class _Grid:
    """All C caps advance in lock step, one slice a step; a cap under which a slice finds no device is dropped.

    A device's state is the running sum of its slices' embeddings, in double precision; only the device that took
    the slice is priced again.
    """

    def __init__(self, workspace: Workspace) -> None:
        caps, devices = width_caps(workspace), workspace.device_count
        self._workspace = workspace
        self._caps = caps[:, None]
        self._sums: NDArray[np.float64] = np.zeros((len(caps), devices, workspace.embeddings.shape[1]))
        self._costs = np.zeros((len(caps), devices), dtype=np.int64)
        self._used = np.zeros((len(caps), devices), dtype=np.int64)
        self._widths = np.zeros((len(caps), devices), dtype=np.int64)
        self._placed = np.zeros((len(caps), len(workspace.slices)), dtype=np.int64)
        self._open = np.arange(len(caps))

    def run(self, deadline: Deadline) -> bool:
        """Places all slices, by descending predicted cost alone; False where the deadline passed before the end."""
        space = self._workspace
        for i in np.lexsort((-space.memory_bytes, -space.single_costs)):
            if deadline.passed():
                return False
            self._place(int(i))
            if not self._open.size:
                break
        return True

    def placements(self) -> list[Integers]:
        """Placements of the caps under which every slice found a device, by ascending cap; each [S]."""
        return list(self._placed[self._open])

    def _place(self, i: int) -> None:
        space = self._workspace
        fits = self._used + space.memory_bytes[i] <= space.limits
        legal = fits & (self._widths + space.output_widths[i] <= self._caps)
        self._open = self._open[legal[self._open].any(axis=1)]
        rows = self._open
        if not rows.size:
            return
        chosen = lowest_device(self._costs[rows], self._used[rows], legal[rows])
        self._sums[rows, chosen] += space.embeddings[i]
        self._used[rows, chosen] += space.memory_bytes[i]
        self._widths[rows, chosen] += space.output_widths[i]
        self._placed[rows, i] = chosen
        sums = self._sums[rows, chosen].astype(np.float32)
        self._costs[rows, chosen] = ticks(space.models.compute.head(sums)).sum(axis=-1)
