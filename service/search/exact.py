"""Memory feasibility as an integer program: columns of each table on each device that fit, or a proof of none."""

import importlib
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from service.domain.deadline import Deadline
from service.domain.plan import Problem, ShardingType
from service.search.cuts import can_be_cut, fewest_slices, line_of_bytes, needed_slices, together_bytes
from service.search.rules import Rules

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

MOST_PAIRS = 20_000
"""Pairs of a unit and a device that may take it, above which no program is written: that alone would take seconds."""

DEFAULT_WORK = 4.0
"""Deterministic seconds of the solver; a core takes three to four times as many of the clock."""

_SECONDS_TO_LOAD = 0.5  # The solver's library, once in a process.
_SECONDS_A_PAIR = 3e-5  # A program's writing.
_SHARE = 0.9  # Of the time left: the solver looks at the clock now and then only.
_LARGEST_SUM = 2**62
_SOLVER = "ortools.sat.python.cp_model"

Columns = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What became of the search for columns.

    Attributes:
        columns: columns of each table on each device, [T, D]; None where none were found.
        proven: whether the outcome is certain: columns that fit, or that none do.
        cut_short: whether it is uncertain because of the deadline.
    """

    columns: Columns | None
    proven: bool
    cut_short: bool = False


_NONE_FITS = Outcome(None, proven=True)
_UNKNOWN = Outcome(None, proven=False)
_NO_TIME = Outcome(None, proven=False, cut_short=True)


def load_solver() -> None:
    """Loads the solver's library, which takes a process half a second the first time."""
    importlib.import_module(_SOLVER)


def columns_that_fit(problem: Problem, rules: Rules, deadline: Deadline, work: float = DEFAULT_WORK) -> Outcome:
    """Columns of every table on every device that fit in memory and keep all rules, by OR-Tools' CP-SAT.

    Whole columns of tables are integers: on a device, a table has shards of ``min_shard_dim`` to ``max_shard_dim``
    columns in multiples of ``column_multiple``, and needs bytes in proportion to its columns and to its shards
    (service/domain/memory.py). All amounts are exact. One thread and a fixed seed: the outcome is the same each time
    unless the deadline ends the solver.

    Args:
        problem: what is planned.
        rules: what its constraints come to.
        deadline: neither columns nor a proof where it passes first, or where too little time is left to begin.
        work: the most that the solver may work, in its deterministic seconds.
    """
    if rules.allowed.sum() > MOST_PAIRS:
        return _UNKNOWN
    loading = 0.0 if _SOLVER in sys.modules else _SECONDS_TO_LOAD
    if deadline.at - deadline.clock() < loading + _SECONDS_A_PAIR * float(rules.allowed.sum()):
        return _NO_TIME
    if not all(fewest_slices(problem.constraints, table.embedding_dim) for table in problem.tables):
        return _NONE_FITS
    return _Program(problem, rules).solved(deadline, work)


