"""Bin packing: complete where no rule binds, first fit where one does."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from service.domain.deadline import Deadline
from service.search.rules import Presence, Rules

NODE_BUDGET = 200_000
_WORK_BUDGET = 5_000_000  # Nodes times devices: a node looks at every device.
_NODES_BETWEEN_CLOCKS = 128


@dataclass(frozen=True, slots=True)
class Items:
    """N things that are each placed as one: a slice, or all of the tables that are on one device together.

    Attributes:
        sizes: bytes of each.
        units: unit of each.
    """

    sizes: Sequence[int]
    units: Sequence[int]


@dataclass(frozen=True, slots=True)
class Packing:
    """Outcome of a packing.

    Attributes:
        assignment: bin of each item, in the caller's order; None where none was found.
        proven: whether the outcome is certain: an assignment, or that none exists.
    """

    assignment: tuple[int, ...] | None
    proven: bool


def pack(sizes: Sequence[int], limits: Sequence[int], deadline: Deadline, node_budget: int = NODE_BUDGET) -> Packing:
    """Depth-first search, largest item first, into the fullest bin that still takes it.

    Bins with equal room are interchangeable, so only one of them is tried, and a state (the next item and the
    sorted room of all bins) that failed once is not entered again.

    Args:
        sizes: bytes of each item.
        limits: bytes of each bin.
        deadline: checked every few nodes.
        node_budget: placements tried before giving up, fewer where there are many bins.
    """
    order = sorted(range(len(sizes)), key=lambda i: -sizes[i])
    budget = min(node_budget, max(_WORK_BUDGET // max(len(limits), 1), 4 * len(sizes)))
    search = _Search([sizes[i] for i in order], limits)
    nodes = 0
    while search.open and not search.done:
        nodes += search.step()
        if nodes > budget or (nodes % _NODES_BETWEEN_CLOCKS == 0 and deadline.passed()):
            return Packing(None, proven=False)
    if not search.done:
        return Packing(None, proven=True)
    assignment = [0] * len(sizes)
    for item, chosen in zip(order, search.chosen, strict=True):
        assignment[item] = chosen
    return Packing(tuple(assignment), proven=True)


def pack_by_rules(
    items: Items, limits: Sequence[int], rules: Rules, deadline: Deadline, node_budget: int = NODE_BUDGET
) -> Packing:
    """A packing that keeps the rules; where any binds by first fit, which proves nothing where it fails."""
    if not rules.bind:
        return pack(items.sizes, limits, deadline, node_budget)
    for fullest in (True, False):
        assignment = _first_fit(items, limits, rules, fullest, deadline)
        if assignment is not None:
            return Packing(assignment, proven=True)
    return Packing(None, proven=False)


def missing_everywhere(items: Items, limits: Sequence[int], rules: Rules) -> int | None:
    """Bytes that, added to every bin, are enough for a packing (not always the least); 0 where none are needed.

    None where none are known to be enough, because rules left an item no bin.
    """
    boundless = 1 << 62
    assignment = _first_fit(items, [limit + boundless for limit in limits], rules, fullest=False, deadline=Deadline())
    if assignment is None:
        return None
    room = list(limits)
    for size, chosen in zip(items.sizes, assignment, strict=True):
        room[chosen] -= size
    return max(0, -min(room))


def _first_fit(
    items: Items, limits: Sequence[int], rules: Rules, fullest: bool, deadline: Deadline
) -> tuple[int, ...] | None:
    """Items with the fewest bins first, then the largest, each into the fullest or the roomiest bin that takes it.

    None where one finds none, or where the deadline passed first.
    """
    present, row = Presence(rules, 1), np.zeros(1, dtype=np.intp)
    choices = rules.allowed.sum(axis=1)
    room = list(limits)
    assignment = [-1] * len(items.sizes)
    for n, item in enumerate(sorted(range(len(assignment)), key=lambda i: (choices[items.units[i]], -items.sizes[i]))):
        if n % _NODES_BETWEEN_CLOCKS == 0 and deadline.passed():
            return None
        unit = np.array([items.units[item]], dtype=np.int64)
        legal = [int(i) for i in present.legal(row, unit)[0].nonzero()[0] if room[i] >= items.sizes[item]]
        if not legal:
            return None
        chosen = min(legal, key=room.__getitem__) if fullest else max(legal, key=room.__getitem__)
        present.put(row, np.array([chosen], dtype=np.intp), unit)
        room[chosen] -= items.sizes[item]
        assignment[item] = chosen
    return tuple(assignment)


class _Search:
    """Stack of a depth-first search over items of descending size; explicit, for thousands of items."""

    def __init__(self, sizes: Sequence[int], limits: Sequence[int]) -> None:
        self._sizes = sizes
        self._room = list(limits)
        self._left = [0] * (len(sizes) + 1)
        for i in reversed(range(len(sizes))):
            self._left[i] = self._left[i + 1] + sizes[i]
        self._failed: set[bytes] = set()
        self.chosen: list[int] = []
        self.open: list[tuple[bytes, list[int]]] = []
        if sizes:
            self._enter()

    @property
    def done(self) -> bool:
        """Whether every item has a bin."""
        return len(self.chosen) == len(self._sizes)

    def step(self) -> int:
        """Places the next item, or takes one back; the number of items placed, 0 or 1."""
        state, bins = self.open[-1]
        if not bins:
            self._failed.add(state)
            self.open.pop()
            if self.open:
                item = len(self.open) - 1
                self._room[self.chosen.pop()] += self._sizes[item]
            return 0
        chosen = bins.pop()
        self._room[chosen] -= self._sizes[len(self.chosen)]
        self.chosen.append(chosen)
        if not self.done:
            self._enter()
        return 1

    def _enter(self) -> None:
        state = self._state()
        self.open.append((state, [] if state in self._failed else self._bins()))

    def _state(self) -> bytes:
        rooms = array("q", [len(self.chosen), *sorted(self._room)])
        return blake2b(rooms.tobytes(), digest_size=16).digest()

    def _bins(self) -> list[int]:
        """Bins worth trying for the next item, the best one last."""
        item = len(self.chosen)
        size, smallest = self._sizes[item], self._sizes[-1]
        if sum(room for room in self._room if room >= smallest) < self._left[item]:
            return []
        by_room = {room: i for i, room in enumerate(self._room) if room >= size}
        if size in by_room:
            return [by_room[size]]  # Nothing can use a bin better than the item that fills it.
        return [by_room[room] for room in sorted(by_room, reverse=True)]
