"""How good predictions are, against what was measured."""

from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import kendalltau

Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Metrics:
    """Quality on one set of measurements.

    Attributes:
        rows: measurements.
        mse: mean squared error, milliseconds squared.
        mape: mean absolute percentage error, as a fraction.
        median_ape: median absolute percentage error, as a fraction.
        tau: Kendall's rank correlation.
    """

    rows: int
    mse: float
    mape: float
    median_ape: float
    tau: float

    def as_dict(self) -> dict[str, float]:
        """Rounded numbers, for a manifest."""
        return {name: round(value, 5) for name, value in asdict(self).items()}


def can_be_ranked(predicted: Values, measured: Values) -> bool:
    """Whether Kendall's tau of two [N] is defined: neither is all alike, or a single value, or none."""
    return min(len(np.unique(predicted)), len(np.unique(measured))) > 1


def metrics(predicted: Values, measured: Values) -> Metrics:
    """Metrics of N predictions in milliseconds; [N] and [N], measured all positive.

    Kendall's tau is not a number where they cannot be ranked, see ``can_be_ranked``.
    """
    error = np.abs(predicted / measured - 1.0)
    tau = float(kendalltau(predicted, measured).statistic)
    mse = float(np.mean((predicted - measured) ** 2))
    return Metrics(len(measured), mse, float(error.mean()), float(np.median(error)), tau)
