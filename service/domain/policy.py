"""What a policy that places pieces one by one is asked, and what it sees."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from service.domain.plan import Algorithm
from service.domain.tables import Table

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """B episodes at a step; F numbers are the embedding of a piece, D devices the most that an episode has.

    Attributes:
        pieces: embedding of each episode's next piece, 0 where it has ended; [B, F].
        placed: fraction of each episode's pieces that is placed; [B].
        sums: of the embeddings of the pieces on each device; [B, D, F].
        used: fraction of each device's memory that is used, 0 in padding; [B, D].
        devices: which devices there are, the others are padding; [B, D].
    """

    pieces: Floats
    placed: Floats
    sums: Floats
    used: Floats
    devices: NDArray[np.bool_]


class Scorer(Protocol):
    """Scores devices for one piece after the other; what it remembers of its episodes is its own."""

    def logits(self, seen: Seen) -> Floats:
        """Logits of devices for the next pieces, rounded so that equal devices tie; [B, D]. Called once a step."""


class PlacementPolicy(Protocol):
    """Places any number of tables on any number of devices; numpy only, so that planning processes stay light."""

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm whose policy it is."""

    @property
    def version(self) -> str:
        """Name of the version, ``<hardware>/<algorithm>/<number>``."""

    def encode(self, tables: Sequence[Table], batch_size: int) -> Floats:
        """Embeddings of T tables (or slices) at a global batch size, to be summed over what is together; [T, F]."""

    def single_costs(self, embeddings: Floats) -> Floats:
        """Costs of pieces alone, by which they are ordered, milliseconds; [S, F] -> [S]."""

    def begin(self, episodes: int) -> Scorer:
        """Scores devices for so many new episodes in lock step."""
