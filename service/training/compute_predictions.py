"""What any compute model predicts for measured combinations, and how good that is."""

from collections.abc import Sequence

import numpy as np

from service.domain.measurements import ComputeMeasurement
from service.domain.ports import BACKWARD, FORWARD, ComputeCostModel, Floats
from service.training.metrics import Metrics, metrics


def predicted_costs(model: ComputeCostModel, measurements: Sequence[ComputeMeasurement]) -> Floats:
    """Forward and backward milliseconds of N combinations, N > 0; [N, 2]."""
    sums = [model.encode(row.tables, row.batch_size, row.optimizer).sum(axis=0) for row in measurements]
    return model.head(np.array(sums))


def measured_costs(measurements: Sequence[ComputeMeasurement]) -> Floats:
    """Forward and backward milliseconds of N combinations as they were measured; [N, 2]."""
    return np.array([[row.forward_ms, row.backward_ms] for row in measurements])


def metrics_on(model: ComputeCostModel, measurements: Sequence[ComputeMeasurement]) -> dict[str, Metrics]:
    """Metrics of the total, forward and backward of N combinations, N > 0."""
    predicted, measured = predicted_costs(model, measurements), measured_costs(measurements)
    return {
        "total": metrics(predicted.sum(axis=1), measured.sum(axis=1)),
        "forward": metrics(predicted[:, FORWARD], measured[:, FORWARD]),
        "backward": metrics(predicted[:, BACKWARD], measured[:, BACKWARD]),
    }
