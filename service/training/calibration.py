"""Corrects the analytic compute model by a few measurements: coefficients of its terms, near the data sheet's."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from service.cost_models.analytic import AnalyticCompute
from service.cost_models.calibrated import COSTS, KINDS, terms_and_shares, work_by_kind
from service.domain.measurements import ComputeMeasurement
from service.domain.ports import Floats
from service.domain.tables import DataType, Optimizer
from service.training.compute_predictions import measured_costs
from service.training.conformal import conformal_quantiles
from service.training.intervals import with_total

Weights = dict[str, NDArray[np.float32]]

FOLDS = 5
"""Parts of the cross-validation that the law of the errors comes from."""

_HUBER = 0.15
"""Relative errors beyond this count as outliers of a noisy machine."""

_RIDGE = 0.03
"""Pulls the logarithm of a coefficient to 0: one of e costs as much as a measurement whose logarithm is off by 0.18."""

_KIND_RIDGE = 0.3
"""The same for what an optimizer, a precision or a pair of them adds to it: e costs as much as a measurement that is
off by a factor of 3. Stronger, since each has fewer rows."""

_STEPS = 1_000
"""Most steps of a fit; those of the measurements of ``cpu-fbgemm`` took up to 304."""

_EFFECTS = np.array(
    [
        [
            *(optimizer is other for other in Optimizer),
            *(data_type is other for other in DataType),
            *((optimizer, data_type) == other for other in KINDS),
        ]
        for optimizer, data_type in KINDS
    ],
    dtype=np.float64,
)
"""[KINDS, E] what a kind's coefficients are the sum of: its optimizer's, its precision's and its own part.

So a pair that was not measured has what was learnt of its optimizer and of its precision.
"""


def calibrate(analytic: AnalyticCompute, samples: Sequence[ComputeMeasurement], seed: int = 0) -> Weights:
    """Fits positive coefficients to N measurements, forward and backward apart.

    Minimises Huber's loss of ``log(predicted / measured)``, with a ridge that pulls the logarithms of the coefficients
    to 0, which is the data sheet. The law of the errors is that of a cross-validation, see ``conformal_quantiles``.

    Args:
        analytic: of the hardware that was measured.
        samples: N combinations, at least ``FOLDS``.
        seed: of the cross-validation's folds.

    Returns:
        Arrays of ``service.cost_models.calibrated.WEIGHT_SHAPES``.

    Raises:
        RuntimeError: the fit did not converge.
    """
    sums = _sums(analytic, samples)
    terms, shares = terms_and_shares(analytic, sums)
    effects = shares @ _EFFECTS
    fold = np.random.default_rng(seed).permutation(len(samples)) % FOLDS
    weights: Weights = {}
    measured = measured_costs(samples)
    held_out = np.zeros(measured.shape)
    for i, (cost, part) in enumerate(zip(COSTS, terms, strict=True)):
        log_costs = np.log(measured[:, i])
        common, added = _fit(part, effects, log_costs)
        weights[f"{cost}.common"] = common.astype(np.float32)
        weights[f"{cost}.kinds"] = (_EFFECTS @ added).astype(np.float32)
        for held in range(FOLDS):
            judged = fold == held
            found = _fit(part[~judged], effects[~judged], log_costs[~judged])
            held_out[judged, i] = np.exp(_log_cost(part[judged], effects[judged], *found))
    errors = np.log(with_total(measured) / with_total(held_out))
    weights["quantiles"] = np.array([conformal_quantiles(values) for values in errors.T], dtype=np.float32)
    return weights


def _sums(analytic: AnalyticCompute, samples: Sequence[ComputeMeasurement]) -> NDArray[np.float32]:
    return np.array([work_by_kind(analytic, m.tables, m.batch_size, m.optimizer).sum(axis=0) for m in samples])


def _fit(terms: Floats, effects: Floats, log_costs: Floats) -> tuple[Floats, Floats]:
    """Log coefficients [K] of [N, K] terms, and what each of [N, E] effects adds to them; [K], [E, K]."""
    shape = (1 + effects.shape[1], terms.shape[1])
    ridge = np.array([_RIDGE] + [_KIND_RIDGE] * effects.shape[1])[:, None]
    design = np.concatenate([np.ones((len(effects), 1)), effects], axis=1)

    def loss(flat: Floats) -> tuple[float, Floats]:
        logs = flat.reshape(shape)
        parts = terms * np.exp(design @ logs)
        predicted = parts.sum(axis=1)
        error = np.log(predicted) - log_costs
        slope = np.clip(error, -_HUBER, _HUBER)
        # Huber's loss: its derivative is the clipped error.
        value = float((slope * (error - slope / 2)).sum() + (ridge * logs**2).sum() / 2)
        return value, (design.T @ ((slope / predicted)[:, None] * parts) + ridge * logs).ravel()

    found = minimize(loss, np.zeros(shape).ravel(), jac=True, method="L-BFGS-B", options={"maxiter": _STEPS})
    if not found.success:
        raise RuntimeError(f"a calibration by {len(log_costs)} measurements did not converge: {found.message}")
    logs = found.x.reshape(shape)
    return logs[0], logs[1:]


def _log_cost(terms: Floats, effects: Floats, common: Floats, added: Floats) -> Floats:
    return np.asarray(np.log((terms * np.exp(common + effects @ added)).sum(axis=1)))
