"""Sittings of measuring, how much slower or faster the machine was in each, and measurements without that."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import numpy as np

from service.cost_models.compute import ComputeModel
from service.cost_models.features import FEATURES_VERSION
from service.domain.measurements import ComputeMeasurement, Split
from service.training.compute_dataset import measured_domain, measurements_dataset
from service.training.compute_evaluation import predict
from service.training.compute_trainer import ComputeTraining, train_compute

PAUSE = timedelta(minutes=5)
"""Measurements further apart than this are of two sittings."""

LEAST_TO_TELL = 50
"""Fewest train rows of a sitting whose factor is told from what it happened to draw."""

_ROUGH = ComputeTraining(epochs=40, table_hidden=9, embedding=3, head_hidden=6)
"""Small, so that it cannot learn by heart which combinations were measured when."""


@dataclass(frozen=True, slots=True)
class Sitting:
    """Measurements that were made one after the other.

    Attributes:
        began: time of the first one.
        ended: time of the last one.
        rows: how many there are.
        factor: what their times are relative to those of the newest sitting that is large enough.
    """

    began: datetime
    ended: datetime
    rows: int
    factor: float = 1.0

    def as_dict(self) -> dict[str, Any]:
        """For a manifest."""
        return {
            "began": self.began.isoformat(),
            "ended": self.ended.isoformat(),
            "rows": self.rows,
            "factor": self.factor,
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "Sitting":
        """The sitting of ``as_dict``."""
        times = {name: datetime.fromisoformat(content[name]) for name in ("began", "ended")}
        return cls(rows=content["rows"], factor=content["factor"], **times)


def sittings(rows: Sequence[ComputeMeasurement], config: ComputeTraining) -> list[Sitting]:
    """Sittings of measurements of one device, by time, with their factors.

    A machine that is shared may be some percent faster on one day than on another, alike for all combinations: taken
    for noise, that would hide in the prediction and in its error. A model of all train rows together errs by that
    factor, up or down, on those of each sitting; the median tells it. Only of combinations drawn at random: what models
    chose to measure is where they err, whatever the machine's pace.

    Args:
        rows: of all parts; of the test part only the times at which they were measured are looked at.
        config: of the training; that of the rough model is shorter.
    """
    found = _by_pauses(rows)
    train = [row for row in rows if row.split is Split.TRAIN and not row.chosen]
    positions = np.array([_position(found, row) for row in train])
    enough = [i for i in range(len(found)) if np.count_nonzero(positions == i) >= LEAST_TO_TELL]
    if len(enough) < 2:
        return found
    data = measurements_dataset(train)
    weights = train_compute(data, replace(_ROUGH, seed=config.seed, epochs=min(config.epochs, _ROUGH.epochs)))
    model = ComputeModel("rough", weights, FEATURES_VERSION, measured_domain(train))
    ratios = np.log(data.costs.sum(axis=1) / predict(model, data).sum(axis=1))
    medians = {i: float(np.median(ratios[positions == i])) for i in enough}
    newest = medians[enough[-1]]
    return [replace(s, factor=round(float(np.exp(medians.get(i, newest) - newest)), 4)) for i, s in enumerate(found)]


def without_factors(rows: Sequence[ComputeMeasurement], found: Sequence[Sitting]) -> list[ComputeMeasurement]:
    """The measurements as the newest sitting would have made them."""
    return [_divided(row, found[_position(found, row)].factor) for row in rows]


def _by_pauses(rows: Sequence[ComputeMeasurement]) -> list[Sitting]:
    times = sorted(row.measured_at for row in rows)
    cuts = [0, *(i for i, (one, next_one) in enumerate(pairwise(times), 1) if next_one - one > PAUSE), len(times)]
    return [Sitting(times[first], times[after - 1], after - first) for first, after in pairwise(cuts)]


def _position(found: Sequence[Sitting], row: ComputeMeasurement) -> int:
    """Position of the last sitting that had begun when a row was measured."""
    return max(0, sum(sitting.began <= row.measured_at for sitting in found) - 1)


def _divided(row: ComputeMeasurement, factor: float) -> ComputeMeasurement:
    return replace(row, forward_ms=row.forward_ms / factor, backward_ms=row.backward_ms / factor)
