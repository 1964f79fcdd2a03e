"""What placements cost, to policies that learn: measured on hardware, or predicted by cost models."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from service.domain.ports import Floats
from service.search.catalogue import TICKS_PER_MS, Integers
from service.search.simulator import simulate
from service.search.workspace import Workspace


@dataclass(frozen=True, slots=True, eq=False)
class StepTimes:
    """What a training step takes under one placement on D devices, milliseconds.

    Attributes:
        compute: forward and backward compute; [D, 2].
        exchange: backward exchange; [D].
        plan: the whole step, the largest total of a device.
    """

    compute: Floats
    exchange: Floats
    plan: float


Placed = tuple[Workspace, Integers]
"""A workspace and the device of each of its S pieces, [S]."""

Meter = Callable[[Sequence[Placed]], list[StepTimes]]
"""Finds out what placements cost."""


def predicted_times(placed: Sequence[Placed]) -> list[StepTimes]:
    """What each workspace's own cost models predict."""
    groups: dict[int, list[int]] = defaultdict(list)
    for i, (workspace, _) in enumerate(placed):
        groups[id(workspace)].append(i)
    found: dict[int, StepTimes] = {}
    for rows in groups.values():
        costs = simulate(placed[rows[0]][0], np.stack([placed[i][1] for i in rows]))
        compute = np.stack([costs.forward_compute, costs.backward_compute], axis=-1) / TICKS_PER_MS
        exchange, plans = costs.backward_comm / TICKS_PER_MS, costs.plan / TICKS_PER_MS
        found.update({i: StepTimes(compute[n], exchange[n], float(plans[n])) for n, i in enumerate(rows)})
    return [found[i] for i in range(len(placed))]
