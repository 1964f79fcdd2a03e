"""Bytes that a plan which is being improved has on devices where the running plan does not have them."""

from collections.abc import Iterable, Mapping

from service.domain.moves import held_before, moved_bytes, table_moves, tiled
from service.domain.plan import Running
from service.search.catalogue import Catalogue, Piece
from service.search.holdings import NONE, Change, Holdings

Widths = Mapping[int, int]
"""Columns of a unit by device."""


class Moved:
    """Counts the bytes, and holds changes to the limit on them."""

    def __init__(self, catalogue: Catalogue, running: Running) -> None:
        self._catalogue = catalogue
        self._limit = running.max_moved_bytes
        self.before = held_before(catalogue.problem, running)
        self._known: dict[tuple[int, tuple[tuple[int, int], ...]], int] = {}

    def columns_before(self, unit: int) -> dict[int, int]:
        """Columns of a unit by the devices of the running plan, which may be gone."""
        columns: dict[int, int] = {}
        for table in self._catalogue.rules.units[unit]:
            for start, stop, device in self.before.get(self._catalogue.problem.tables[table].name, ()):
                columns[device] = columns.get(device, 0) + stop - start
        return columns

    def of_unit(self, unit: int, columns: Widths) -> int:
        """Bytes of a unit's moves where devices have these columns of it."""
        key = (unit, tuple(sorted(columns.items())))
        if key not in self._known:
            self._known[key] = sum(self._of_table(unit, table, columns) for table in self._catalogue.rules.units[unit])
        return self._known[key]

    def forced(self) -> tuple[int, list[str]]:
        """Bytes that move in every plan, because no device that has them may keep them; and the tables they are of."""
        problem, rules = self._catalogue.problem, self._catalogue.rules
        found, names = 0, []
        for unit, tables in enumerate(rules.units):
            for table in (problem.tables[table] for table in tables):
                lost = [
                    stop - start
                    for start, stop, device in self.before.get(table.name, ())
                    if device >= problem.topology.device_count or not rules.allowed[unit, device]
                ]
                if lost:
                    found += table.sliced(sum(lost)).weight_bytes
                    names.append(table.name)
        return found, names

    def of(self, holdings: Holdings) -> int:
        """Bytes of all moves."""
        return sum(self.of_unit(unit, columns) for unit, columns in by_unit(holdings).items())

    def accepts(self, holdings: Holdings, changes: list[Change]) -> bool:
        """Whether changes keep within the limit, or move less than is moved now."""
        if self._limit is None:
            return True
        held = by_unit(holdings)
        grown = 0
        for unit, columns in _changed(self._catalogue, held, changes).items():
            grown += self.of_unit(unit, columns) - self.of_unit(unit, held[unit])
        return grown <= 0 or self.of(holdings) + grown <= self._limit

    def _of_table(self, unit: int, table: int, columns: Widths) -> int:
        spec, catalogue = self._catalogue.problem.tables[table], self._catalogue
        before = self.before.get(spec.name, ())
        shards = {
            device: [s.embedding_dim for s in catalogue.tables(Piece(unit, width)) if s.name == spec.name]
            for device, width in columns.items()
        }
        return moved_bytes(table_moves(spec, catalogue.problem.optimizer, before, tiled(before, shards)))


def by_unit(holdings: Holdings) -> dict[int, dict[int, int]]:
    """Columns of each unit by device."""
    columns: dict[int, dict[int, int]] = {}
    for position, device in holdings.pieces():
        unit, width = holdings.catalogue.keys[position]
        columns.setdefault(unit, {})[device] = width
    return columns


def _changed(catalogue: Catalogue, held: Mapping[int, Widths], changes: Iterable[Change]) -> dict[int, dict[int, int]]:
    """Columns by device of the units that changes are of, after them."""
    after: dict[int, dict[int, int]] = {}
    for device, out, into in changes:
        for position, width in ((out, 0), (into, catalogue.keys[into].width)):
            if position != NONE:
                unit = catalogue.keys[position].unit
                after.setdefault(unit, dict(held[unit]))[device] = width
    return {unit: {device: width for device, width in columns.items() if width} for unit, columns in after.items()}
