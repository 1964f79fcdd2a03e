"""AutoShard's networks with random weights."""

import numpy as np
from numpy.typing import NDArray

from service.policies.autoshard import AUTOSHARD_SHAPES, AutoShardNetworks
from service.policies.table_features import POLICY_FEATURES_VERSION

SIZES = {"A": 9, "B": 8, "C": 7, "E": 6, "G": 5, "Q": 3, "H": 8, "4H": 32, "3H": 24, "J": 7, "K": 6, "L": 5}


def autoshard_arrays(seed: int) -> dict[str, NDArray[np.float32]]:
    generator = np.random.default_rng(seed)
    arrays = {
        name: generator.normal(size=[axis if isinstance(axis, int) else SIZES[axis] for axis in axes])
        for name, axes in AUTOSHARD_SHAPES.items()
    }
    arrays["feature_scale"], arrays["cost_unit_ms"] = np.abs(arrays["feature_scale"]) + 10.0, np.array([3.0])
    return {name: array.astype(np.float32) for name, array in arrays.items()}


def autoshard_networks(seed: int) -> AutoShardNetworks:
    return AutoShardNetworks(f"random {seed}", autoshard_arrays(seed), POLICY_FEATURES_VERSION)
