"""NeuroShard's outer search: a beam search over column cuts, each way of cutting judged by the inner search."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from service.domain.deadline import Deadline
from service.domain.plan import Slice
from service.search.cuts import can_be_halved
from service.search.grid import CAP_COUNT, Grid, GridResult, Pieces, width_caps
from service.search.workspace import Integers, Workspace, ticks

_MOST_NUMBERS = 4_000_000  # Of running sums held at once: 32 MB.


@dataclass(frozen=True, slots=True)
class BeamSettings:
    """The paper's parameters and defaults (NeuroShard, MLSys 2023).

    Attributes:
        beams: K, ways of cutting that are followed.
        candidates: N, largest and N costliest pieces whose halving is tried.
        steps: L, most cuts made one after the other.
        caps: M, caps on a device's output columns.
    """

    beams: int = 3
    candidates: int = 10
    steps: int = 10
    caps: int = CAP_COUNT


@dataclass(frozen=True, slots=True, eq=False)
class Way:
    """A way of cutting the tables, placed.

    Attributes:
        slices: by table and column; S of them.
        placement: device of each; [S].
    """

    slices: tuple[Slice, ...]
    placement: Integers


@dataclass(frozen=True, slots=True, eq=False)
class BeamResult:
    """What a beam search found.

    Attributes:
        uncut: the way that it began with, placed by the inner search; None where that does not fit.
        best: the cheapest way that was seen; None where none fits.
        cut_short: whether the deadline ended the search.
    """

    uncut: Way | None
    best: Way | None
    cut_short: bool


class _Catalogue:
    """Pieces by (table, width), embedded when they are first met."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self.keys: list[tuple[int, int]] = []
        self._position: dict[tuple[int, int], int] = {}
        self.pieces = Pieces(
            workspace.embeddings[:0],
            workspace.memory_bytes[:0],
            workspace.output_widths[:0],
            workspace.single_costs[:0],
        )

    def positions(self, wanted: Sequence[tuple[int, int]]) -> list[int]:
        """Positions of pieces, which are added where they are new."""
        new = list(dict.fromkeys(key for key in wanted if key not in self._position))
        if new:
            self._add(new)
        return [self._position[key] for key in wanted]

    def _add(self, keys: Sequence[tuple[int, int]]) -> None:
        problem = self._workspace.problem
        tables = [problem.tables[table].sliced(width) for table, width in keys]
        embeddings = self._workspace.encoder.encode(tables)
        self._position.update((key, len(self.keys) + i) for i, key in enumerate(keys))
        self.keys.extend(keys)
        memory = np.array([problem.memory_of(table).total for table in tables], dtype=np.int64)
        widths = np.array([table.output_width for table in tables], dtype=np.int64)
        costs = ticks(self._workspace.models.compute.head(embeddings)).sum(axis=-1)
        held = self.pieces
        self.pieces = Pieces(
            np.concatenate([held.embeddings, embeddings]),
            np.concatenate([held.memory_bytes, memory]),
            np.concatenate([held.output_widths, widths]),
            np.concatenate([held.single_costs, costs]),
        )


def beam_search(workspace: Workspace, deadline: Deadline, settings: BeamSettings) -> BeamResult:
    """Halves one piece a step in each of the best ways of cutting so far, and keeps the best K.

    Ways that do not fit are ordered by the bytes that found no device, so that the search moves towards fitting.
    Costs are those of pieces apart: pieces of a table that end up on one device are merged afterwards.
    """
    catalogue = _Catalogue(workspace)
    caps = width_caps(int(workspace.output_widths.sum()), workspace.device_count, settings.caps)
    states = np.array([catalogue.positions([(s.table, s.width) for s in workspace.slices])], dtype=np.int64)
    uncut: Way | None = None
    best: Way | None = None
    least = np.iinfo(np.int64).max
    for step in range(settings.steps + 1):
        found = _placed(workspace, catalogue, caps, states, deadline)
        if found is None:
            return BeamResult(uncut, best, cut_short=True)
        ranked = np.lexsort((found.missing_bytes, found.costs))[: settings.beams]
        leader = ranked[0]
        if found.costs[leader] < least:
            least, best = found.costs[leader], Way(_slices(catalogue, states[leader]), found.placements[leader])
        uncut = best if step == 0 else uncut
        states = _next_states(workspace, catalogue, states[ranked], settings.candidates)
        if not len(states):
            break
    return BeamResult(uncut, best, cut_short=False)


def _placed(
    workspace: Workspace, catalogue: "_Catalogue", caps: Integers, states: Integers, deadline: Deadline
) -> GridResult | None:
    """The inner search of all states, some at a time where they would take too much memory."""
    grid = Grid(catalogue.pieces, workspace.limits, workspace.models, workspace.problem.global_batch_size, caps)
    row = len(caps) * workspace.device_count * workspace.embeddings.shape[1]
    together = max(1, _MOST_NUMBERS // row)
    parts = []
    for first in range(0, len(states), together):
        part = grid.run(states[first : first + together], deadline)
        if part is None:
            return None
        parts.append(part)
    return GridResult(
        np.concatenate([part.placements for part in parts]),
        np.concatenate([part.costs for part in parts]),
        np.concatenate([part.missing_bytes for part in parts]),
    )


def _next_states(workspace: Workspace, catalogue: _Catalogue, beams: Integers, candidates: int) -> Integers:
    """Every beam with one of its candidate pieces halved; ways of cutting that are the same come once."""
    made: dict[bytes, Integers] = {}
    for beam in beams:
        for position in _chosen(workspace, catalogue, beam, candidates):
            table, width = catalogue.keys[beam[position]]
            (half,) = catalogue.positions([(table, width // 2)])
            state = np.concatenate([beam[:position], [half, half], beam[position + 1 :]])
            made.setdefault(np.sort(state).tobytes(), state)
    return np.array(list(made.values()), dtype=np.int64).reshape(len(made), beams.shape[1] + 1)


def _chosen(workspace: Workspace, catalogue: _Catalogue, beam: Integers, candidates: int) -> Iterator[int]:
    """Positions of the N largest and the N costliest pieces that may be halved, each kind of piece once."""
    first: dict[int, int] = {}
    for i, piece in enumerate(beam.tolist()):
        first.setdefault(piece, i)
    constraints = workspace.problem.constraints
    pieces = np.array([p for p in first if can_be_halved(constraints, catalogue.keys[p][1])], dtype=np.int64)
    held = catalogue.pieces
    largest = np.argsort(-held.memory_bytes[pieces], kind="stable")[:candidates]
    costliest = np.argsort(-held.single_costs[pieces], kind="stable")[:candidates]
    for piece in dict.fromkeys([*pieces[largest], *pieces[costliest]]):
        yield first[int(piece)]


def _slices(catalogue: _Catalogue, state: Integers) -> tuple[Slice, ...]:
    slices: list[Slice] = []
    for piece in state:
        table, width = catalogue.keys[piece]
        start = slices[-1].stop if slices and slices[-1].table == table else 0
        slices.append(Slice(table, start, start + width))
    return tuple(slices)
