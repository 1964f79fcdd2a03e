"""A lower bound on the cost of every plan of a problem; why it holds is in docs/decisions/0014."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from service.domain.plan import Problem
from service.domain.ports import CostModels, Integers, LeastCosts
from service.domain.tables import DIM_MULTIPLE, Table
from service.search.cuts import can_be_cut
from service.search.rules import Rules
from service.search.workspace import TICKS_PER_MS

_WIDTHS = 32
"""Widths of a table that are told apart; all there are of one of up to 128 columns."""

_PINNED_SETS = 16
"""Sets of devices that tables are pinned to and that are looked at, those of the most tables a device first."""

_ROUNDED_TICKS = 4
"""What rounding the parts of a cost may take from a plan's."""

_CLOSE = 1 + 1e-3
"""The search for the bound ends where this much more is not refuted."""


def lower_bound_ms(problem: Problem, models: CostModels) -> float:
    """Milliseconds that no plan's predicted cost is below."""
    bound = _Bound.of(problem, models)
    # There may be no plan at all.
    least = 0.0 if bound.refutes(math.inf) else _most_refuted(bound.refutes, bound.least_ms(bound.fits))
    return max(0.0, math.floor(least * TICKS_PER_MS) - _ROUNDED_TICKS) / TICKS_PER_MS


@dataclass(frozen=True, slots=True, eq=False)
class _Bound:
    """What is known of T tables whose columns may go to D devices.

    Attributes:
        rules: where the tables may go.
        costs: what devices compute at least.
        exchange: milliseconds that exchanges add at least.
        widths: widths that are told apart; [T, G].
        fits: position of the widest that a device has memory for and may take of a table; [T].
        hosts: how many devices may take a table's columns, 1 where all of them must be on one; [T].
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
        """Whether no plan costs at most this.

        No device of one holds more columns of a table than that takes alone; the tables' columns may be too many for
        that, or cost more where they are cut so finely.
        """
        widest = np.minimum(self.fits, (self.costs.alone + self.exchange <= cost_ms).sum(axis=1) - 1)
        if (widest < 0).any() or (self.hosts == 0).any():
            return True
        columns = self.widths[np.arange(len(widest)), widest]
        return bool((columns * self.hosts < self.widths[:, -1]).any()) or self._shared_ms(widest) > cost_ms

    def least_ms(self, widest: Integers) -> float:
        """Milliseconds that a plan costs at least whose devices hold no more columns than this of any table; [T]."""
        return max(self._whole_ms(), self._shared_ms(widest))

    def _whole_ms(self) -> float:
        """A unit that may not be cut is on a device; of more units than devices, two are."""
        whole = [tables for tables in self.rules.units if (self.hosts[list(tables)] == 1).all()]
        if not whole:
            return 0.0
        alone, devices = self.costs.together(whole), self._device_count
        order = np.argsort(-alone, kind="stable")[: devices + 1]
        if len(order) <= devices:
            return self.exchange + float(alone.max())
        pairs = [whole[i] + whole[j] for n, i in enumerate(order) for j in order[:n]]
        return self.exchange + float(max(alone.max(), self.costs.together(pairs).min()))

    def _shared_ms(self, widest: Integers) -> float:
        """All tables are shared by all devices, and those pinned to some devices by these."""
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
    """Position of the first width that is as wide as whatever fits a device of this memory; -1 where nothing does."""
    if problem.memory_of(table).total <= limit:
        return len(widths) - 1
    fitting = [problem.memory_of(table.sliced(int(width))).total <= limit for width in widths]
    return min(sum(fitting), len(widths) - 1)


def _most_refuted(refutes: Callable[[float], bool], least: float) -> float:
    """The most that is refuted and not below what is known to be no plan's; as far as ``_CLOSE``."""
    step = _CLOSE
    while refutes(least * step):
        least, step = least * step, step**2
    low, high = least, least * step
    while high > low * _CLOSE:
        middle = math.sqrt(low * high)
        if refutes(middle):
            low = middle
        else:
            high = middle
    return low