class _Program:
    """The integer program; ``held`` are its terms of memory by device: variables, bytes of one, largest values."""

    def __init__(self, problem: Problem, rules: Rules) -> None:
        from ortools.sat.python import cp_model

        self._problem, self._rules = problem, rules
        self._constraints = problem.constraints
        self._limits = problem.topology.memory_bytes
        self._multiple = self._constraints.column_multiple
        self._model = cp_model.CpModel()
        self._columns: dict[tuple[int, int], tuple[cp_model.IntVar, int]] = {}
        self._present: dict[tuple[int, int], cp_model.IntVar] = {}
        self._held: list[list[tuple[cp_model.IntVar, int, int]]] = [[] for _ in self._limits]

    def solved(self, deadline: Deadline, work: float) -> Outcome:
        """What the solver says of the whole program."""
        from ortools.sat.python import cp_model

        if not all(self._add_unit(unit) for unit in range(len(self._rules.units))):
            return _NONE_FITS
        for clique in self._rules.cliques:
            for device in range(len(self._limits)):
                self._model.add_at_most_one(self._present_units(clique, device))
        if not all(self._add_limit(device) for device in range(len(self._limits))):
            return _UNKNOWN
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = 0
        solver.parameters.max_deterministic_time = work
        seconds = deadline.at - deadline.clock()
        if seconds <= 0.0:
            return _NO_TIME
        if math.isfinite(seconds):
            solver.parameters.max_time_in_seconds = _SHARE * seconds
        status = solver.solve(self._model)
        if status == cp_model.INFEASIBLE:
            return _NONE_FITS
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return _UNKNOWN if solver.deterministic_time >= work else _NO_TIME
        columns = np.zeros((len(self._problem.tables), len(self._limits)), dtype=np.int64)
        for (table, device), (variable, width) in self._columns.items():
            columns[table, device] = width * solver.value(variable)
        return Outcome(columns, proven=True)

    def _present_units(self, clique: tuple[int, ...], device: int) -> "Iterator[cp_model.IntVar]":
        return (self._present[unit, device] for unit in clique if (unit, device) in self._present)

    def _add_unit(self, unit: int) -> bool:
        """Variables of a unit; False where no device can take any of it."""
        tables = self._rules.units[unit]
        devices = [int(device) for device in self._rules.allowed[unit].nonzero()[0]]
        if len(tables) == 1 and can_be_cut(self._constraints, self._problem.tables[tables[0]].embedding_dim):
            return self._add_cut_table(unit, tables[0], devices)
        need = together_bytes(self._problem, tables)
        roomy = [device for device in devices if self._limits[device] >= need]
        return bool(roomy) and self._add_whole(unit, need, roomy)

    def _add_whole(self, unit: int, need: int, devices: list[int]) -> bool:
        for device in devices:
            variable = self._model.new_bool_var("")
            self._present[unit, device] = variable
            self._held[device].append((variable, need, 1))
            for table in self._rules.units[unit]:
                self._columns[table, device] = variable, self._problem.tables[table].embedding_dim
        self._model.add_exactly_one(self._present[unit, device] for device in devices)
        return True

    def _add_cut_table(self, unit: int, table: int, devices: list[int]) -> bool:
        spec, constraints = self._problem.tables[table], self._constraints
        narrowest = max(1, math.ceil(constraints.min_shard_dim / self._multiple))
        widest = constraints.max_shard_dim // self._multiple
        steps = spec.embedding_dim // self._multiple
        must_cut = ShardingType.TABLE_WISE not in constraints.sharding_types
        column_bytes, shard_bytes = line_of_bytes(self._problem, spec)
        step_bytes = column_bytes * self._multiple
        columns, shards = [], []
        for device in devices:
            most = min(steps, (self._limits[device] - shard_bytes) // step_bytes)
            if most < narrowest:
                continue
            most_shards = max(math.ceil(most / widest), 2 if must_cut and most == steps else 1)
            held = self._model.new_int_var(0, most, "")
            count = self._model.new_int_var(0, most_shards, "")
            self._model.add(held <= widest * count)
            self._model.add(held >= narrowest * count)
            columns.append(held)
            shards.append(count)
            self._columns[table, device] = held, self._multiple
            self._held[device] += [(held, step_bytes, most), (count, shard_bytes, most_shards)]
            if self._rules.apart[unit].any():
                self._present[unit, device] = self._presence(count, most_shards)
        # Every shard is on one device, so this many are needed, whatever the rest of the program allows.
        largest = max((self._limits[device] for device in devices), default=0)
        needed = needed_slices(self._problem, spec, largest) if columns else 0
        if needed == 0:
            return False
        self._model.add(sum(columns) == steps)
        self._model.add(sum(shards) >= needed)
        return True

    def _presence(self, count: "cp_model.IntVar", most: int) -> "cp_model.IntVar":
        present = self._model.new_bool_var("")
        self._model.add(count <= most * present)
        return present

    def _add_limit(self, device: int) -> bool:
        """Memory of a device, in its terms' greatest common divisor; False where sums could leave 64 bits."""
        terms = [term for term in self._held[device] if term[1]]
        if sum(amount * most for _, amount, most in terms) <= self._limits[device]:
            return True
        unit = reduce(math.gcd, (amount for _, amount, _ in terms))
        if sum(amount // unit * most for _, amount, most in terms) > _LARGEST_SUM:
            return False
        used = sum(amount // unit * variable for variable, amount, _ in terms)
        self._model.add(used <= self._limits[device] // unit)
        return True
