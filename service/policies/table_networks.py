"""What DreamShard's and AutoShard's networks have alike: two table MLPs, whose embeddings are summed over a device."""

from collections.abc import Sequence

import numpy as np

from service.cost_models.arrays import Arrays, Shapes, check_arrays
from service.domain.errors import DamagedArtifact
from service.domain.ports import Floats
from service.domain.tables import Table
from service.policies.networks import two_layers
from service.policies.table_features import POLICY_FEATURES_VERSION, policy_features


class TableNetworks:
    """The arrays of a version, ``cost.table`` and ``policy.table`` among them.

    Attributes:
        version: its name.
    """

    def __init__(self, version: str, weights: Arrays, features_version: int, shapes: Shapes) -> None:
        """Takes the arrays of these shapes.

        Raises:
            DamagedArtifact: an array is missing, misshapen, not finite or out of its range, or the version was trained
                on other features.
        """
        if features_version != POLICY_FEATURES_VERSION:
            raise DamagedArtifact(
                f"{version} was trained on policy features version {features_version}, this code makes version "
                f"{POLICY_FEATURES_VERSION}: train a new version"
            )
        check_arrays(version, weights, shapes)
        for name in ("feature_scale", "cost_unit_ms"):
            if not (weights[name] > 0).all():
                raise DamagedArtifact(
                    f"{version}: array {name} must be positive: restore the version or train a new one"
                )
        self.version = version
        self._w = {name: weights[name].astype(np.float64) for name in shapes}
        self._split = len(self._w["cost.table.1.bias"])

    def encode(self, tables: Sequence[Table], batch_size: int) -> Floats:
        """Embeddings of T tables (or slices) at a global batch size; [T, E + G]."""
        return self.embed(policy_features(tables, batch_size))

    def embed(self, features: Floats) -> Floats:
        """Embeddings of tables with these ``policy_features``, the cost network's first; [..., 21] -> [..., E + G]."""
        x = (features - self._w["feature_mean"]) / self._w["feature_scale"]
        return np.concatenate([two_layers(self._w, f"{net}.table", x) for net in ("cost", "policy")], axis=-1)
