"""Fits error laws to measurements of what a model was not trained on."""

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from service.cost_models.arrays import Arrays
from service.cost_models.error_model import scales
from service.training.conformal import conformal_quantiles

Values = NDArray[np.float64]
Flags = NDArray[np.bool_]
Positions = NDArray[np.intp]

FOLDS = 5
"""Parts of the rows, each standardised by the scale of the others."""

_RIDGE = 4.0
"""Squared weight of a standardised feature counts as much as this many rows whose likelihood is e times lower."""

_CONSTANT = 1e-6


def fit_errors(ratios: Values, used: Flags, features: Values, novelty: Values, groups: Positions) -> Arrays:
    """Arrays of ``service.cost_models.error_model.error_shapes``.

    A cost's scale is that of a Laplace law, by maximum likelihood with a ridge. Its quantiles are the
    ``conformal_quantiles`` of ratios that are each standardised by a scale fitted to the other folds: one that was
    fitted to a ratio itself would make it look smaller than the next one (cross-conformal prediction: Vovk,
    Cross-conformal predictors, 2015). The weights told are those of all.

    Args:
        ratios: ``log(measured / predicted)`` of K costs in N rows; [N, K].
        used: which of them count, ``FOLDS`` or more of each cost; [N, K].
        features: of each row; [N, F].
        novelty: of each row; [N].
        groups: a number for each row; rows of one number are in one fold, where there are ``FOLDS`` numbers or more;
            [N].
    """
    fitted = [
        _fit_one(ratios[kept, cost], features[kept], novelty[kept], groups[kept]) for cost, kept in enumerate(used.T)
    ]
    arrays = {
        "low": features.min(axis=0),
        "high": features.max(axis=0),
        "weights": np.array([weights for weights, _, _ in fitted]),
        "novelty": np.array([by_novelty for _, by_novelty, _ in fitted]),
        "quantiles": np.array([conformal_quantiles(standard) for _, _, standard in fitted]),
    }
    return {f"errors.{name}": array.astype(np.float32) for name, array in arrays.items()}


def _fit_one(ratios: Values, features: Values, novelty: Values, groups: Positions) -> tuple[Values, float, Values]:
    """Weights of one cost's scale, as of ``_scale_weights``, and its ratios standardised out of fold; [F], -, [N]."""
    fold, standard = _folds(groups), np.empty(len(ratios))
    for out in range(FOLDS):
        rest, judged = fold != out, fold == out
        weights, by_novelty = _scale_weights(ratios[rest], features[rest], novelty[rest])
        found = scales(features[judged], novelty[judged], weights[None], np.array([by_novelty]))
        standard[judged] = ratios[judged] / found[:, 0]
    return *_scale_weights(ratios, features, novelty), standard


def _folds(groups: Positions) -> Positions:
    """Fold of each row, all of one group in one; [N] -> [N]."""
    numbers, own = np.unique(groups, return_inverse=True)
    if len(numbers) < FOLDS:
        return np.arange(len(groups)) % FOLDS
    return np.asarray((np.random.default_rng(0).permutation(len(numbers)) % FOLDS)[own])


def _scale_weights(ratios: Values, features: Values, novelty: Values) -> tuple[Values, float]:
    """Weights of the features [F], and that of the novelty, not negative."""
    deviations = features.std(axis=0)
    varied = deviations > _CONSTANT
    standard = (features[:, varied] - features[:, varied].mean(axis=0)) / deviations[varied]
    known, beyond = np.minimum(novelty, 1.0), np.log(np.maximum(novelty, 1.0))
    size = np.maximum(np.abs(ratios - np.median(ratios)), _CONSTANT)
    inputs = np.column_stack([np.ones(len(ratios)), known, standard])
    ridge = np.full(inputs.shape[1], _RIDGE)
    ridge[0] = 0.0

    def loss(weights: Values) -> tuple[float, Values]:
        log_scale = inputs @ weights + beyond
        relative = size * np.exp(-log_scale)
        value = (relative + log_scale).sum() + ridge @ weights**2
        return float(value), inputs.T @ (1.0 - relative) + 2.0 * ridge * weights

    start = np.zeros(inputs.shape[1])
    start[0] = np.log(size.mean())
    bounds = [(None, None), (0.0, None), *[(None, None)] * standard.shape[1]]
    found = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds).x
    weights = np.zeros(features.shape[1])
    weights[varied] = found[2:] / deviations[varied]
    return weights, max(float(found[1]), 0.0)
