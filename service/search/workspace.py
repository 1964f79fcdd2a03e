"""Pieces that tile a problem's tables, to be placed by an algorithm."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from service.domain.deadline import NEVER, Deadline
from service.domain.plan import Problem, Slice
from service.domain.ports import CostModels, Embeddings
from service.search.catalogue import Catalogue, Integers, Piece

Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Workspace:
    """S pieces that are to be placed on D devices, and what is known of each.

    Attributes:
        catalogue: knows all pieces.
        pieces: positions in the catalogue, by unit; [S].
        limits: memory of each device, bytes; [D].
    """

    catalogue: Catalogue = field(repr=False)
    pieces: Integers
    limits: Integers

    @classmethod
    def of(
        cls, problem: Problem, slices: Iterable[Slice], models: CostModels, deadline: Deadline = NEVER
    ) -> "Workspace":
        """A workspace of slices; those of tables that are on one device together are one piece.

        Raises:
            NoPlanInTime: the deadline passed before all pieces were encoded.
        """
        return cls.placed(problem, [(piece, 0) for piece in slices], models, deadline)[0]

    @classmethod
    def placed(
        cls, problem: Problem, slices: Iterable[tuple[Slice, int]], models: CostModels, deadline: Deadline = NEVER
    ) -> "tuple[Workspace, Integers]":
        """A workspace of slices with their devices, and the device of each piece, see ``of``."""
        catalogue = Catalogue(problem, models)
        rules, pieces, devices = catalogue.rules, [], []
        for piece, device in sorted(slices):
            unit = rules.unit_of[piece.table]
            alone = len(rules.units[unit]) == 1
            if alone or (rules.units[unit][0] == piece.table and piece.start == 0):
                pieces.append(Piece(unit, piece.width) if alone else catalogue.whole(unit))
                devices.append(device)
        return cls.placing(catalogue, pieces, deadline), np.array(devices, dtype=np.int64)

    @classmethod
    def placing(cls, catalogue: Catalogue, pieces: Sequence[Piece], deadline: Deadline = NEVER) -> "Workspace":
        """A workspace of pieces, in this order.

        Raises:
            NoPlanInTime: the deadline passed before all pieces were encoded.
        """
        limits = np.array(catalogue.problem.topology.memory_bytes, dtype=np.int64)
        return cls(catalogue, catalogue.positions(pieces, deadline), limits)

    def of_pieces(self, pieces: Integers) -> "Workspace":
        """This one with other pieces, [S], of the same catalogue."""
        return Workspace(self.catalogue, pieces, self.limits)

    @property
    def problem(self) -> Problem:
        """What is planned."""
        return self.catalogue.problem

    @property
    def models(self) -> CostModels:
        """What prices it."""
        return self.catalogue.models

    @property
    def keys(self) -> list[Piece]:
        """The pieces; S of them."""
        return [self.catalogue.keys[piece] for piece in self.pieces]

    @property
    def units(self) -> Integers:
        """Unit of each piece; [S]."""
        units: Integers = self.catalogue.units[self.pieces]
        return units

    @property
    def embeddings(self) -> Embeddings:
        """Embedding of each piece; [S, H]."""
        embeddings: Embeddings = self.catalogue.embeddings[self.pieces]
        return embeddings

    @property
    def memory_bytes(self) -> Integers:
        """Memory of each piece alone; [S]. Pieces that are merged later need no more than their sum."""
        memory: Integers = self.catalogue.memory_bytes[self.pieces]
        return memory

    @property
    def output_widths(self) -> Integers:
        """Pooled output columns of each piece; [S]."""
        widths: Integers = self.catalogue.output_widths[self.pieces]
        return widths

    @property
    def single_costs(self) -> Integers:
        """Predicted compute of each piece alone on a device, ticks; [S]."""
        costs: Integers = self.catalogue.single_costs[self.pieces]
        return costs

    @property
    def device_count(self) -> int:
        """Number of devices, D."""
        return len(self.limits)
