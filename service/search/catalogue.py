"""Pieces that plans are made of: a table, or tables that are on one device together, at a width."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from service.domain.deadline import NEVER, Deadline
from service.domain.errors import NoPlanInTime
from service.domain.plan import Problem
from service.domain.ports import ComputeCostModel, CostModels, Embeddings
from service.domain.tables import Optimizer, Table
from service.search.rules import Rules
from service.search.shards import may_hold, shard_widths

Integers = NDArray[np.int64]

TICKS_PER_MS = 10_000
"""Predicted costs are rounded to whole ticks of 0.1 microseconds before anything compares them. Matrix products
differ in the last bits between processors and batch shapes; on this grid, which is far below what can be measured,
replicas nearly always see equal costs as equal and choose the same plan. Two costs on either side of a rounding edge
can still differ by a tick. From there on costs are integers, exact in any order."""

_ENCODED_BETWEEN_CLOCKS = 256


def ticks(milliseconds: NDArray[np.float64]) -> Integers:
    """Costs in milliseconds as whole ticks; same shape."""
    return np.rint(np.asarray(milliseconds, dtype=np.float64) * TICKS_PER_MS).astype(np.int64)


def no_plan_in_time() -> NoPlanInTime:
    """The error for a deadline that passed before any plan was found."""
    return NoPlanInTime("no plan was found within the time limit; a plan may still exist: allow a longer time_limit_ms")


class Piece(NamedTuple):
    """Columns of a unit: of its table, or all columns of its tables.

    Attributes:
        unit: position in ``Rules.units``.
        width: columns.
    """

    unit: int
    width: int


class TableEncoder:
    """Encodes tables for one batch size and optimizer; tables that differ only in name are encoded once."""

    def __init__(self, compute: ComputeCostModel, batch_size: int, optimizer: Optimizer) -> None:
        self._compute = compute
        self._batch_size = batch_size
        self._optimizer = optimizer
        self._known: dict[Table, Embeddings] = {}

    def encode(self, tables: Sequence[Table]) -> Embeddings:
        """Embeddings of T tables; [T, H]."""
        keys = [table.nameless() for table in tables]
        missing = list(dict.fromkeys(key for key in keys if key not in self._known))
        if missing:
            encoded = self._compute.encode(missing, self._batch_size, self._optimizer)
            self._known.update(zip(missing, encoded, strict=True))
        return np.stack([self._known[key] for key in keys])


class Catalogue:
    """What is known of pieces, each computed when it is first met.

    A piece on a device is one shard of each of its tables, or as many as it takes where one would be too wide; the
    numbers are of all of these.

    Attributes:
        problem: what is planned.
        models: what prices it.
        rules: what its constraints come to.
        keys: the P pieces met so far; their places in this list are their positions.
        embeddings: [P, H].
        memory_bytes: [P].
        output_widths: pooled output columns; [P].
        single_costs: predicted compute of each alone on a device, forward and backward, ticks; [P].
        units: unit of each; [P].
    """

    def __init__(self, problem: Problem, models: CostModels) -> None:
        self.problem = problem
        self.models = models
        self.rules = Rules.of(problem)
        self.keys: list[Piece] = []
        self.units, self.memory_bytes, self.output_widths, self.single_costs = (_none() for _ in range(4))
        self.embeddings: Embeddings = np.zeros((0, 0), dtype=np.float32)
        self._encoder = TableEncoder(models.compute, problem.global_batch_size, problem.optimizer)
        self._position: dict[Piece, int] = {}
        self._allowed: dict[Piece, bool] = {}
        self._tables: dict[Piece, list[Table]] = {}
        self._parts: dict[int, Sequence[int]] = {}
        self._splits: dict[int, Integers] = {}
        self._whole = [sum(problem.tables[table].embedding_dim for table in unit) for unit in self.rules.units]

    def whole(self, unit: int) -> Piece:
        """All columns of a unit."""
        return Piece(unit, self._whole[unit])

    def allowed(self, piece: Piece) -> bool:
        """Whether a device may hold a piece."""
        if piece not in self._allowed:
            tables = [self.problem.tables[table] for table in self.rules.units[piece.unit]]
            constraints, alone = self.problem.constraints, len(tables) == 1
            self._allowed[piece] = (
                may_hold(constraints, tables[0].embedding_dim, piece.width)
                if alone
                else piece == self.whole(piece.unit)
            )
        return self._allowed[piece]

    def parts(self, position: int) -> Sequence[int]:
        """Columns of a piece that may leave its device: all, and parts of many sizes that leave what is allowed."""
        if position not in self._parts:
            unit, width = self.keys[position]
            multiple = self.problem.constraints.column_multiple
            steps = width // multiple if len(self.rules.units[unit]) == 1 else 0
            powers = [1 << i for i in range(steps.bit_length())]
            parts = {*powers, *(steps - power for power in powers), *(steps * n // 12 for n in (4, 6, 8, 9))}
            sizes = [multiple * part for part in sorted(parts) if 0 < part < steps]
            self._parts[position] = [width, *(size for size in sizes if self.allowed(Piece(unit, width - size)))]
        return self._parts[position]

    def splits(self, positions: Sequence[int]) -> list[Integers]:
        """Positions of two pieces that each piece may be divided into, of many sizes; [N, 2] of each."""
        new = {}
        for position in set(positions) - self._splits.keys():
            unit, width = self.keys[position]
            parts = [part for part in self.parts(position)[1:] if self.allowed(Piece(unit, part))]
            new[position] = [(Piece(unit, part), Piece(unit, width - part)) for part in parts]
        self.positions([piece for pairs in new.values() for pair in pairs for piece in pair])
        for position, pairs in new.items():
            flat = self.positions([piece for pair in pairs for piece in pair])
            self._splits[position] = flat.reshape(-1, 2)
        return [self._splits[position] for position in positions]

    def position(self, piece: Piece) -> int:
        """Position of a piece, see ``positions``."""
        if piece not in self._position:
            self._add([piece])
        return self._position[piece]

    def tables(self, piece: Piece) -> list[Table]:
        """Shards of a piece on one device, as tables of their width."""
        if piece not in self._tables:
            self._tables[piece] = self._shards(piece)
        return self._tables[piece]

    def _shards(self, piece: Piece) -> list[Table]:
        unit, width = piece
        members = [self.problem.tables[table] for table in self.rules.units[unit]]
        widths = [width] if len(members) == 1 else [table.embedding_dim for table in members]
        constraints = self.problem.constraints
        return [
            table.sliced(shard)
            for table, held in zip(members, widths, strict=True)
            for shard in shard_widths(constraints, table.embedding_dim, held)
        ]

    def positions(self, wanted: Sequence[Piece], deadline: Deadline = NEVER) -> Integers:
        """Positions of N pieces, which are added where they are new; [N].

        Raises:
            NoPlanInTime: the deadline passed before all were encoded.
        """
        new = list(dict.fromkeys(piece for piece in wanted if piece not in self._position))
        for first in range(0, len(new), _ENCODED_BETWEEN_CLOCKS):
            if deadline.passed():
                raise no_plan_in_time()
            self._add(new[first : first + _ENCODED_BETWEEN_CLOCKS])
        return _integers(self._position[piece] for piece in wanted)

    def _add(self, pieces: Sequence[Piece]) -> None:
        held = [self.tables(piece) for piece in pieces]
        encoded = self._encoder.encode([table for tables in held for table in tables])
        begins = np.cumsum([0, *map(len, held[:-1])])
        embeddings = encoded
        if len(encoded) > len(pieces):
            embeddings = np.add.reduceat(encoded.astype(np.float64), begins, axis=0).astype(np.float32)
        self._position.update((piece, len(self.keys) + i) for i, piece in enumerate(pieces))
        self.keys.extend(pieces)
        memory = _integers(sum(self.problem.memory_of(table).total for table in tables) for tables in held)
        widths = _integers(sum(table.output_width for table in tables) for tables in held)
        costs = ticks(self.models.compute.head(embeddings)).sum(axis=-1)
        self.units = np.append(self.units, _integers(piece.unit for piece in pieces))
        self.memory_bytes = np.append(self.memory_bytes, memory)
        self.output_widths = np.append(self.output_widths, widths)
        self.single_costs = np.append(self.single_costs, costs)
        self.embeddings = np.concatenate([self.embeddings.reshape(-1, embeddings.shape[1]), embeddings])


def _integers(values: Iterable[int]) -> Integers:
    return np.fromiter(values, dtype=np.int64)


def _none() -> Integers:
    return np.zeros(0, dtype=np.int64)
