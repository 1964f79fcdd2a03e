"""NeuroShard's inner search for many ways of cutting at once: greedy placement over a grid of width caps.

All states (ways of cutting the tables into pieces) and all caps advance in lock step, one piece a step: a device's
state is the running sum of its pieces' embeddings, and only the device that took a piece is priced again.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.domain.deadline import Deadline
from service.search.catalogue import Catalogue, Integers, ticks
from service.search.greedy import lowest_device
from service.search.rules import Flags, Presence
from service.search.simulator import exchange_ticks

CAP_COUNT = 11
"""Caps are spread evenly from 1.0 to 1.5 times the mean width of a device; with these comes no cap at all, since
every cap can refuse an easy task (ten 128-wide tables on 8 devices)."""


@dataclass(frozen=True, slots=True, eq=False)
class GridResult:
    """What the grid found for each of S states of n pieces.

    Attributes:
        placements: devices of the pieces under the best cap; [S, n], arbitrary where nothing fits.
        costs: predicted plan cost under that cap, ticks; [S], the largest integer where nothing fits.
        missing_bytes: memory of the pieces that found no device even without a cap; [S], 0 where all did.
    """

    placements: Integers
    costs: Integers
    missing_bytes: Integers


def width_caps(total: int, devices: int, count: int) -> Integers:
    """``count`` ascending caps on a device's output columns, then one that never binds; [count + 1].

    In whole numbers, because a cap that binds exactly must not depend on rounding.
    """
    steps = 2 * max(count - 1, 1)
    return np.array([*(total * (steps + i) // (steps * devices) for i in range(count)), total], dtype=np.int64)


class Grid:
    """Places the pieces of S states under C caps at once, each piece on the device whose cost so far is lowest."""

    def __init__(self, catalogue: Catalogue, caps: Integers) -> None:
        """Takes what all states share.

        Args:
            catalogue: knows the pieces that the states are made of.
            caps: on a device's output columns, the last one never binding; [C].
        """
        self._pieces, self._models, self._caps = catalogue, catalogue.models, caps
        self._limits = np.array(catalogue.problem.topology.memory_bytes, dtype=np.int64)

    def run(self, states: Integers, deadline: Deadline) -> GridResult | None:
        """Places S states of n pieces each; [S, n] positions in the catalogue. None where the deadline passed first."""
        rows = _Rows(states, self._pieces, len(self._limits), self._caps)
        for i in range(states.shape[1]):
            if deadline.passed():
                return None
            self._place(rows, i)
        return self._best(rows, *states.shape)

    def _place(self, rows: "_Rows", i: int) -> None:
        """The ``i``-th piece of every row that is still open."""
        pieces, open_rows = self._pieces, np.flatnonzero(rows.open)
        piece = rows.piece(open_rows, i)
        fits = rows.used[open_rows] + pieces.memory_bytes[piece, None] <= self._limits
        legal = fits & (rows.widths[open_rows] + pieces.output_widths[piece, None] <= rows.caps[open_rows, None])
        legal &= rows.present.legal(open_rows, pieces.units[piece])
        placed = legal.any(axis=1)
        rows.lose(open_rows[~placed], pieces.memory_bytes[piece[~placed]])
        chosen_rows, piece, legal = open_rows[placed], piece[placed], legal[placed]
        device = lowest_device(rows.costs[chosen_rows], rows.used[chosen_rows], legal)
        rows.present.put(chosen_rows, device, pieces.units[piece])
        rows.sums[chosen_rows, device] += pieces.embeddings[piece]
        rows.used[chosen_rows, device] += pieces.memory_bytes[piece]
        rows.widths[chosen_rows, device] += pieces.output_widths[piece]
        rows.devices[chosen_rows, rows.position(chosen_rows, i)] = device
        sums = rows.sums[chosen_rows, device].astype(np.float32)
        rows.costs[chosen_rows, device] = ticks(self._models.compute.head(sums)).sum(axis=-1)

    def _best(self, rows: "_Rows", states: int, count: int) -> GridResult:
        """The cheapest cap of each state, the first of equals."""
        caps = len(self._caps)
        found = exchange_ticks(
            self._models, rows.costs, rows.widths.astype(np.float64), self._pieces.problem.global_batch_size
        )
        plan = (rows.costs + found.backward + found.wait + found.transfer).max(axis=1)
        plan = np.where(rows.complete, plan, np.iinfo(np.int64).max).reshape(states, caps)
        best = plan.argmin(axis=1)
        each = np.arange(states)
        return GridResult(
            placements=rows.devices.reshape(states, caps, count)[each, best],
            costs=plan[each, best],
            missing_bytes=rows.missing.reshape(states, caps)[:, -1],
        )


class _Rows:
    """The running state of R = S x C rows, one for each state and cap."""

    def __init__(self, states: Integers, pieces: Catalogue, devices: int, caps: Integers) -> None:
        count, self._caps_count = len(states) * len(caps), len(caps)
        self._states = states
        # Descending cost alone, then memory, then the order of the tables: lexsort is stable.
        self._order = np.lexsort((-pieces.memory_bytes[states], -pieces.single_costs[states]), axis=1)
        self.caps = np.tile(caps, len(states))
        self.present = Presence(pieces.rules, count)
        self.sums: NDArray[np.float64] = np.zeros((count, devices, pieces.embeddings.shape[1]))
        self.costs = np.zeros((count, devices), dtype=np.int64)
        self.used = np.zeros((count, devices), dtype=np.int64)
        self.widths = np.zeros((count, devices), dtype=np.int64)
        self.devices = np.zeros((count, states.shape[1]), dtype=np.int64)
        self.missing = np.zeros(count, dtype=np.int64)
        self.open: Flags = np.ones(count, dtype=np.bool_)

    @property
    def complete(self) -> Flags:
        """Rows in which every piece found a device; [R]."""
        whole: Flags = self.open & (self.missing == 0)
        return whole

    def position(self, rows: NDArray[np.intp], i: int) -> Integers:
        """Positions, in their states, of the ``i``-th pieces to be placed."""
        positions: Integers = self._order[rows // self._caps_count, i]
        return positions

    def piece(self, rows: NDArray[np.intp], i: int) -> Integers:
        """The ``i``-th pieces to be placed."""
        pieces: Integers = self._states[rows // self._caps_count, self.position(rows, i)]
        return pieces

    def lose(self, rows: NDArray[np.intp], memory_bytes: Integers) -> None:
        """Notes pieces without a device: rows without a cap go on, to tell how far they are from fitting."""
        self.missing[rows] += memory_bytes
        capped = rows[rows % self._caps_count != self._caps_count - 1]
        self.open[capped] = False
