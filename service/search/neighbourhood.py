"""The changes that could improve a plan: what may leave one device for another, and what that is estimated to bring."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.domain.ports import Floats
from service.search.catalogue import Integers, Piece
from service.search.holdings import NONE, Change, Holdings
from service.search.rules import Flags

_MOST_PAIRS = 1_000_000
"""Pairs of pieces that are looked at for an exchange; more would take too much time and memory."""

_DIVIDED = 3
"""Pieces of a device, those with the most memory, parts of which may be exchanged."""


@dataclass(frozen=True, slots=True, eq=False)
class Changes:
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

    def of(self, chosen: NDArray[np.intp] | Flags) -> "Changes":
        """Those chosen."""
        return Changes(*(getattr(self, name)[chosen] for name in self.__slots__))

    def one(self, i: int, bottleneck: int) -> list[Change]:
        """A change as it is made."""
        given, kept, left, taken, rest, device = (
            int(found[i]) for found in (self.given, self.kept, self.left, self.taken, self.rest, self.device)
        )
        changes = [(bottleneck, given, kept), (device, left, taken)]
        return changes if rest == NONE else [*changes, (device, NONE, rest)]

    @classmethod
    def together(cls, parts: "list[Changes]") -> "Changes":
        """All changes of several."""
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in cls.__slots__))


@dataclass(frozen=True, slots=True, eq=False)
class Neighbourhood:
    """Changes of one plan, and their estimates.

    Attributes:
        holdings: the plan.
        starts: of the forward exchange on each device, ticks; [D].
        slopes: of each device's compute in each coordinate of its sum, ticks; [D, H].
        rates: of each device's backward exchange in its output columns, ticks a column; [D].
    """

    holdings: Holdings
    starts: Integers
    slopes: Floats
    rates: Floats

    def changes(self, bottleneck: int) -> Changes:
        """All changes between a device, which holds something, and another."""
        return Changes.together([self._moves(bottleneck), self._swaps(bottleneck)])

    def _moves(self, bottleneck: int) -> Changes:
        """Columns of one unit to another device."""
        made = self._listed(bottleneck)
        devices = [devices for devices, _ in made]
        row = np.repeat(np.arange(len(made)), [len(each) for each in devices])
        given, kept, left, taken = np.array([change for _, change in made], dtype=np.int64).reshape(-1, 4).T
        device = np.concatenate([np.zeros(0, dtype=np.int64), *devices])
        here = self.starts[bottleneck] + self._worth(kept, bottleneck) - self._worth(given, bottleneck)
        worth = self._worth(taken)[row, device] - self._worth(left)[row, device]
        late = np.rint(np.maximum(here[row], self.starts[device] + worth))
        rest = np.full(len(row), NONE)
        return Changes(device, given[row], kept[row], left[row], taken[row], rest, late)

    def _listed(self, bottleneck: int) -> list[tuple[Integers, tuple[int, int, int, int]]]:
        """What may leave the bottleneck: the devices that may take it, and what is given, kept, left and taken."""
        catalogue, held = self.holdings.catalogue, self.holdings.held
        asked: list[tuple[Integers, int, Piece | None, int, Piece]] = []
        for unit, position in held[bottleneck].items():
            elsewhere = {d: there[unit] for d, there in enumerate(held) if unit in there and d != bottleneck}
            legal = self.holdings.legal(unit)
            legal[[bottleneck, *elsewhere]] = False
            apart, width = np.flatnonzero(legal), catalogue.keys[position].width
            if not len(apart) and not elsewhere:
                continue
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

    def _swaps(self, bottleneck: int) -> Changes:
        """A unit's piece for all columns, or a part of them, of a unit elsewhere, where neither is in both places."""
        held, rules, units = self.holdings.held, self.holdings.catalogue.rules, self.holdings.catalogue.units
        ours = np.array(list(held[bottleneck].values()), dtype=np.int64)
        device, theirs, come, rest = self._offered(bottleneck)
        # Those that weigh most, where there are more pairs than are worth looking at.
        ours = ours[np.argsort(-np.rint(self._worth(ours, bottleneck)), kind="stable")]
        ours = ours[: max(_MOST_PAIRS // max(len(device), 1), 1)]
        here = np.zeros((len(held), len(rules.units)), dtype=np.bool_)
        for d, there in enumerate(held):
            here[d, list(there)] = True
        unit = units[theirs]
        barred = here[bottleneck, unit] | rules.apart[unit][:, list(held[bottleneck])].any(axis=1)
        may = np.stack([self.holdings.legal(unit) for unit in units[ours].tolist()])[:, device]
        may &= ~here[device][:, units[ours]].T & (rules.allowed[unit, bottleneck] & ~barred)
        i, j = np.nonzero(may)
        gained = self._worth(come, bottleneck)[j] - self._worth(ours, bottleneck)[i]
        lost = (
            self._worth(ours)[i, device[j]] - (self._worth_there(theirs, device) - self._worth_there(rest, device))[j]
        )
        late = np.rint(np.maximum(self.starts[bottleneck] + gained, self.starts[device[j]] + lost))
        return Changes(device[j], ours[i], come[j], theirs[j], ours[i], rest[j], late)

    def _offered(self, bottleneck: int) -> tuple[Integers, Integers, Integers, Integers]:
        """What others may give: their device, the piece, what of it comes and what of it stays; [N] each.

        All of any piece, and parts of those with the most memory, which make room.
        """
        catalogue, offers, divided = self.holdings.catalogue, [], []
        for device, held in enumerate(self.holdings.held):
            if device == bottleneck or not held:
                continue
            pieces = np.array(list(held.values()), dtype=np.int64)
            offers.append(np.stack([np.full(len(pieces), device), pieces, pieces, np.full(len(pieces), NONE)], axis=1))
            largest = pieces[np.argsort(-catalogue.memory_bytes[pieces], kind="stable")[:_DIVIDED]]
            divided += [(device, piece) for piece in largest.tolist()]
        splits = catalogue.splits([piece for _, piece in divided])
        for (device, piece), parts in zip(divided, splits, strict=True):
            offers.append(np.concatenate([np.tile([device, piece], (len(parts), 1)), parts], axis=1))
        device, piece, come, rest = np.concatenate([np.zeros((0, 4), dtype=np.int64), *offers]).T
        return device, piece, come, rest

    def _worth(self, positions: Integers, device: int | None = None) -> Floats:
        """What pieces add to a device's start, by the slopes, ticks; [N], or [N, D] for all devices."""
        which = slice(None) if device is None else slice(device, device + 1)
        none = positions == NONE
        embeddings, outputs = (
            self.holdings.catalogue.embeddings[positions],
            self.holdings.catalogue.output_widths[positions],
        )
        worth: Floats = embeddings.astype(np.float64) @ self.slopes[which].T + outputs[:, None] * self.rates[which]
        worth[none] = 0.0
        return worth if device is None else worth[:, 0]

    def _worth_there(self, positions: Integers, devices: Integers) -> Floats:
        """What each piece adds to the start of its device, by the slopes, ticks; [N] and [N] -> [N]."""
        worth: Floats = (self.holdings.catalogue.embeddings[positions] * self.slopes[devices]).sum(axis=1)
        worth = worth + self.holdings.catalogue.output_widths[positions] * self.rates[devices]
        return np.where(positions == NONE, 0.0, worth)
