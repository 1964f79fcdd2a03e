"""Novelty: how far a table is from those that a model was trained on.

A table at a width and a batch size is a point of physical numbers, standardised over the measured tables. Its novelty
is its distance from the nearest of a few hundred landmarks among them, over that which only one in twenty tables that
were held out exceeds. So 1 is as far as a new table of the measured kind seldom is.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from service.cost_models.arrays import Arrays, Shapes, check_arrays
from service.cost_models.measured_domain import MeasuredDomain
from service.cost_models.row_memory import RowMemory
from service.domain.ports import Floats
from service.domain.reuse import reuse_profile
from service.domain.tables import KEPT_TABLES, DataType, Optimizer, PoolingMode, Table

QUANTITIES = (
    "log2_dim",
    "log2_row_bytes",
    "log2_rows",
    "log2_features",
    "log2_lookups",
    "log2_distinct",
    "log2_mean_count",
    "log2_batch",
)
"""Columns of ``novelty_quantities``, in order."""

MOST_LANDMARKS = 512

UNSEEN = 1.0
"""Added for an optimizer, a precision and a pooling mode that were not measured, each; and for a precision and an
optimizer that were, but never together."""

NOVELTY_SHAPES: Shapes = {
    "novelty.mean": (len(QUANTITIES),),
    "novelty.scale": (len(QUANTITIES),),
    "novelty.landmarks": ("L", len(QUANTITIES)),
    "novelty.unit": (1,),
}
"""Arrays of a version: L landmarks, standardised, and the distance that counts as 1."""


class Novelty:
    """The novelty of tables, from a version's arrays."""

    def __init__(self, version: str, arrays: Arrays, measured: MeasuredDomain) -> None:
        """Takes arrays, and what was measured.

        Raises:
            DamagedArtifact: the arrays are not those of ``NOVELTY_SHAPES``.
        """
        check_arrays(version, arrays, NOVELTY_SHAPES)
        mean, scale, landmarks, unit = (arrays[name].astype(np.float64) for name in NOVELTY_SHAPES)
        self._mean, self._scale, self._landmarks, self._unit = mean, scale, landmarks, float(unit[0])
        self._measured = measured
        self._known: RowMemory[Floats] = RowMemory()

    def of(self, tables: Sequence[Table], batch_size: int, optimizer: Optimizer) -> Floats:
        """Novelty of T tables (or slices) at a global batch size; [T], 0 for those that were measured."""
        return self._known.rows(tables, batch_size, optimizer, lambda new: self._of(new, batch_size, optimizer))

    def _of(self, tables: Sequence[Table], batch_size: int, optimizer: Optimizer) -> Floats:
        points = (novelty_quantities(tables, batch_size) - self._mean) / self._scale
        kinds = [(table.data_type, table.pooling_mode) for table in tables]
        count = {kind: self._unseen(optimizer, *kind) for kind in set(kinds)}
        unseen = np.array([count[kind] for kind in kinds], dtype=np.float64)
        return nearest(points, self._landmarks) / self._unit + UNSEEN * unseen

    def _unseen(self, optimizer: Optimizer, data_type: DataType, pooling_mode: PoolingMode) -> int:
        """How much of this was not measured, see ``UNSEEN``."""
        measured = self._measured
        return (
            (optimizer.value not in measured.optimizers)
            + (data_type.value not in measured.data_types)
            + (pooling_mode.value not in measured.pooling_modes)
            + measured.only_apart(optimizer, data_type)
        )


def novelty_quantities(tables: Sequence[Table], batch_size: int) -> Floats:
    """The point of each of T tables at a global batch size, not standardised; [T, len(QUANTITIES)]."""
    rows = [_quantities(table.nameless(), batch_size) for table in tables]
    return np.array(rows, dtype=np.float64).reshape(len(tables), len(QUANTITIES))


def nearest(points: Floats, landmarks: Floats) -> Floats:
    """Distance of each point from the nearest landmark; [T, Q] and [L, Q] -> [T]."""
    squares = (points**2).sum(axis=1)[:, None] - 2.0 * points @ landmarks.T + (landmarks**2).sum(axis=1)
    # Matrix products lose digits where a point is a landmark.
    least = np.maximum(squares.min(axis=1, initial=np.inf), 0.0)
    return np.asarray(np.sqrt(np.where(least < 1e-9, 0.0, least)))


@lru_cache(maxsize=KEPT_TABLES)
def _quantities(table: Table, batch_size: int) -> tuple[float, ...]:
    profile = reuse_profile(table, batch_size)
    lookups, distinct = float(profile.lookups), float(profile.distinct)
    values = (
        table.embedding_dim,
        table.row_bytes,
        table.num_embeddings,
        table.num_features,
        1.0 + lookups,
        1.0 + distinct,
        max(lookups, 1.0) / max(distinct, 1.0),
        batch_size,
    )
    return tuple(np.log2(values).tolist())
