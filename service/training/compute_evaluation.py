"""What a compute model, as it will serve, predicts for a dataset; for measurements see ``compute_predictions``."""

import numpy as np
from numpy.typing import NDArray

from service.cost_models.compute import ComputeModel
from service.training.compute_dataset import ComputeDataset


def predict(model: ComputeModel, data: ComputeDataset) -> NDArray[np.float64]:
    """Costs [N, K] of a dataset's combinations, by the numpy code that serves."""
    embeddings = model.embed(data.features[:-1])
    padded = np.concatenate([embeddings, np.zeros((1, embeddings.shape[1]), dtype=np.float32)])
    return model.head(padded[data.members].sum(axis=1))
