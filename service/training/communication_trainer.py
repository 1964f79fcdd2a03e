"""Fits the lines of the communication cost model."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from service.cost_models.communication import Line, exchanged_bytes
from service.domain.measurements import CommunicationMeasurement


def fit_lines(measurements: Sequence[CommunicationMeasurement]) -> tuple[Line, Line]:
    """Forward and backward lines of least relative error over all ranks of all measurements."""
    sizes = np.concatenate([exchanged_bytes(np.array(m.widths, dtype=float), m.batch_size) for m in measurements])
    forward = np.concatenate([m.forward_ms for m in measurements])
    backward = np.concatenate([m.backward_ms for m in measurements])
    return _fit(sizes, forward), _fit(sizes, backward)


def line_error(line: Line, measurements: Sequence[CommunicationMeasurement], backward: bool) -> float:
    """Mean absolute percentage error of a line, as a fraction."""
    sizes = np.concatenate([exchanged_bytes(np.array(m.widths, dtype=float), m.batch_size) for m in measurements])
    measured = np.concatenate([m.backward_ms if backward else m.forward_ms for m in measurements])
    predicted = line.latency_ms + line.ms_per_byte * sizes
    return float(np.abs(predicted / measured - 1.0).mean())


def _fit(sizes: NDArray[np.float64], times: NDArray[np.float64]) -> Line:
    """Weighted by 1 / time, so that relative error counts; neither part may be negative."""
    design = np.stack([np.ones_like(sizes), sizes / sizes.max()], axis=1) / times[:, None]
    (latency, slope), _ = nnls(design, np.ones_like(times))
    return Line(float(latency), float(slope / sizes.max()))
