"""Cost models of random weights, small but of the real form."""

from dataclasses import asdict

import numpy as np

from service.cost_models.arrays import Arrays
from service.cost_models.communication import FEATURE_NAMES as EXCHANGE_FEATURES
from service.cost_models.communication import CommunicationModel, MeasuredExchanges
from service.cost_models.compute import NOT_NEGATIVE, ComputeModel
from service.cost_models.features import FEATURES_VERSION, GROWING, WIDTH_NAMES, WORK
from service.cost_models.measured_domain import MeasuredDomain
from service.cost_models.novelty import QUANTITIES
from service.domain.error_law import QUANTILES

MEASURED = MeasuredDomain(
    (2048, 65536), (4, 128), (100, 12_000_000), (0.0, 190.0), ("sgd",), ("fp32",), ("sum",), (("sgd", "fp32"),)
)
FACTS = {"hardware": "cpu-x", "features_version": FEATURES_VERSION, "measured": asdict(MEASURED)}
EXCHANGES = MeasuredExchanges((2, 4, 8), (8,), (2048, 65536), (1_000, 100_000_000), (0.0, 200.0))
COMMUNICATION_FACTS = {"hardware": "cpu-x", "measured": asdict(EXCHANGES)}


def weights(seed: int = 0, costs: int = 2) -> Arrays:
    """Arrays of a model with 16 hidden units, embeddings of 8 and a head of 8."""
    rng = np.random.default_rng(seed)
    shapes = {
        "table.0.growing": (16, GROWING.stop),
        "table.0.free": (16, WORK.stop - GROWING.stop),
        "table.0.bias": (16,),
        "table.1.growing": (8 * len(WIDTH_NAMES), 16),
        "table.1.bias": (8 * len(WIDTH_NAMES),),
        "constant": (costs,),
        "additive": (costs, 8),
        "head.0.growing": (9, 8),
        "head.0.bias": (9,),
        "head.1.growing": (costs, 9),
        "head.1.bias": (costs,),
    }
    drawn = {name: (0.2 * rng.normal(size=shape)).astype(np.float32) for name, shape in shapes.items()}
    drawn |= {name: np.abs(drawn[name]) for name in NOT_NEGATIVE}
    mean, scale = np.full(WORK.stop, 5.0, dtype=np.float32), np.full(WORK.stop, 3.0, dtype=np.float32)
    return {**drawn, "feature_mean": mean, "feature_scale": scale, **novelty_arrays(), **error_arrays(9, 3)}


def novelty_arrays() -> Arrays:
    """Sixteen landmarks around 2 to the power of 7 in all quantities."""
    landmarks = np.random.default_rng(0).normal(size=(16, len(QUANTITIES))).astype(np.float32)
    mean, scale = np.full(len(QUANTITIES), 7.0, dtype=np.float32), np.full(len(QUANTITIES), 4.0, dtype=np.float32)
    unit = np.full(1, 1.5, dtype=np.float32)
    return {"novelty.mean": mean, "novelty.scale": scale, "novelty.landmarks": landmarks, "novelty.unit": unit}


def error_arrays(features: int, costs: int) -> Arrays:
    """Errors of a tenth, more where the first feature is large and for novel tables."""
    weights = np.zeros((costs, features), dtype=np.float32)
    weights[:, 0] = 0.1
    return {
        "errors.low": np.full(features, -2.0, dtype=np.float32),
        "errors.high": np.full(features, 10.0, dtype=np.float32),
        "errors.weights": weights,
        "errors.novelty": np.full(costs, 0.2, dtype=np.float32),
        "errors.quantiles": np.tile(np.linspace(-0.1, 0.15, QUANTILES, dtype=np.float32), (costs, 1)),
    }


def small_model() -> ComputeModel:
    """The model of ``weights()``."""
    return ComputeModel("cpu-x/compute/1", weights(), FEATURES_VERSION, MEASURED).with_errors(weights())


def exchange_weights(seed: int = 0, correction: float = 0.3) -> Arrays:
    """Arrays of a communication model with 8 and 6 hidden units; no correction leaves its physical part."""
    rng = np.random.default_rng(seed)
    features = len(EXCHANGE_FEATURES)
    shapes = {"device.weight": (8, features), "device.bias": (8,), "own.weight": (6, 8), "own.bias": (6,),
              "mean.weight": (6, 8), "most.weight": (6, 8), "out.bias": (2,)}  # fmt: skip
    drawn = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    drawn["out.weight"] = (correction * rng.normal(size=(2, 6))).astype(np.float32)
    drawn["out.bias"] *= correction
    return {
        **drawn,
        "base": np.array([[0.1, 5e-7, 1e-7, 1e-8], [0.2, 4e-7, 0.0, 1e-8]], dtype=np.float32),
        "feature_mean": np.full(features, 5.0, dtype=np.float32),
        "feature_scale": np.full(features, 3.0, dtype=np.float32),
        "feature_low": np.full(features, 0.0, dtype=np.float32),
        "feature_high": np.full(features, 20.0, dtype=np.float32),
        **error_arrays(6, 2),
    }


def small_communication(correction: float = 0.3) -> CommunicationModel:
    """The model of ``exchange_weights()``."""
    arrays = exchange_weights(correction=correction)
    return CommunicationModel("cpu-x/communication/1", arrays, EXCHANGES).with_errors(arrays)
