"""Quantiles of errors that hold for the next one too, as split conformal prediction has them."""

import numpy as np

from service.domain.error_law import QUANTILES, Floats, probabilities


def conformal_quantiles(errors: Floats) -> Floats:
    """Quantiles of a law of which N values were drawn, at ``probabilities(QUANTILES)``; [N] -> [QUANTILES], ascending.

    Ranks count the next error among the N (Vovk, Gammerman and Shafer, Algorithmic learning in a random world, 2005):
    the upper half is rounded outwards from ``p (N + 1)`` up, the lower half down, no further than the extremes.
    """
    count = len(errors)
    at = probabilities(QUANTILES)
    # Less than a rounding error is no rank more.
    rank = np.where(at < 0.5, np.floor(at * (count + 1) + 1e-9), np.ceil(at * (count + 1) - 1e-9))
    return np.asarray(np.sort(errors)[np.clip(rank, 1, count).astype(np.int64) - 1])
