"""DreamShard's networks with random weights."""

import numpy as np
from numpy.typing import NDArray

from service.policies.dreamshard import DREAMSHARD_SHAPES, DreamShardNetworks
from service.policies.table_features import POLICY_FEATURES_VERSION


def random_arrays(seed: int, embedding: int = 6, policy_embedding: int = 5) -> dict[str, NDArray[np.float32]]:
    sizes = {"A": 9, "B": 8, "C": 7, "E": embedding, "G": policy_embedding, "P": 4, "Q": 3}
    generator = np.random.default_rng(seed)
    arrays = {
        name: generator.normal(size=[axis if isinstance(axis, int) else sizes[axis] for axis in axes])
        for name, axes in DREAMSHARD_SHAPES.items()
    }
    arrays["feature_scale"], arrays["cost_unit_ms"] = np.abs(arrays["feature_scale"]) + 10.0, np.array([3.0])
    return {name: array.astype(np.float32) for name, array in arrays.items()}


def random_networks(
    seed: int, embedding: int = 6, policy_embedding: int = 5, sharpness: float = 1.0
) -> DreamShardNetworks:
    """Logits of sharpness 1 differ by so much that hardly any other than the likeliest device is ever drawn."""
    arrays = random_arrays(seed, embedding, policy_embedding)
    arrays.update({name: np.float32(sharpness) * arrays[name] for name in arrays if name.startswith("policy.logit")})
    return DreamShardNetworks(f"random {seed}", arrays, POLICY_FEATURES_VERSION)
