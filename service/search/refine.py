"""Improves a plan: columns leave the device that holds it back, or are exchanged for those of another device.

Every change takes pieces off the bottleneck (the device that starts its forward exchange last, or whose transfer takes
longest) and gives them to one other device: all columns of a unit there or a part of them (a new cut, a cut elsewhere,
a merge with what the other device has of the table), or one piece for another. What changes come to is estimated for
all of them by the slope of each device's cost, the best are priced exactly, and one is made if the plan gets better:
cheaper, or at equal cost with earlier starts, the latest counting first. So it ends.
"""

from collections.abc import Callable, Iterator, Sequence
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

_SOURCES = 3
"""Devices that columns may leave: this many of the latest, and the one with the longest transfer."""

_DIVIDED = 3
"""Pieces of a device, those with the most memory, parts of which may be exchanged."""

_NORM = 40


Accepts = Callable[[Holdings, list[Change]], bool]
"""Whether holdings may be changed so, besides what the problem says."""


def anything(holdings: Holdings, changes: list[Change]) -> bool:
    """Allows every change."""
    return True


_Worth = Callable[[Integers, Integers, Integers], Sequence[tuple[float, ...]]]
"""How good N plans are, less is better: of costs [N], starts [N, D] and transfers [N, D], in ticks."""


def _exact(costs: Integers, starts: Integers, transfers: Integers) -> Sequence[tuple[float, ...]]:
    """The plan's cost, then the starts, the latest first."""
    return [(int(cost), *(-np.sort(-start)).tolist()) for cost, start in zip(costs, starts, strict=True)]


def _smooth(costs: Integers, starts: Integers, transfers: Integers) -> Sequence[tuple[float, ...]]:
    """Like the plan's cost, with norms in the place of both maxima.

    Where several devices are equally late, a change helps one of them and may lengthen the longest transfer a little:
    it is worth as much as it brings nearer to a plan in which none is late.
    """
    found = np.zeros(len(costs))
    for part in (starts, transfers):
        most = np.maximum(part.max(axis=-1, keepdims=True), 1)
        found += (most * ((part / most) ** _NORM).sum(axis=-1, keepdims=True) ** (1 / _NORM))[:, 0]
    return [(round(cost, 3),) for cost in found.tolist()]


