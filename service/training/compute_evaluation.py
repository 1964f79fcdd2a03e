"""Evaluates a compute model, as it will serve, on measurements."""

import numpy as np
from numpy.typing import NDArray

from service.cost_models.compute import ComputeModel
from service.training.compute_dataset import ComputeDataset
from service.training.metrics import Metrics, metrics


def predict(model: ComputeModel, data: ComputeDataset) -> NDArray[np.float64]:
    """Costs [N, K] of a dataset's combinations, by the numpy code that serves."""
    embeddings = model.embed(data.features[:-1])
    padded = np.concatenate([embeddings, np.zeros((1, embeddings.shape[1]), dtype=np.float32)])
    return model.head(padded[data.members].sum(axis=1))


def evaluate_compute(model: ComputeModel, data: ComputeDataset) -> dict[str, Metrics]:
    """Metrics of the total and, for two costs, of forward and backward apart."""
    predicted = predict(model, data)
    result = {"total": metrics(predicted.sum(axis=1), data.costs.sum(axis=1))}
    if data.costs.shape[1] == 2:
        result["forward"] = metrics(predicted[:, 0], data.costs[:, 0])
        result["backward"] = metrics(predicted[:, 1], data.costs[:, 1])
    return result
