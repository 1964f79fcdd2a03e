"""A compute model of random weights, small but of the real form."""

from dataclasses import asdict

import numpy as np

from service.cost_models.compute import Arrays, ComputeModel, MeasuredDomain
from service.cost_models.features import FEATURE_NAMES, FEATURES_VERSION

MEASURED = MeasuredDomain((2048, 65536), (4, 128), (100, 12_000_000), (0.0, 190.0), ("sgd",), ("fp32",), ("sum",))
FACTS = {"hardware": "cpu-x", "features_version": FEATURES_VERSION, "measured": asdict(MEASURED)}
COMMUNICATION_FACTS = {"hardware": "cpu-x", "data": {"ranks": [2]}}
LINES = {"forward": np.array([0.1, 5e-7], dtype=np.float32), "backward": np.array([0.2, 4e-7], dtype=np.float32)}


def weights(seed: int = 0, costs: int = 2) -> Arrays:
    """Arrays of a model with 16 hidden units, embeddings of 8 and a head of 8."""
    rng = np.random.default_rng(seed)
    features = len(FEATURE_NAMES)
    shapes = {
        "table.0.weight": (16, features),
        "table.0.bias": (16,),
        "table.2.weight": (8, 16),
        "table.2.bias": (8,),
        "head.0.weight": (8, 8),
        "head.0.bias": (8,),
        "head.2.weight": (costs, 8),
        "head.2.bias": (costs,),
    }
    drawn = {name: (0.1 * rng.normal(size=shape)).astype(np.float32) for name, shape in shapes.items()}
    mean, scale = np.full(features, 5.0, dtype=np.float32), np.full(features, 3.0, dtype=np.float32)
    return {**drawn, "feature_mean": mean, "feature_scale": scale}


def small_model() -> ComputeModel:
    """The model of ``weights()``."""
    return ComputeModel("cpu-x/compute/1", weights(), FEATURES_VERSION, MEASURED)
