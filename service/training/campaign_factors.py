"""How much slower or faster the machine was in one campaign than in another, and measurements without that."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from service.cost_models.compute import ComputeModel
from service.cost_models.features import FEATURES_VERSION
from service.domain.measurements import ComputeMeasurement, Split
from service.training.compute_dataset import measured_domain, measurements_dataset
from service.training.compute_evaluation import predict
from service.training.compute_trainer import ComputeTraining, train_compute

LEAST_TO_TELL = 50
"""Fewest train rows of a campaign whose factor is told from what it happened to draw."""

_ROUGH_EPOCHS = 40


def campaign_factors(rows: Sequence[ComputeMeasurement], config: ComputeTraining) -> dict[str, float]:
    """Time of each campaign's combinations relative to what they would take in the largest one.

    A machine that is shared, or that was moved to another host, may be 10% faster on one day than on the other, alike
    for all combinations: taken for noise, that would hide in the prediction and in its error. A model of all train rows
    together errs by that factor, up or down, on those of each campaign; the median tells it.

    Args:
        rows: of all parts; only the train and the validation part are looked at.
        config: of the training; that of the rough model is shorter.

    Returns:
        A factor for each campaign; 1.0 of the largest one, and of those too small to tell.
    """
    sizes = Counter(row.campaign for row in rows)
    reference = max(sorted(sizes), key=lambda name: sizes[name])
    train = [row for row in rows if row.split is Split.TRAIN]
    if set(sizes) == {reference}:
        return {reference: 1.0}
    data = measurements_dataset(train)
    validation = measurements_dataset([row for row in rows if row.split is Split.VALIDATION])
    weights = train_compute(data, validation, replace(config, epochs=min(config.epochs, _ROUGH_EPOCHS)))
    model = ComputeModel("rough", weights, FEATURES_VERSION, measured_domain(rows))
    ratios = np.log(data.costs.sum(axis=1) / predict(model, data).sum(axis=1))
    campaigns = np.array([row.campaign for row in train])
    base = np.median(ratios[campaigns == reference])
    factors = {name: ratios[campaigns == name] for name in sorted(sizes)}
    return {
        name: round(float(np.exp(np.median(found) - base)), 4) if len(found) >= LEAST_TO_TELL else 1.0
        for name, found in factors.items()
    }


def without_factors(rows: Sequence[ComputeMeasurement], factors: Mapping[str, float]) -> list[ComputeMeasurement]:
    """The measurements as the largest campaign would have made them."""
    return [_divided(row, factors[row.campaign]) for row in rows]


def _divided(row: ComputeMeasurement, factor: float) -> ComputeMeasurement:
    return replace(row, forward_ms=row.forward_ms / factor, backward_ms=row.backward_ms / factor)
