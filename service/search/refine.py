"""Improves a plan: columns leave the device that holds it back, or are exchanged for those of another device.

Every change takes pieces off the bottleneck (the device that starts its forward exchange last, or whose transfer takes
longest) and gives them to one other device: all columns of a unit there or a part of them (a new cut, a cut elsewhere,
a merge with what the other device has of the table), or one piece for another. What changes come to is estimated for
all of them by the slope of each device's cost, the best are priced exactly, and one is made if the plan gets better:
cheaper, or at equal cost with earlier starts, the latest counting first. So it ends.
"""

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.domain.deadline import Deadline
from service.domain.ports import Floats
from service.search.catalogue import Catalogue, Integers, Piece, ticks
from service.search.holdings import NONE, Change, Exchanges, Holdings, steepness
from service.search.rules import Flags

_PRICED = 64
"""Changes whose devices are priced exactly, of those with the best estimates."""

_PRICED_WHOLE = 8
"""Changes of these that are priced with the exchanges of all devices."""


Accepts = Callable[[Holdings, list[Change]], bool]
"""Whether holdings may be changed so, besides what the problem says."""


def anything(holdings: Holdings, changes: list[Change]) -> bool:
    """Allows every change."""
    return True


@dataclass(frozen=True, slots=True, eq=False)
class _Changes:
    """N changes between the bottleneck and one other device; positions in the catalogue, ``NONE`` for no piece.

    Attributes:
        device: the other device; [N].
        given: what leaves the bottleneck; [N].
        kept: what it has instead; [N].
        left: what leaves the other device; [N].
        taken: what that has instead; [N].
    """

    device: Integers
    given: Integers
    kept: Integers
    left: Integers
    taken: Integers

    def of(self, chosen: NDArray[np.intp] | Flags) -> "_Changes":
        """Those chosen."""
        return _Changes(*(getattr(self, name)[chosen] for name in self.__slots__))

    def one(self, i: int, bottleneck: int) -> list[Change]:
        """A change as it is made."""
        device, given, kept, left, taken = (int(getattr(self, name)[i]) for name in self.__slots__)
        return [(bottleneck, given, kept), (device, left, taken)]

    @classmethod
    def together(cls, parts: "list[_Changes]") -> "_Changes":
        """All changes of several."""
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in cls.__slots__))


