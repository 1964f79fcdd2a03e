"""DreamShard's cost network and policy network (NeurIPS 2022), evaluated with numpy.

Both embed each table by an MLP, 21 -> 128 -> 32, and sum the embeddings over a device's tables. The cost network has
three heads, 32 -> 64 -> 1, for a device's forward compute, backward compute and backward exchange; a fourth, for the
whole plan, sees the maximum over the devices' sums in each coordinate. The policy network puts the three predicted
costs through an MLP, 3 -> 64 -> 32; one linear unit makes a device's logit of that and of the device's sum. It needs
no bias: the softmax over devices cancels it. Every reduction is a sum or a maximum, so both serve any number of
tables and devices. Unlike the authors', features are standardised by statistics that are stored with the weights.
"""

from collections.abc import Sequence

import numpy as np

from service.cost_models.arrays import Arrays, Shapes, check_arrays
from service.domain.errors import DamagedArtifact
from service.domain.plan import Algorithm
from service.domain.policy import Scorer, Seen
from service.domain.ports import Floats
from service.domain.tables import Table
from service.policies.networks import LOGIT_DECIMALS, Flags, two_layers
from service.policies.table_features import POLICY_FEATURE_NAMES, POLICY_FEATURES_VERSION, policy_features

COSTS = ("forward_compute", "backward_compute", "backward_exchange")
"""What the three heads predict, in the order of ``device_costs``."""

PLAN_COST = "plan_cost"
"""The head of the whole plan."""


def _two_layers(name: str, into: int | str, hidden: str, out: int | str) -> Shapes:
    return {
        f"{name}.0.weight": (hidden, into),
        f"{name}.0.bias": (hidden,),
        f"{name}.1.weight": (out, hidden),
        f"{name}.1.bias": (out,),
    }


DREAMSHARD_SHAPES: Shapes = {
    "feature_mean": (len(POLICY_FEATURE_NAMES),),
    "feature_scale": (len(POLICY_FEATURE_NAMES),),
    "cost_unit_ms": (1,),
    **_two_layers("cost.table", len(POLICY_FEATURE_NAMES), "A", "E"),
    **{key: axes for head in (*COSTS, PLAN_COST) for key, axes in _two_layers(f"cost.{head}", "E", "B", 1).items()},
    **_two_layers("policy.table", len(POLICY_FEATURE_NAMES), "C", "G"),
    **_two_layers("policy.costs", len(COSTS), "P", "Q"),
    "policy.logit.sums": ("G",),
    "policy.logit.costs": ("Q",),
}
"""Arrays of a version. E and G are the sizes of the two embeddings; heads answer in units of ``cost_unit_ms``."""


class DreamShardNetworks:
    """The two networks; what a device sums is both embeddings of its tables, E + G numbers."""

    algorithm = Algorithm.DREAMSHARD

    def __init__(self, version: str, weights: Arrays, features_version: int) -> None:
        """Takes the arrays of ``DREAMSHARD_SHAPES``.

        Raises:
            DamagedArtifact: an array is missing, misshapen, not finite or out of its range, or the version was trained
                on other features.
        """
        if features_version != POLICY_FEATURES_VERSION:
            raise DamagedArtifact(
                f"{version} was trained on policy features version {features_version}, this code makes version "
                f"{POLICY_FEATURES_VERSION}: train a new version"
            )
        check_arrays(version, weights, DREAMSHARD_SHAPES)
        for name in ("feature_scale", "cost_unit_ms"):
            if not (weights[name] > 0).all():
                raise DamagedArtifact(
                    f"{version}: array {name} must be positive: restore the version or train a new one"
                )
        self.version = version
        self._w = {name: weights[name].astype(np.float64) for name in DREAMSHARD_SHAPES}
        self._split = len(self._w["cost.table.1.bias"])

    def encode(self, tables: Sequence[Table], batch_size: int) -> Floats:
        """Embeddings of T tables (or slices) at a global batch size; [T, E + G]."""
        return self.embed(policy_features(tables, batch_size))

    def embed(self, features: Floats) -> Floats:
        """Embeddings of tables with these ``policy_features``, the cost network's first; [..., 21] -> [..., E + G]."""
        x = (features - self._w["feature_mean"]) / self._w["feature_scale"]
        return np.concatenate([two_layers(self._w, f"{net}.table", x) for net in ("cost", "policy")], axis=-1)

    def device_costs(self, sums: Floats) -> Floats:
        """Costs of devices by what they hold, see ``COSTS``, milliseconds; [..., E + G] -> [..., 3]."""
        return self._units(sums) * self._w["cost_unit_ms"]

    def single_costs(self, embeddings: Floats) -> Floats:
        """Costs of pieces alone, all three together, milliseconds; [S, E + G] -> [S]."""
        costs: Floats = self.device_costs(embeddings).sum(axis=-1)
        return costs

    def begin(self, episodes: int) -> Scorer:
        """Scores devices by what they hold alone."""
        return _Scorer(self)

    def plan_costs(self, sums: Floats, devices: Flags) -> Floats:
        """Costs of plans by what their devices hold, milliseconds; [..., D, E + G] and [..., D] -> [...].

        Args:
            sums: of embeddings.
            devices: which devices there are; the others are padding. At least one of each plan.
        """
        most = np.where(devices[..., None], sums[..., : self._split], -np.inf).max(axis=-2)
        return (two_layers(self._w, f"cost.{PLAN_COST}", most) * self._w["cost_unit_ms"])[..., 0]

    def slowest_devices(self, sums: Floats, devices: Flags) -> Floats:
        """Costs of the slowest devices of plans, all three together, milliseconds; arguments as ``plan_costs``."""
        found: Floats = np.where(devices, self.device_costs(sums).sum(axis=-1), -np.inf).max(axis=-1)
        return found

    def logits(self, sums: Floats) -> Floats:
        """Logits of devices by what they hold, rounded so that equal devices tie; [..., E + G] -> [...]."""
        costs = two_layers(self._w, "policy.costs", self._units(sums))
        found = sums[..., self._split :] @ self._w["policy.logit.sums"] + costs @ self._w["policy.logit.costs"]
        return np.round(found, LOGIT_DECIMALS)

    def _units(self, sums: Floats) -> Floats:
        heads = [two_layers(self._w, f"cost.{head}", sums[..., : self._split]) for head in COSTS]
        return np.concatenate(heads, axis=-1)


class _Scorer:
    """Scores again only those devices that took something since the last step."""

    def __init__(self, networks: DreamShardNetworks) -> None:
        self._networks = networks
        self._sums: Floats | None = None

    def logits(self, seen: Seen) -> Floats:
        if self._sums is None:
            self._logits = self._networks.logits(seen.sums)
        else:
            changed = (seen.sums != self._sums).any(axis=-1)
            self._logits[changed] = self._networks.logits(seen.sums[changed])
        self._sums = seen.sums.copy()
        return self._logits.copy()
