"""Fits error laws to measurements of what a model was not trained on."""

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from service.cost_models.arrays import Arrays
from service.cost_models.error_model import QUANTILES, scales
from service.domain.ports import probabilities

Values = NDArray[np.float64]
Flags = NDArray[np.bool_]

_RIDGE = 4.0
"""Squared weight of a standardised feature counts as much as this many rows whose likelihood is e times lower."""

_CONSTANT = 1e-6


def fit_errors(ratios: Values, used: Flags, features: Values, novelty: Values) -> Arrays:
    """Arrays of ``service.cost_models.error_model.error_shapes``.

    A cost's scale is that of a Laplace law, by maximum likelihood with a ridge. Its quantiles are those of the
    standardised ratios, each moved outwards to the order statistic that bounds one more of their kind with at least
    that probability (Vovk, Gammerman and Shafer, Algorithmic learning in a random world, 2005). With too few rows for
    that they are the smallest and the largest.

    Args:
        ratios: ``log(measured / predicted)`` of K costs in N rows; [N, K].
        used: which of them count, one or more of each cost; [N, K].
        features: of each row; [N, F].
        novelty: of each row; [N].
    """
    costs = range(ratios.shape[1])
    fitted = [_scale_weights(ratios[used[:, k], k], features[used[:, k]], novelty[used[:, k]]) for k in costs]
    weights, by_novelty = np.array([w for w, _ in fitted]), np.array([n for _, n in fitted])
    standard = ratios / scales(features, novelty, weights, by_novelty)
    arrays = {
        "low": features.min(axis=0),
        "high": features.max(axis=0),
        "weights": weights,
        "novelty": by_novelty,
        "quantiles": np.array([conformal_quantiles(standard[used[:, k], k]) for k in costs]),
    }
    return {f"errors.{name}": array.astype(np.float32) for name, array in arrays.items()}


def conformal_quantiles(values: Values) -> Values:
    """Quantiles of a law of which N values were drawn, at ``probabilities(QUANTILES)``; [N] -> [QUANTILES]."""
    ascending, count = np.sort(values), len(values)
    at = probabilities(QUANTILES)
    # Order statistic k bounds a new value from above with probability k / (N + 1).
    rank = np.where(at < 0.5, np.floor(at * (count + 1)), np.ceil(at * (count + 1)))
    return np.asarray(ascending[np.clip(rank.astype(np.int64), 1, count) - 1])


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