@dataclass(frozen=True, slots=True, eq=False)
class _Changes:
    """N changes between the bottleneck and one other device; positions in the catalogue, ``NONE`` for no piece.

    Attributes:
        device: the other device; [N].
        given: what leaves the bottleneck; [N].
        kept: what it has instead; [N].
        left: what leaves the other device; [N].
        taken: what that has instead; [N].
        rest: what the other device has besides, of the unit that left; [N].
        late: the later of both devices' starts after it, as estimated by the slopes, ticks; [N].
    """

    device: Integers
    given: Integers
    kept: Integers
    left: Integers
    taken: Integers
    rest: Integers
    late: Floats

    def of(self, chosen: NDArray[np.intp] | Flags) -> "_Changes":
        """Those chosen."""
        return _Changes(*(getattr(self, name)[chosen] for name in self.__slots__))

    def one(self, i: int, bottleneck: int) -> list[Change]:
        """A change as it is made."""
        given, kept, left, taken, rest, device = (
            int(found[i]) for found in (self.given, self.kept, self.left, self.taken, self.rest, self.device)
        )
        changes = [(bottleneck, given, kept), (device, left, taken)]
        return changes if rest == NONE else [*changes, (device, NONE, rest)]

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
        """Makes changes while any helps: first those that lower the smooth cost, then those that lower the plan's.

        Returns:
            False where the deadline passed first.
        """
        return self._while_any(_smooth, deadline) and self._while_any(_exact, deadline)

    def _while_any(self, worth: "_Worth", deadline: Deadline) -> bool:
        while True:
            late = [(source, False) for source in np.argsort(-self._starts, kind="stable")[:_SOURCES].tolist()]
            for source, by_width in (*late, (int(self._transfer.argmax()), True)):
                if deadline.passed():
                    return False
                if self._improve(source, by_width, worth):
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

    def _improve(self, bottleneck: int, by_width: bool, worth: "_Worth") -> bool:
        """Makes the best change found between a device and another, if any helps.

        Args:
            bottleneck: what columns leave.
            by_width: whether output columns are to leave it, for a shorter transfer, rather than compute.
            worth: what tells the better plan.
        """
        if self.holdings.held[bottleneck] and len(self._limits) > 1:
            found = _Changes.together([self._moves(bottleneck), self._swaps(bottleneck)])
            for changes in self._best(bottleneck, found, by_width, worth):
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
        rest = np.full(len(row), NONE)
        return _Changes(device, given[row], kept[row], left[row], taken[row], rest, late)

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
        """A unit's piece for all columns, or a part of them, of a unit elsewhere, where neither is in both places."""
        held, rules, units = self.holdings.held, self._catalogue.rules, self._catalogue.units
        ours = np.array(list(held[bottleneck].values()), dtype=np.int64)
        device, theirs, come, rest = self._offered(bottleneck)
        here = np.zeros((len(held), len(rules.units)), dtype=np.bool_)
        for d, there in enumerate(held):
            here[d, list(there)] = True
        unit = units[theirs]
        barred = here[bottleneck, unit] | rules.apart[unit][:, list(held[bottleneck])].any(axis=1)
        may = np.stack([self.holdings.legal(unit) for unit in held[bottleneck]])[:, device]
        may &= ~here[device][:, units[ours]].T & (rules.allowed[unit, bottleneck] & ~barred)
        i, j = np.nonzero(may)
        gained = self._worth(come, bottleneck)[j] - self._worth(ours, bottleneck)[i]
        lost = (
            self._worth(ours)[i, device[j]] - (self._worth_there(theirs, device) - self._worth_there(rest, device))[j]
        )
        late = np.maximum(self._starts[bottleneck] + gained, self._starts[device[j]] + lost)
        return _Changes(device[j], ours[i], come[j], theirs[j], ours[i], rest[j], late)

    def _offered(self, bottleneck: int) -> tuple[Integers, Integers, Integers, Integers]:
        """What others may give: their device, the piece, what of it comes and what of it stays; [N] each.

        All of any piece, and parts of those with the most memory, which make room.
        """
        catalogue, offers = self._catalogue, []
        for device, held in enumerate(self.holdings.held):
            if device == bottleneck or not held:
                continue
            pieces = np.array(list(held.values()), dtype=np.int64)
            offers.append(np.stack([np.full(len(pieces), device), pieces, pieces, np.full(len(pieces), NONE)], axis=1))
            for piece in pieces[np.argsort(-catalogue.memory_bytes[pieces], kind="stable")[:_DIVIDED]].tolist():
                splits = catalogue.splits(piece)
                offers.append(np.concatenate([np.tile([device, piece], (len(splits), 1)), splits], axis=1))
        device, piece, come, rest = np.concatenate([np.zeros((0, 4), dtype=np.int64), *offers]).T
        return device, piece, come, rest

    def _worth(self, positions: Integers, device: int | None = None) -> Floats:
        """What pieces add to a device's start, by the slopes, ticks; [N], or [N, D] for all devices."""
        which = slice(None) if device is None else slice(device, device + 1)
        none = positions == NONE
        embeddings, outputs = self._catalogue.embeddings[positions], self._catalogue.output_widths[positions]
        worth: Floats = embeddings.astype(np.float64) @ self._slopes[which].T + outputs[:, None] * self._rates[which]
        worth[none] = 0.0
        return worth if device is None else worth[:, 0]

    def _worth_there(self, positions: Integers, devices: Integers) -> Floats:
        """What each piece adds to the start of its device, by the slopes, ticks; [N] and [N] -> [N]."""
        worth: Floats = (self._catalogue.embeddings[positions] * self._slopes[devices]).sum(axis=1)
        worth = worth + self._catalogue.output_widths[positions] * self._rates[devices]
        return np.where(positions == NONE, 0.0, worth)

    def _best(self, bottleneck: int, found: _Changes, by_width: bool, worth: "_Worth") -> Iterator[list[Change]]:
        """Changes that make the plan better, the best first."""
        memory = np.append(self._catalogue.memory_bytes, 0)
        used, limits = self.holdings.used, self._limits
        fits = used[bottleneck] - memory[found.given] + memory[found.kept] <= limits[bottleneck]
        grown = memory[found.taken] + memory[found.rest] - memory[found.left]
        fits &= used[found.device] + grown <= limits[found.device]
        found = found.of(fits)
        order = self._later_width(bottleneck, found) if by_width else found.late
        found = found.of(np.argsort(order, kind="stable")[:_PRICED])
        if not len(found.device):
            return
        compute = np.tile(self.holdings.compute, (len(found.device), 1))
        widths = np.tile(self.holdings.widths, (len(found.device), 1))
        every = np.arange(len(found.device))
        compute[every, bottleneck], widths[:, bottleneck] = self._after(bottleneck, [found.given], [found.kept])
        theirs = self._after(found.device, [found.left], [found.taken, found.rest])
        compute[every, found.device], widths[every, found.device] = theirs
        late = np.maximum(compute[:, bottleneck], compute[every, found.device])
        first = every[:_PRICED_WHOLE] if by_width else np.argsort(late, kind="stable")[:_PRICED_WHOLE]
        after = worth(*self._exchanges.costs(compute[first], widths[first]))
        (now,) = worth(np.array([self._cost]), self._starts[None], self._transfer[None])
        for better, i in sorted(zip(after, first.tolist(), strict=True)):
            if better < now:
                yield found.one(i, bottleneck)

    def _later_width(self, bottleneck: int, found: _Changes) -> Floats:
        """The wider of both devices after each change, far wider where one would be the latest; [N]."""
        outputs = np.append(self._catalogue.output_widths, 0)
        ours = self.holdings.widths[bottleneck] + outputs[found.kept] - outputs[found.given]
        theirs = self.holdings.widths[found.device] + outputs[found.taken] + outputs[found.rest] - outputs[found.left]
        too_late = found.late > self._starts.max()
        wider: Floats = np.maximum(ours, theirs) + np.where(too_late, float(self.holdings.widths.sum()), 0.0)
        return wider

    def _after(
        self, devices: Integers | int, out: Sequence[Integers], into: Sequence[Integers]
    ) -> tuple[Integers, Integers]:
        """Compute, ticks, and output widths of devices after pieces [N] left and came; [N] each."""
        catalogue = self._catalogue
        sums, widths = self.holdings.sums[devices], self.holdings.widths[devices]
        for positions, sign in (*((gone, -1) for gone in out), *((come, 1) for come in into)):
            there = sign * (positions != NONE)
            sums = sums + there[:, None] * catalogue.embeddings[positions].astype(np.float64)
            widths = widths + there * catalogue.output_widths[positions]
        costs = catalogue.models.compute.head(np.maximum(sums, 0.0).astype(np.float32))
        return ticks(costs).sum(axis=-1), widths
