"""Improves a plan: columns leave a device that holds it back, or are exchanged for those of another device.

Every change takes pieces off a device that starts its forward exchange late, or whose transfer takes longest, and gives
them to one other device: all columns of a unit there or a part of them (a new cut, a cut elsewhere, a merge with what
the other device has of the table), or one piece for another or a part of one. What changes come to is estimated for
all of them by the slope of each device's cost, the best are priced exactly, and one is made if that lowers what the
plan can be expected to cost, and keeps it below what it should not cost more than.
"""

from collections.abc import Callable, Iterator, Sequence
from copy import copy

import numpy as np

from service.domain.deadline import Deadline
from service.domain.ports import Floats
from service.search.catalogue import Catalogue, Integers, ticks
from service.search.holdings import NONE, Change, Exchanges, Holdings, steepness
from service.search.neighbourhood import Changes, Neighbourhood

_PRICED = 64
"""Changes whose devices are priced exactly, of those with the best estimates."""

_PRICED_WHOLE = 8
"""Changes of these that are priced with the exchanges of all devices."""

_SOURCES = 3
"""Devices that columns may leave: this many of the latest, and the one with the longest transfer."""

_NORM = 40

_ABOVE_LIMIT = 10.0
"""Ticks that one tick of predicted cost above a plan's limit counts for."""

NO_LIMIT = 1 << 62

Accepts = Callable[[Holdings, list[Change]], bool]
"""Whether holdings may be changed so, besides what the problem says."""


def anything(holdings: Holdings, changes: list[Change]) -> bool:
    """Allows every change."""
    return True


def expected_costs(starts: Integers, transfers: Integers) -> Floats:
    """What plans can be expected to cost, given that predictions err: norms in the place of both maxima, ticks.

    Each device's cost is off by some percent of its own, so that a plan on which all devices are equally late costs
    more in the end than one on which a single device is, at the same prediction. A norm of 40 adds 3.5% for 4 equal
    devices and 5.3% for 8, as the largest of independent normal errors of 3.5% does on average. And it lets devices
    that are equally late be mended one by one.

    Args:
        starts: of the forward exchange; [N, D], ticks.
        transfers: [N, D], ticks.

    Returns:
        [N].
    """
    found = np.zeros(len(starts))
    for part in (starts, transfers):
        most = np.maximum(part.max(axis=-1, keepdims=True), 1)
        found += (most * ((part / most) ** _NORM).sum(axis=-1, keepdims=True) ** (1 / _NORM))[:, 0]
    return np.rint(found)


class Refinement:
    """Improves holdings, which it owns, until no change helps."""

    def __init__(self, holdings: Holdings, accepts: Accepts = anything, limit: int = NO_LIMIT) -> None:
        """Takes the plan.

        Args:
            holdings: the plan.
            accepts: which changes are allowed besides what the problem says.
            limit: predicted cost, ticks, that the plan should not be above.
        """
        self.holdings = holdings
        self.limit = limit
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

    @property
    def worth(self) -> float:
        """What the plan can be expected to cost, ticks, and ten times what it is above its limit; less is better."""
        return float(self._worths(np.array([self._cost]), self._starts[None], self._transfer[None])[0])

    def _worths(self, costs: Integers, starts: Integers, transfers: Integers) -> Floats:
        above = np.maximum(costs - self.limit, 0)
        return expected_costs(starts, transfers) + _ABOVE_LIMIT * above

    def descend(self, deadline: Deadline) -> bool:
        """Makes changes while any helps; False where the deadline passed first."""
        while True:
            late = [(source, False) for source in np.argsort(-self._starts, kind="stable")[:_SOURCES].tolist()]
            for source, by_width in (*late, (int(self._transfer.argmax()), True)):
                if deadline.passed():
                    return False
                if self._improve(source, by_width):
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

    def _improve(self, bottleneck: int, by_width: bool) -> bool:
        """Makes the best change found between a device and another, if any helps.

        Args:
            bottleneck: what columns leave.
            by_width: whether output columns are to leave it, for a shorter transfer, rather than compute.
        """
        if self.holdings.held[bottleneck] and len(self._limits) > 1:
            found = Neighbourhood(self.holdings, self._starts, self._slopes, self._rates).changes(bottleneck)
            for changes in self._best(bottleneck, found, by_width):
                if self.accepts(self.holdings, changes):
                    return self._helped(changes)
        return False

    def _helped(self, changes: list[Change]) -> bool:
        """Makes changes, and takes them back where what they were priced at was a rounding."""
        before = self.worth
        self.change(changes)
        if self.worth < before:
            return True
        self.change([(device, after, given) for device, given, after in reversed(changes)])
        return False

    def _best(self, bottleneck: int, found: Changes, by_width: bool) -> Iterator[list[Change]]:
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
        worths = self._worths(*self._exchanges.costs(compute[first], widths[first]))
        for i in np.argsort(worths, kind="stable"):
            if worths[i] < self.worth:
                yield found.one(int(first[i]), bottleneck)

    def _later_width(self, bottleneck: int, found: Changes) -> Floats:
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
