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
        late: the later of both devices' starts after it, as estimated by the slopes, ticks; [N].
    """

    device: Integers
    given: Integers
    kept: Integers
    left: Integers
    taken: Integers
    late: Floats

    def of(self, chosen: NDArray[np.intp] | Flags) -> "_Changes":
        """Those chosen."""
        return _Changes(*(getattr(self, name)[chosen] for name in self.__slots__))

    def one(self, i: int, bottleneck: int) -> list[Change]:
        """A change as it is made."""
        given, kept, left, taken = (int(found[i]) for found in (self.given, self.kept, self.left, self.taken))
        return [(bottleneck, given, kept), (int(self.device[i]), left, taken)]

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
        self._rates = (self._starts - held.compute) / np.maximum(held.widths, 1)

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
        made = self._listed(bottleneck)
        devices = [devices for devices, _ in made]
        row = np.repeat(np.arange(len(made)), [len(each) for each in devices])
        given, kept, left, taken = np.array([change for _, change in made], dtype=np.int64).reshape(-1, 4).T
        device = np.concatenate([np.zeros(0, dtype=np.int64), *devices])
        here = self._starts[bottleneck] + self._worth(kept, bottleneck) - self._worth(given, bottleneck)
        worth = self._worth(taken)[row, device] - self._worth(left)[row, device]
        late = np.maximum(here[row], self._starts[device] + worth)
        return _Changes(device, given[row], kept[row], left[row], taken[row], late)

    def _listed(self, bottleneck: int) -> list[tuple[Integers, tuple[int, int, int, int]]]:
        """What may leave the bottleneck: the devices that may take it, and what is given, kept, left and taken."""
        catalogue, held = self._catalogue, self.holdings.held
        asked: list[tuple[Integers, int, Piece | None, int, Piece]] = []
        for unit, position in held[bottleneck].items():
            elsewhere = {d: there[unit] for d, there in enumerate(held) if unit in there and d != bottleneck}
            legal = self.holdings.legal(unit)
            legal[[bottleneck, *elsewhere]] = False
            apart, width = np.flatnonzero(legal), catalogue.keys[position].width
            for amount in catalogue.parts(position):
                kept = Piece(unit, width - amount) if amount < width else None
                asked.append((apart, position, kept, NONE, Piece(unit, amount)))
                for device, there in elsewhere.items():
                    joined = Piece(unit, catalogue.keys[there].width + amount)
                    asked.append((np.array([device]), position, kept, there, joined))
        asked = [change for change in asked if catalogue.allowed(change[-1])]
        taken = catalogue.positions([change[-1] for change in asked]).tolist()
        catalogue.positions([kept for _, _, kept, _, _ in asked if kept])
        return [
            (devices, (given, catalogue.position(kept) if kept else NONE, left, into))
            for (devices, given, kept, left, _), into in zip(asked, taken, strict=True)
        ]

    def _swaps(self, bottleneck: int) -> _Changes:
        """A unit's piece for that of another unit, neither of which the other device has columns of."""
        held, rules, units = self.holdings.held, self._catalogue.rules, self._catalogue.units
        ours = np.array(list(held[bottleneck].values()), dtype=np.int64)
        others = [d for d in range(len(held)) if d != bottleneck]
        theirs = np.array([position for d in others for position in held[d].values()], dtype=np.int64)
        device = np.repeat(others, [len(held[d]) for d in others]).astype(np.int64)
        here = np.zeros((len(held), len(rules.units)), dtype=np.bool_)
        for d, there in enumerate(held):
            here[d, list(there)] = True
        come = units[theirs]
        barred = here[bottleneck, come] | rules.apart[come][:, list(held[bottleneck])].any(axis=1)
        may = np.stack([self.holdings.legal(unit) for unit in held[bottleneck]])[:, device]
        may &= ~here[device][:, units[ours]].T & (rules.allowed[come, bottleneck] & ~barred)
        i, j = np.nonzero(may)
        gained = self._worth(theirs, bottleneck)[j] - self._worth(ours, bottleneck)[i]
        own = (self._catalogue.embeddings[theirs] * self._slopes[device]).sum(axis=1)
        own += self._catalogue.output_widths[theirs] * self._rates[device]
        lost = self._worth(ours)[i, device[j]] - own[j]
        late = np.maximum(self._starts[bottleneck] + gained, self._starts[device[j]] + lost)
        return _Changes(device[j], ours[i], theirs[j], theirs[j], ours[i], late)

    def _worth(self, positions: Integers, device: int | None = None) -> Floats:
        """What pieces add to a device's start, by the slopes, ticks; [N], or [N, D] for all devices."""
        which = slice(None) if device is None else slice(device, device + 1)
        none = positions == NONE
        embeddings, outputs = self._catalogue.embeddings[positions], self._catalogue.output_widths[positions]
        worth: Floats = embeddings.astype(np.float64) @ self._slopes[which].T + outputs[:, None] * self._rates[which]
        worth[none] = 0.0
        return worth if device is None else worth[:, 0]

    def _best(self, bottleneck: int, found: _Changes) -> Iterator[list[Change]]:
        """Changes that make the plan better, the best first."""
        memory = np.append(self._catalogue.memory_bytes, 0)
        used, limits = self.holdings.used, self._limits
        fits = used[bottleneck] - memory[found.given] + memory[found.kept] <= limits[bottleneck]
        fits &= used[found.device] - memory[found.left] + memory[found.taken] <= limits[found.device]
        found = found.of(fits)
        found = found.of(np.argsort(found.late, kind="stable")[:_PRICED])
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

    def _after(self, devices: Integers | int, out: Integers, into: Integers) -> tuple[Integers, Integers]:
        """Compute, ticks, and output widths of devices after changes; [N] each."""
        catalogue = self._catalogue
        sums, widths = self.holdings.sums[devices], self.holdings.widths[devices]
        for positions, sign in ((out, -1), (into, 1)):
            there = sign * (positions != NONE)
            sums = sums + there[:, None] * catalogue.embeddings[positions].astype(np.float64)
            widths = widths + there * catalogue.output_widths[positions]
        costs = catalogue.models.compute.head(np.maximum(sums, 0.0).astype(np.float32))
        return ticks(costs).sum(axis=-1), widths
