"""What the constraints come to for a search: which tables move as one, and which devices may take what."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.domain.plan import Problem

Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Rules:
    """Constraints on where U units go; a unit is a table, or several that are on one device together.

    Attributes:
        units: positions of each unit's tables in the problem, ascending; units by their first table.
        unit_of: the unit of each table; T entries.
        allowed: whether a device may take a unit; [U, D].
        apart: whether two units must not share a device; symmetric, [U, U].
        cliques: units of each ``separate`` group.
    """

    units: tuple[tuple[int, ...], ...]
    unit_of: tuple[int, ...]
    allowed: Flags
    apart: Flags
    cliques: tuple[tuple[int, ...], ...]

    @property
    def bind(self) -> bool:
        """Whether there is any rule at all."""
        return len(self.units) < len(self.unit_of) or not self.allowed.all() or bool(self.apart.any())

    @classmethod
    def of(cls, problem: Problem) -> "Rules":
        """The rules that a problem's constraints make; names that no table has are left out."""
        position = {table.name: i for i, table in enumerate(problem.tables)}
        units = _units(problem, position)
        unit_of = [0] * len(problem.tables)
        for unit, tables in enumerate(units):
            for table in tables:
                unit_of[table] = unit
        allowed = np.ones((len(units), problem.topology.device_count), dtype=np.bool_)
        for name, devices in problem.constraints.pin.items():
            for table in _positions(position, [name]):
                here = np.zeros(problem.topology.device_count, dtype=np.bool_)
                here[list(devices)] = True
                allowed[unit_of[table]] &= here
        apart = np.zeros((len(units), len(units)), dtype=np.bool_)
        cliques = tuple(
            tuple(unit_of[table] for table in _positions(position, names)) for names in problem.constraints.separate
        )
        for clique in cliques:
            apart[np.ix_(clique, clique)] = True
        np.fill_diagonal(apart, val=False)
        return cls(units, tuple(unit_of), allowed, apart, cliques)


def _units(problem: Problem, position: Mapping[str, int]) -> tuple[tuple[int, ...], ...]:
    """Tables by the groups that colocation makes of them; groups that share a table are one."""
    parent = list(range(len(problem.tables)))

    def root(table: int) -> int:
        while parent[table] != table:
            parent[table] = parent[parent[table]]
            table = parent[table]
        return table

    for names in problem.constraints.colocate:
        found = [root(table) for table in _positions(position, names)]
        for table in found:
            # The first table of all stands for the group.
            first, last = sorted((root(found[0]), root(table)))
            parent[last] = first
    members: dict[int, list[int]] = {}
    for table in range(len(parent)):
        members.setdefault(root(table), []).append(table)
    return tuple(map(tuple, members.values()))


def _positions(position: Mapping[str, int], names: Sequence[str]) -> list[int]:
    """Positions of the tables that have one of the names, ascending."""
    return sorted({position[name] for name in names if name in position})


class Presence:
    """Which units that must be apart from others are on the devices of R rows of D devices."""

    def __init__(self, rules: Rules, rows: int) -> None:
        self._rules = rules
        self._contended = np.flatnonzero(rules.apart.any(axis=1))
        self._apart = rules.apart[np.ix_(self._contended, self._contended)]
        self._place = np.full(len(rules.units), -1)
        self._place[self._contended] = np.arange(len(self._contended))
        self._here = np.zeros((rows, rules.allowed.shape[1], len(self._contended)), dtype=np.bool_)

    def legal(self, rows: NDArray[np.intp], units: NDArray[np.int64]) -> Flags:
        """Whether the rules let each row's device take the unit; rows and units [N] -> [N, D]."""
        legal = self._rules.allowed[units]
        places = self._place[units]
        bound = np.flatnonzero(places >= 0)
        if bound.size:
            others = self._here[rows[bound]] & self._apart[places[bound], None, :]
            legal[bound] &= ~others.any(axis=-1)
        return legal

    def put(self, rows: NDArray[np.intp], devices: NDArray[np.intp], units: NDArray[np.int64]) -> None:
        """Notes that units came to devices; [N] each."""
        places = self._place[units]
        bound = places >= 0
        self._here[rows[bound], devices[bound], places[bound]] = True
