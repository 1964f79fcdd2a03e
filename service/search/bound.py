"""A lower bound on the cost of every plan of a problem; why it holds is in docs/decisions/0014."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from service.domain.deadline import NEVER, Deadline
from service.domain.plan import Problem
from service.domain.ports import CostModels, Integers, LeastCosts
from service.domain.tables import DIM_MULTIPLE, Table
from service.search.catalogue import TICKS_PER_MS
from service.search.cuts import can_be_cut
from service.search.rules import Rules

_WIDTHS = 16
"""Widths of a table that are told apart; all there are of one of up to 64 columns."""

_PINNED_SETS = 16
"""Sets of devices that tables are pinned to and that are looked at, those of the most tables a device first."""

_PAIRED_DEVICES = 128
"""Devices up to which pairs of units that may not be cut are looked at: they grow by the square."""

_ROUNDED_TICKS = 4
"""What rounding the parts of a cost may take from a plan's."""

_CLOSE = 1 + 1e-3
"""The search for the bound ends where this much more is not refuted."""


def lower_bound_ms(problem: Problem, models: CostModels, deadline: Deadline = NEVER) -> float:
    """Milliseconds that no plan's predicted cost is below; less where the deadline ends the search for the most."""
    bound = _Bound.of(problem, models)
    least = max(bound.whole_ms(), bound.shared_ms(bound.fits))
    # Where there is no plan, any bound would do; where nothing costs anything, none is needed.
    found = _most_refuted(bound.refutes, least, deadline) if 0.0 < least < math.inf else 0.0
    return max(0.0, math.floor(found * TICKS_PER_MS) - _ROUNDED_TICKS) / TICKS_PER_MS


@dataclass(frozen=True, slots=True, eq=False)
class _Bound:
    """What is known of T tables whose columns may go to D devices.

    Attributes:
        rules: where the tables may go.
        costs: what devices compute at least.
        exchange: milliseconds that exchanges add at least.
        widths: widths that are told apart; [T, G].
        fits: position of the widest that a device has memory for and may take of a table; [T].
        hosts: how many devices a table's columns may be on at once: 1 where it may not be cut; [T].
    """

    rules: Rules
    costs: LeastCosts
    exchange: float
    widths: Integers
    fits: Integers
    hosts: Integers

    @classmethod
    def of(cls, problem: Problem, models: CostModels) -> "_Bound":
        """Asks the models for what a problem's tables cost at least."""
        tables, rules, devices = problem.tables, Rules.of(problem), problem.topology.device_count
        dims = np.array([table.embedding_dim for table in tables], dtype=np.int64)[:, None]
        steps = np.arange(1, _WIDTHS + 1)
        widths = np.minimum(-(-dims * steps // (_WIDTHS * DIM_MULTIPLE)) * DIM_MULTIPLE, dims)
        limits = np.array(problem.topology.memory_bytes, dtype=np.int64)
        hosts, fits = [], []
        for i, table in enumerate(tables):
            allowed = rules.allowed[rules.unit_of[i]]
            alone = len(rules.units[rules.unit_of[i]]) == 1
            may_be_cut = alone and can_be_cut(problem.constraints, table.embedding_dim)
            hosts.append(int(allowed.sum()) if may_be_cut else min(1, int(allowed.sum())))
            fits.append(_widest(problem, table, widths[i], int(limits[allowed].max(initial=0))))
        costs = models.compute.least_costs(tables, widths, problem.global_batch_size, problem.optimizer)
        columns = sum(table.output_width for table in tables)
        batch_size = problem.global_batch_size
        exchange = models.communication.least_exchange(columns, devices, batch_size) if devices > 1 else 0.0
        return cls(rules, costs, exchange, widths, np.array(fits), np.array(hosts))

    def refutes(self, cost_ms: float) -> bool:
        """Whether no plan costs at most this: no device of one holds more columns of a table than that takes alone."""
        affordable = (self.costs.alone + self.exchange <= cost_ms).sum(axis=1) - 1
        return self.shared_ms(np.minimum(self.fits, affordable)) > cost_ms

    def whole_ms(self) -> float:
        """What a plan costs at least: a unit that may not be cut is on a device; of D + 1 units, two are on one."""
        whole = [tables for tables in self.rules.units if (self.hosts[list(tables)] == 1).all()]
        if not whole:
            return 0.0
        alone, devices = self.costs.together(whole), self._device_count
        order = np.argsort(-alone, kind="stable")[: devices + 1]
        if not devices < len(order) <= _PAIRED_DEVICES + 1:
            return self.exchange + float(alone.max())
        pairs = [whole[i] + whole[j] for n, i in enumerate(order) for j in order[:n]]
        return self.exchange + float(max(alone.max(), self.costs.together(pairs).min()))

    def shared_ms(self, widest: Integers) -> float:
        """What a plan costs at least whose devices hold no more columns than this of a table; infinite without a plan.

        All tables are shared by all devices, and those pinned to some devices by these.

        Args:
            widest: positions of widths, -1 for no columns at all; [T].
        """
        columns = np.where(widest < 0, 0, self.widths[np.arange(len(widest)), widest])
        if (columns * self.hosts < self.widths[:, -1]).any():
            return math.inf
        everywhere = (np.arange(len(widest)), self._device_count)
        return self.exchange + max(self._dearest(*each, widest) for each in (everywhere, *self._pinned()))

    def _dearest(self, tables: Integers, devices: int, widest: Integers) -> float:
        if devices == 1:
            return float(self.costs.together([tuple(tables)])[0])
        return self.costs.shared(tables, widest[tables], devices)

    def _pinned(self) -> Iterator[tuple[Integers, int]]:
        """Tables that may go nowhere but to some of the devices, and how many these are."""
        allowed = self.rules.allowed[list(self.rules.unit_of)]
        sets, tables = np.unique(allowed[~allowed.all(axis=1)], axis=0, return_counts=True)
        for devices in sets[np.argsort(-tables / sets.sum(axis=1), kind="stable")][:_PINNED_SETS]:
            yield np.flatnonzero(~(allowed & ~devices).any(axis=1)), int(devices.sum())

    @property
    def _device_count(self) -> int:
        return int(self.rules.allowed.shape[1])


def _widest(problem: Problem, table: Table, widths: Integers, limit: int) -> int:
    """Position of the first width that is at least as wide as whatever fits a device of this memory."""
    if problem.memory_of(table).total <= limit:
        return len(widths) - 1
    fitting = [problem.memory_of(table.sliced(int(width))).total <= limit for width in widths]
    return min(sum(fitting), len(widths) - 1)


def _most_refuted(refutes: Callable[[float], bool], least: float, deadline: Deadline) -> float:
    """The most that is refuted and not below what is known to be no plan's; as far as ``_CLOSE``."""
    step = _CLOSE
    while not deadline.passed() and refutes(least * step):
        least, step = least * step, step**2
    low, high = least, least * step
    while high > low * _CLOSE and not deadline.passed():
        middle = math.sqrt(low * high)
        if refutes(middle):
            low = middle
        else:
            high = middle
    return low
