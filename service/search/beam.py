"""NeuroShard's outer search: a beam search over column cuts, each way of cutting judged by the inner search."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from service.domain.deadline import Deadline
from service.search.catalogue import Catalogue, Integers, Piece
from service.search.cuts import can_be_halved
from service.search.grid import CAP_COUNT, Grid, GridResult, width_caps
from service.search.workspace import Workspace

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
        pieces: positions in the catalogue, by unit; [S].
        placement: device of each; [S].
    """

    pieces: Integers
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


def beam_search(workspace: Workspace, deadline: Deadline, settings: BeamSettings) -> BeamResult:
    """Halves one piece a step in each of the best ways of cutting so far, and keeps the best K.

    Ways that do not fit are ordered by the bytes that found no device, so that the search moves towards fitting.
    Costs are those of pieces apart: pieces of a table that end up on one device are merged afterwards.
    """
    catalogue = workspace.catalogue
    caps = width_caps(int(workspace.output_widths.sum()), workspace.device_count, settings.caps)
    states = workspace.pieces[None]
    uncut: Way | None = None
    best: Way | None = None
    least = np.iinfo(np.int64).max
    for step in range(settings.steps + 1):
        found = _placed(catalogue, caps, states, deadline)
        if found is None:
            return BeamResult(uncut, best, cut_short=True)
        ranked = np.lexsort((found.missing_bytes, found.costs))[: settings.beams]
        leader = ranked[0]
        if found.costs[leader] < least:
            least, best = found.costs[leader], Way(states[leader], found.placements[leader])
        uncut = best if step == 0 else uncut
        states = _next_states(catalogue, states[ranked], settings.candidates)
        if not len(states):
            break
    return BeamResult(uncut, best, cut_short=False)


def _placed(catalogue: Catalogue, caps: Integers, states: Integers, deadline: Deadline) -> GridResult | None:
    """The inner search of all states, some at a time where they would take too much memory."""
    grid = Grid(catalogue, caps)
    row = len(caps) * catalogue.problem.topology.device_count * catalogue.embeddings.shape[1]
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


def _next_states(catalogue: Catalogue, beams: Integers, candidates: int) -> Integers:
    """Every beam with one of its candidate pieces halved; ways of cutting that are the same come once."""
    made: dict[bytes, Integers] = {}
    for beam in beams:
        for position in _chosen(catalogue, beam, candidates):
            unit, width = catalogue.keys[beam[position]]
            (half,) = catalogue.positions([Piece(unit, width // 2)])
            state = np.concatenate([beam[:position], [half, half], beam[position + 1 :]])
            made.setdefault(np.sort(state).tobytes(), state)
    return np.array(list(made.values()), dtype=np.int64).reshape(len(made), beams.shape[1] + 1)


def _chosen(catalogue: Catalogue, beam: Integers, candidates: int) -> Iterator[int]:
    """Positions of the N largest and the N costliest pieces that may be halved, each kind of piece once."""
    first: dict[int, int] = {}
    for i, piece in enumerate(beam.tolist()):
        first.setdefault(piece, i)
    pieces = np.array([piece for piece in first if _may_be_halved(catalogue, piece)], dtype=np.int64)
    largest = np.argsort(-catalogue.memory_bytes[pieces], kind="stable")[:candidates]
    costliest = np.argsort(-catalogue.single_costs[pieces], kind="stable")[:candidates]
    for piece in dict.fromkeys([*pieces[largest], *pieces[costliest]]):
        yield first[int(piece)]


def _may_be_halved(catalogue: Catalogue, piece: int) -> bool:
    unit, width = catalogue.keys[piece]
    return len(catalogue.rules.units[unit]) == 1 and can_be_halved(catalogue.problem.constraints, width)