class Refinement:
    """Improves holdings, which it owns, until no change helps."""

    def __init__(self, holdings: Holdings, accepts: Accepts = anything) -> None:
        self.holdings = holdings
        self._catalogue: Catalogue = holdings.catalogue
        self.accepts = accepts
        self._exchanges = Exchanges(self._catalogue)
        self._limits = np.array(self._catalogue.problem.topology.memory_bytes, dtype=np.int64)
        self._slopes: Floats = steepness(self._catalogue, holdings.sums)
        self._price()

    @property
    def cost(self) -> int:
        """Plan cost, ticks."""
        return int(self._cost)

    def descend(self, deadline: Deadline) -> bool:
        """Makes changes while any helps; False where the deadline passed first."""
        while True:
            late, slow = int(self._starts.argmax()), int(self._transfer.argmax())
            for bottleneck in dict.fromkeys((late, slow)):
                if deadline.passed():
                    return False
                if self._improve(bottleneck):
                    break
            else:
                return True

    def copy(self) -> "Refinement":
        """The same, to go on on its own."""
        found = copy(self)
        found.holdings, found._slopes = self.holdings.copy(), self._slopes.copy()
        return found

    def change(self, changes: list[Change]) -> None:
        """Makes changes, for better or worse."""
        self.holdings.change(changes)
        devices = sorted({device for device, _, _ in changes})
        self._slopes[devices] = steepness(self._catalogue, self.holdings.sums[devices])
        self._price()

    def _price(self) -> None:
        held = self.holdings
        cost, starts, transfer = self._exchanges.costs(held.compute[None], held.widths[None])
        self._cost, self._starts, self._transfer = cost[0], starts[0], transfer[0]

    def _improve(self, bottleneck: int) -> bool:
        """Makes the best change found, if any helps."""
        if self.holdings.held[bottleneck] and len(self._limits) > 1:
            found = _Changes.together([self._moves(bottleneck), self._swaps(bottleneck)])
            for changes in self._best(bottleneck, found):
                if self.accepts(self.holdings, changes):
                    self.change(changes)
                    return True
        return False

    def _moves(self, bottleneck: int) -> _Changes:
        """Columns of one unit to another device."""
        catalogue, held = self._catalogue, self.holdings.held
        made: list[tuple[Integers, int, int, int, int]] = []
        for unit, position in held[bottleneck].items():
            elsewhere = {d: there[unit] for d, there in enumerate(held) if unit in there and d != bottleneck}
            legal = self.holdings.legal(unit)
            legal[[bottleneck, *elsewhere]] = False
            apart = np.flatnonzero(legal)
            width = catalogue.keys[position].width
            for amount in catalogue.parts(position):
                kept = catalogue.position(Piece(unit, width - amount)) if amount < width else NONE
                if catalogue.allowed(Piece(unit, amount)):
                    made.append((apart, position, kept, NONE, catalogue.position(Piece(unit, amount))))
                for device, there in elsewhere.items():
                    joined = Piece(unit, catalogue.keys[there].width + amount)
                    if catalogue.allowed(joined):
                        made.append((np.array([device]), position, kept, there, catalogue.position(joined)))
        if not made:
            return _Changes(*np.zeros((5, 0), dtype=np.int64))
        positions = np.repeat([change[1:] for change in made], [len(change[0]) for change in made], axis=0)
        return _Changes(np.concatenate([change[0] for change in made]), *positions.T)

    def _swaps(self, bottleneck: int) -> _Changes:
        """A unit's piece for that of another unit, neither of which the other device has columns of."""
        held = self.holdings.held
        ours = np.array(list(held[bottleneck].values()), dtype=np.int64)
        theirs = np.array(
            [p for d, there in enumerate(held) if d != bottleneck for p in there.values()], dtype=np.int64
        )
        counts = [0 if d == bottleneck else len(there) for d, there in enumerate(held)]
        device = np.repeat(np.arange(len(held)), counts)
        units, here = self._catalogue.units, np.zeros((len(held), len(self._catalogue.rules.units)), dtype=np.bool_)
        for d, there in enumerate(held):
            here[d, list(there)] = True
        legal = np.stack([self.holdings.legal(unit) for unit in held[bottleneck]])[:, device]
        may = legal & ~here[device][:, units[ours]].T
        may &= (self._catalogue.rules.allowed[units[theirs], bottleneck] & ~here[bottleneck, units[theirs]])[None]
        i, j = np.nonzero(may)
        return _Changes(device[j], ours[i], theirs[j], theirs[j], ours[i])

    def _best(self, bottleneck: int, found: _Changes) -> Iterator[list[Change]]:
        """Changes that make the plan better, the best first."""
        memory = np.append(self._catalogue.memory_bytes, 0)
        used, limits = self.holdings.used, self._limits
        fits = used[bottleneck] - memory[found.given] + memory[found.kept] <= limits[bottleneck]
        fits &= used[found.device] - memory[found.left] + memory[found.taken] <= limits[found.device]
        found = found.of(fits)
        found = found.of(np.argsort(self._estimated(bottleneck, found), kind="stable")[:_PRICED])
        if not len(found.device):
            return
        compute = np.tile(self.holdings.compute, (len(found.device), 1))
        widths = np.tile(self.holdings.widths, (len(found.device), 1))
        every = np.arange(len(found.device))
        compute[every, bottleneck], widths[:, bottleneck] = self._after(bottleneck, found.given, found.kept)
        compute[every, found.device], widths[every, found.device] = self._after(found.device, found.left, found.taken)
        late = np.maximum(compute[:, bottleneck], compute[every, found.device])
        first = np.argsort(late, kind="stable")[:_PRICED_WHOLE]
        costs, starts, _ = self._exchanges.costs(compute[first], widths[first])
        ranked = sorted(
            (int(cost), *(-np.sort(-start)).tolist(), i) for cost, start, i in zip(costs, starts, first, strict=True)
        )
        now = (self.cost, *(-np.sort(-self._starts)).tolist())
        for *better, i in ranked:
            if tuple(better) < now:
                yield found.one(i, bottleneck)

    def _estimated(self, bottleneck: int, found: _Changes) -> Floats:
        """The later of both devices' starts after each change, ticks, by the slopes; [N]."""
        embeddings = np.concatenate([self._catalogue.embeddings, np.zeros_like(self._catalogue.embeddings[:1])])
        outputs = np.append(self._catalogue.output_widths, 0)
        rate = (self._starts - self.holdings.compute) / np.maximum(self.holdings.widths, 1)
        worth = embeddings.astype(np.float64) @ self._slopes.T + outputs[:, None] * rate
        here, there = self._starts[bottleneck], self._starts[found.device]
        ours = here + worth[found.kept, bottleneck] - worth[found.given, bottleneck]
        theirs = there + worth[found.taken, found.device] - worth[found.left, found.device]
        estimated: Floats = np.maximum(ours, theirs)
        return np.where(estimated < here, estimated, estimated + here)

    def _after(self, devices: Integers | int, out: Integers, into: Integers) -> tuple[Integers, Integers]:
        """Compute, ticks, and output widths of devices after changes; [N] each."""
        catalogue = self._catalogue
        embeddings = np.concatenate([catalogue.embeddings, np.zeros_like(catalogue.embeddings[:1])]).astype(np.float64)
        outputs = np.append(catalogue.output_widths, 0)
        sums = self.holdings.sums[devices] - embeddings[out] + embeddings[into]
        costs = catalogue.models.compute.head(np.maximum(sums, 0.0).astype(np.float32))
        return ticks(costs).sum(axis=-1), self.holdings.widths[devices] - outputs[out] + outputs[into]
