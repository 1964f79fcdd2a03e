"""Fits the novelty of tables to measurements."""

from collections.abc import Sequence

import numpy as np

from service.cost_models.arrays import Arrays
from service.cost_models.novelty import MOST_LANDMARKS, nearest, novelty_quantities
from service.domain.measurements import ComputeMeasurement
from service.domain.ports import Floats

_ORDINARY = 0.95
"""Share of the held-out tables whose novelty is at most 1."""

_LEAST_SCALE = 1.0
_LEAST_UNIT = 0.05


def fit_novelty(train: Sequence[ComputeMeasurement], validation: Sequence[ComputeMeasurement]) -> Arrays:
    """Arrays of ``NOVELTY_SHAPES``.

    Landmarks are chosen one by one, each the table that is farthest from those before it (Gonzalez, Clustering to
    minimize the maximum intercluster distance, 1985): no table of the train part is then much farther from one than
    any other is.

    Args:
        train: the tables that count as known; at least one.
        validation: other tables, whose distances set the unit; at least one.
    """
    known = _points(train)
    # A quantity that hardly varied is measured in octaves.
    mean, scale = known.mean(axis=0), np.maximum(known.std(axis=0), _LEAST_SCALE)
    landmarks = _landmarks((known - mean) / scale)
    distances = nearest((_points(validation) - mean) / scale, landmarks)
    unit = max(float(np.quantile(distances, _ORDINARY)), _LEAST_UNIT)
    arrays = {"mean": mean, "scale": scale, "landmarks": landmarks, "unit": np.array([unit])}
    return {f"novelty.{name}": array.astype(np.float32) for name, array in arrays.items()}


def _points(rows: Sequence[ComputeMeasurement]) -> Floats:
    """Points of the distinct tables of measurements; [T, Q]."""
    return np.unique(np.concatenate([novelty_quantities(row.tables, row.batch_size) for row in rows]), axis=0)


def _landmarks(points: Floats) -> Floats:
    """At most ``MOST_LANDMARKS`` of the points, the first the one nearest to their mean; [T, Q] -> [L, Q]."""
    chosen = [int(np.argmin((points**2).sum(axis=1)))]
    distances = nearest(points, points[chosen])
    while len(chosen) < MOST_LANDMARKS and distances.max() > 0:
        chosen.append(int(np.argmax(distances)))
        distances = np.minimum(distances, nearest(points, points[chosen[-1:]]))
    return points[chosen]
