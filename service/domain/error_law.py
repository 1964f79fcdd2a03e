"""Laws of the errors of predicted costs, and the intervals that follow from them."""

from dataclasses import dataclass
from functools import lru_cache
from math import log
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

LEVEL = 0.9
"""Probability that a measured cost is within the interval told with a predicted one."""

QUANTILES = 210
"""Quantiles of a fitted law, at (i + 1/2) / 210: the ends of a 90% interval, 5% and 95%, are two of them."""

_TAIL = 0.1
_HALVINGS = 30
_LARGEST_ERROR = log(1000.0)


def probabilities(count: int) -> Floats:
    """Probabilities spread evenly over (0, 1), (i + 1/2) / count; [count]."""
    return (np.arange(count) + 0.5) / count


@lru_cache(maxsize=16)
def normal_scores(count: int) -> Floats:
    """Values of a standard normal variable at ``probabilities(count)``; [count]."""
    return np.array([NormalDist().inv_cdf(at) for at in probabilities(count)])


@dataclass(frozen=True, slots=True, eq=False)
class ErrorLaw:
    """The law of ``log(measured / predicted)`` of D devices' costs of K kinds.

    Attributes:
        scales: what the standardised law is multiplied by, for each cost; [D, K], positive.
        quantiles: of the standardised law, at ``probabilities(Q)``; [K, Q], ascending.
        shared: what two devices' errors of one cost have in common in one step: the correlation of their normal scores.
    """

    scales: Floats
    quantiles: Floats
    shared: float

    def at(self, scores: Floats, cost: int) -> Floats:
        """Values of a cost's standardised law that are as improbable as these of a standard normal variable; [...].

        Beyond the outermost quantiles both tails go on exponentially, as those of a ratio with a power law do. Their
        slope against ``-log(1 - p)`` is the mean excess over the last tenth (Hill, A simple general approach to
        inference about the tail of a distribution, 1975).
        """
        return standard_values(self.quantiles[cost].tobytes(), scores)

    def factors(self, standard: Floats, cost: int) -> Floats:
        """Measured over predicted cost, where the standardised law takes these values; [..., D] -> [..., D].

        Factors of more than 1,000 say no more than that one does.
        """
        return np.exp(np.clip(standard * self.scales[:, cost], -_LARGEST_ERROR, _LARGEST_ERROR))

    def interval(self, costs: Floats, cost: int) -> tuple[Floats, Floats]:
        """Ends of the interval of each device's cost, widened to hold the predicted one; [D] -> [D] and [D]."""
        end = NormalDist().inv_cdf((1.0 + LEVEL) / 2)
        low, high = (costs * self.factors(np.full(costs.shape, value), cost) for value in self.at(_ends(end), cost))
        return np.minimum(low, costs), np.maximum(high, costs)


def standard_values(quantiles: bytes, scores: Floats) -> Floats:
    """``ErrorLaw.at`` of one cost's Q quantiles, as the bytes of their doubles; [...] -> [...]."""
    values = _values(quantiles)
    return np.asarray(np.interp(scores, _knots(len(values) - 2 * _HALVINGS), values))


def _ends(end: float) -> Floats:
    return np.array([-end, end])


def _tail(quantiles: Floats) -> Floats:
    """Values above the last of Q quantiles, where what is left of the probability is halved ever again."""
    count = max(round(_TAIL * len(quantiles)), 1)
    slope = (quantiles[-count:] - quantiles[-count - 1]).mean() if len(quantiles) > count else 0.0
    return np.asarray(quantiles[-1] + slope * log(2.0) * np.arange(1, _HALVINGS + 1))


@lru_cache(maxsize=256)
def _values(quantiles: bytes) -> Floats:
    """Q quantiles, by their bytes, between the values of both tails; [Q + 2 * _HALVINGS]."""
    inner = np.frombuffer(quantiles)
    return np.concatenate([-_tail(-inner[::-1])[::-1], inner, _tail(inner)])


@lru_cache(maxsize=16)
def _knots(count: int) -> Floats:
    """Normal scores of Q quantiles and of the values of ``_tail`` on either side; [Q + 2 * _HALVINGS]."""
    beyond = np.array([-NormalDist().inv_cdf(0.5 / count / 2**halvings) for halvings in range(1, _HALVINGS + 1)])
    return np.concatenate([-beyond[::-1], normal_scores(count), beyond])
