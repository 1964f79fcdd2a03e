"""A plan while it is being improved: the columns of each unit on each device, with running sums."""

from collections.abc import Iterator, Mapping, Sequence
from copy import copy

import numpy as np
from numpy.typing import NDArray

from service.domain.ports import Floats
from service.search.catalogue import TICKS_PER_MS, Catalogue, Integers, Piece, ticks
from service.search.rules import Flags
from service.search.simulator import exchange_ticks, merged_pieces
from service.search.workspace import Workspace

NONE = -1
"""Position that stands for no piece."""

Change = tuple[int, int, int]
"""A device, the position of the piece of a unit that it gives up, and that of the piece that it has instead."""


class Holdings:
    """The pieces of D devices, one a unit and device.

    Attributes:
        catalogue: knows all pieces.
        held: position of the piece of each unit that a device holds; D mappings.
        sums: of the embeddings of each device's pieces, in double precision; [D, H].
        used: memory of each device, bytes; [D].
        widths: pooled output columns of each device; [D].
        compute: predicted compute of each device, ticks; [D].
    """

    def __init__(self, catalogue: Catalogue, pieces: Sequence[tuple[int, int]]) -> None:
        """Takes positions in the catalogue and their devices; no two pieces of a unit on one device."""
        devices = catalogue.problem.topology.device_count
        self.catalogue = catalogue
        self.held: list[dict[int, int]] = [{} for _ in range(devices)]
        self.sums: NDArray[np.float64] = np.zeros((devices, catalogue.embeddings.shape[1]))
        self.used = np.zeros(devices, dtype=np.int64)
        self.widths = np.zeros(devices, dtype=np.int64)
        for position, device in pieces:
            self.held[device][int(catalogue.units[position])] = position
        for device in range(devices):
            self._add_up(device)
        self.compute = ticks(catalogue.models.compute.head(self.sums.astype(np.float32))).sum(axis=-1)

    @classmethod
    def of(cls, workspace: Workspace, placement: Integers) -> "Holdings":
        """What a placement [S] comes to."""
        merged = merged_pieces(workspace, placement)
        positions = workspace.catalogue.positions([piece for piece, _ in merged])
        return cls(workspace.catalogue, list(zip(positions.tolist(), (device for _, device in merged), strict=True)))

    def copy(self) -> "Holdings":
        """The same holdings, to be changed on their own."""
        found = copy(self)
        found.held = [dict(held) for held in self.held]
        for name in ("sums", "used", "widths", "compute"):
            setattr(found, name, getattr(self, name).copy())
        return found

    @property
    def count(self) -> int:
        """Number of pieces of all devices."""
        return sum(map(len, self.held))

    def pieces(self) -> Iterator[tuple[int, int]]:
        """Positions in the catalogue and devices of all pieces, by device and unit."""
        for device, held in enumerate(self.held):
            for unit in sorted(held):
                yield held[unit], device

    def workspace(self) -> tuple[Workspace, Integers]:
        """The pieces by unit and device, and their devices."""
        found = sorted(self.pieces(), key=lambda each: (int(self.catalogue.units[each[0]]), each[1]))
        pieces, devices = (np.array(column, dtype=np.int64) for column in zip(*found, strict=True))
        limits = np.array(self.catalogue.problem.topology.memory_bytes, dtype=np.int64)
        return Workspace(self.catalogue, pieces, limits), devices

    def legal(self, unit: int) -> Flags:
        """Devices that the rules let take a unit, as the others lie; [D]."""
        rules = self.catalogue.rules
        legal: Flags = rules.allowed[unit].copy()
        for other in np.flatnonzero(rules.apart[unit]):
            legal &= np.array([other not in held for held in self.held])
        return legal

    def moved(self, unit: int, source: int, target: int, columns: int) -> list[Change] | None:
        """Changes that bring columns of a unit from one device to another; None where that is not allowed."""
        catalogue, before = self.catalogue, self.held[source][unit]
        there = self.held[target].get(unit, NONE)
        rest = catalogue.keys[before].width - columns
        joined = columns + (catalogue.keys[there].width if there != NONE else 0)
        parts = [Piece(unit, joined), *([Piece(unit, rest)] if rest else [])]
        if not self.legal(unit)[target] or not all(map(catalogue.allowed, parts)):
            return None
        taken, *kept = catalogue.positions(parts).tolist()
        grown = catalogue.memory_bytes[taken] - (catalogue.memory_bytes[there] if there != NONE else 0)
        if self.used[target] + grown > catalogue.problem.topology.memory_bytes[target]:
            return None
        return [(source, before, kept[0] if kept else NONE), (target, there, taken)]

    def columns(self, unit: int) -> Mapping[int, int]:
        """Columns of a unit by the devices that hold any."""
        keys = self.catalogue.keys
        return {device: keys[held[unit]].width for device, held in enumerate(self.held) if unit in held}

    def change(self, changes: Sequence[Change]) -> None:
        """Makes changes, of which those of a device and unit come once."""
        devices = sorted({device for device, _, _ in changes})
        for device, before, after in changes:
            if before != NONE:
                del self.held[device][int(self.catalogue.units[before])]
            if after != NONE:
                self.held[device][int(self.catalogue.units[after])] = after
        for device in devices:
            self._add_up(device)
        costs = self.catalogue.models.compute.head(self.sums[devices].astype(np.float32))
        self.compute[devices] = ticks(costs).sum(axis=-1)

    def _add_up(self, device: int) -> None:
        positions = [self.held[device][unit] for unit in sorted(self.held[device])]
        catalogue = self.catalogue
        self.sums[device] = catalogue.embeddings[positions].astype(np.float64).sum(axis=0)
        self.used[device] = catalogue.memory_bytes[positions].sum()
        self.widths[device] = catalogue.output_widths[positions].sum()


class Exchanges:
    """Prices of the exchanges of plans of one problem."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._models = catalogue.models
        self._batch_size = catalogue.problem.global_batch_size

    def costs(self, compute: Integers, widths: Integers) -> tuple[Integers, Integers, Integers]:
        """Costs of N plans, and of each of their devices the start of the forward exchange and the transfer, ticks.

        Args:
            compute: [N, D], ticks.
            widths: pooled output columns; [N, D].

        Returns:
            [N], [N, D] and [N, D].
        """
        found = exchange_ticks(self._models, compute, widths.astype(np.float64), self._batch_size)
        starts = compute + found.backward
        return starts.max(axis=-1) + found.transfer.max(axis=-1), starts, found.transfer


def steepness(catalogue: Catalogue, sums: Floats) -> Floats:
    """Slope of devices' compute in each coordinate of their sums, ticks; [N, H] -> [N, H].

    Measured over a part of each coordinate; it only tells which changes are worth pricing.
    """
    step = 0.05 * sums + 1e-3 * np.maximum(np.abs(sums).max(axis=-1, keepdims=True), 1e-9)
    moved = sums[:, None, :] + np.eye(sums.shape[1]) * step[:, None, :]
    together = np.concatenate([sums[:, None, :], moved], axis=1).astype(np.float32)
    costs = catalogue.models.compute.head(together).sum(axis=-1) * TICKS_PER_MS
    slopes: Floats = (costs[:, 1:] - costs[:, :1]) / step
    return slopes
