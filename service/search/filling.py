"""Devices filled with whole tables first, and with as many columns of a table as still fit where none takes all."""

import math

import numpy as np

from service.domain.deadline import Deadline
from service.domain.plan import Problem
from service.search.cuts import can_be_cut, fewest_slices, line_of_bytes, together_bytes
from service.search.exact import Columns
from service.search.rules import Presence, Rules


def filled(problem: Problem, rules: Rules, deadline: Deadline) -> Columns | None:
    """Columns of every table on every device that fit and keep all rules, [T, D]; None where none were found.

    Units with the fewest devices come first, then the largest: small tables, whose columns are the finest grain, are
    what fills the gaps. It is McNaughton's wrap-around rule of scheduling (1959) with best fit before a cut.
    """
    return None if not _all_allowed(problem) else _Filling(problem, rules).columns(deadline)


def _all_allowed(problem: Problem) -> bool:
    return all(fewest_slices(problem.constraints, table.embedding_dim) for table in problem.tables)


class _Filling:
    def __init__(self, problem: Problem, rules: Rules) -> None:
        self._problem, self._rules = problem, rules
        self._room = list(problem.topology.memory_bytes)
        self._present, self._row = Presence(rules, 1), np.zeros(1, dtype=np.intp)
        self._columns = np.zeros((len(problem.tables), len(self._room)), dtype=np.int64)

    def columns(self, deadline: Deadline) -> Columns | None:
        needs = [together_bytes(self._problem, members) for members in self._rules.units]
        choices = self._rules.allowed.sum(axis=1)
        for unit in sorted(range(len(needs)), key=lambda i: (choices[i], -needs[i])):
            if deadline.passed() or not (self._whole(unit, needs[unit]) or self._cut(unit)):
                return None
        return self._columns

    def _whole(self, unit: int, need: int) -> bool:
        devices = [device for device in self._legal(unit) if self._room[device] >= need]
        if not devices:
            return False
        device = min(devices, key=self._room.__getitem__)
        self._put(unit, device, need)
        for table in self._rules.units[unit]:
            self._columns[table, device] = self._problem.tables[table].embedding_dim
        return True

    def _cut(self, unit: int) -> bool:
        """As many columns as fit to the roomiest device, and so on; False where some are left."""
        table = self._rules.units[unit][0]
        spec, constraints = self._problem.tables[table], self._problem.constraints
        if len(self._rules.units[unit]) > 1 or not can_be_cut(constraints, spec.embedding_dim):
            return False
        column_bytes, shard_bytes = line_of_bytes(self._problem, spec)
        multiple = constraints.column_multiple
        narrowest = max(1, math.ceil(constraints.min_shard_dim / multiple))
        widest = constraints.max_shard_dim // multiple
        left = spec.embedding_dim // multiple
        most = left - 1  # All of it was tried.
        for device in sorted(self._legal(unit), key=lambda i: -self._room[i]):
            for steps in range(min(left, most, self._room[device] // (column_bytes * multiple)), narrowest - 1, -1):
                shards = math.ceil(steps / widest)
                need = column_bytes * multiple * steps + shard_bytes * shards
                rest_is_allowed = steps == left or left - steps >= narrowest
                if need <= self._room[device] and steps >= narrowest * shards and rest_is_allowed:
                    self._put(unit, device, need)
                    self._columns[table, device] = multiple * steps
                    left -= steps
                    break
            if left == 0:
                return True
        return False

    def _legal(self, unit: int) -> list[int]:
        return [int(i) for i in self._present.legal(self._row, np.array([unit]))[0].nonzero()[0]]

    def _put(self, unit: int, device: int, need: int) -> None:
        self._room[device] -= need
        self._present.put(self._row, np.array([device]), np.array([unit]))
