"""AutoShard's cost model and policy network (KDD 2022), evaluated with numpy.

Each has its own table MLP, 21 -> 128 -> 32, and sums the embeddings over a device's tables. The cost model's head,
32 -> 64 -> 1, predicts a device's compute, forward and backward together. The policy's state is a two-layer LSTM over
the steps of an episode, which takes the next piece's embedding and, through 1 -> 32, the fraction already placed. A
device is its sum and, through 2 -> 32, its predicted cost and its memory. A device's logit is an MLP of
[state, device, state * device], 192 -> 128 -> 128 -> 64 -> 1.

So that a policy serves other numbers of tables and devices than it was trained on, what grows with them is taken by
proportion: see ``relative_costs`` and ``mean_count``. docs/methods/autoshard.md says why.
"""

from collections.abc import Sequence

import numpy as np

from service.cost_models.arrays import Arrays, Shapes, check_arrays
from service.domain.errors import DamagedArtifact
from service.domain.plan import Algorithm
from service.domain.policy import Scorer, Seen
from service.domain.ports import Floats
from service.domain.tables import Table
from service.policies.networks import LOGIT_DECIMALS, Flags, layers, linear, lstm_cell, two_layers
from service.policies.table_features import POLICY_FEATURE_NAMES, POLICY_FEATURES_VERSION, policy_features

LSTM_LAYERS, LOGIT_LAYERS = 2, 4

COST_BATCH = 65_536
"""Samples that the cost model's costs are of, whatever the batch of a task: a policy compares costs within a task, and
costs of small batches would count for nothing beside those of large ones."""

LEAST_SHARE = 0.01
"""Of the mean device, what a piece counts as at least where costs are compared with its own."""

MOST_PIECES = 4.0
"""By how many pieces like the next one a device may seem dearer or cheaper than the mean."""


def _layer(name: str, into: int | str, out: int | str) -> Shapes:
    return {f"{name}.weight": (out, into), f"{name}.bias": (out,)}


AUTOSHARD_SHAPES: Shapes = {
    "feature_mean": (len(POLICY_FEATURE_NAMES),),
    "feature_scale": (len(POLICY_FEATURE_NAMES),),
    "cost_unit_ms": (1,),
    **_layer("cost.table.0", len(POLICY_FEATURE_NAMES), "A"),
    **_layer("cost.table.1", "A", "E"),
    **_layer("cost.head.0", "E", "B"),
    **_layer("cost.head.1", "B", 1),
    **_layer("policy.table.0", len(POLICY_FEATURE_NAMES), "C"),
    **_layer("policy.table.1", "C", "G"),
    **_layer("policy.placed", 1, "Q"),
    **_layer("policy.device", 2, "Q"),
    **{
        f"policy.lstm.{layer}.{name}": axes
        for layer in range(LSTM_LAYERS)
        for name, axes in {"input": ("4H", "H"), "hidden": ("4H", "H"), "bias": ("4H",)}.items()
    },
    **_layer("policy.logit.0", "3H", "J"),
    **_layer("policy.logit.1", "J", "K"),
    **_layer("policy.logit.2", "K", "L"),
    **_layer("policy.logit.3", "L", 1),
}
"""Arrays of a version. E and G are the sizes of the two embeddings, H = G + Q that of the state and of a device; the
cost model answers in units of ``cost_unit_ms``. Values of states serve training alone and are not among them."""


class AutoShardNetworks:
    """The two networks; what a device sums is both embeddings of its tables, E + G numbers."""

    algorithm = Algorithm.AUTOSHARD

    def __init__(self, version: str, weights: Arrays, features_version: int) -> None:
        """Takes the arrays of ``AUTOSHARD_SHAPES``.

        Raises:
            DamagedArtifact: an array is missing, misshapen, not finite or out of its range, or the version was trained
                on other features.
        """
        if features_version != POLICY_FEATURES_VERSION:
            raise DamagedArtifact(
                f"{version} was trained on policy features version {features_version}, this code makes version "
                f"{POLICY_FEATURES_VERSION}: train a new version"
            )
        check_arrays(version, weights, AUTOSHARD_SHAPES)
        for name in ("feature_scale", "cost_unit_ms"):
            if not (weights[name] > 0).all():
                raise DamagedArtifact(
                    f"{version}: array {name} must be positive: restore the version or train a new one"
                )
        _check_sizes(version, weights)
        self.version = version
        self._w = {name: weights[name].astype(np.float64) for name in AUTOSHARD_SHAPES}
        self._split = len(self._w["cost.table.1.bias"])

    def encode(self, tables: Sequence[Table], batch_size: int) -> Floats:
        """Embeddings of T tables (or slices) at a global batch size; [T, E + G]."""
        return self.embed(policy_features(tables, batch_size))

    def embed(self, features: Floats) -> Floats:
        """Embeddings of tables with these ``policy_features``, the cost model's first; [..., 21] -> [..., E + G]."""
        x = (features - self._w["feature_mean"]) / self._w["feature_scale"]
        return np.concatenate([two_layers(self._w, f"{net}.table", x) for net in ("cost", "policy")], axis=-1)

    def device_costs(self, sums: Floats) -> Floats:
        """Compute of devices by what they hold, milliseconds for ``COST_BATCH`` samples; [..., E + G] -> [...]."""
        costs: Floats = self._units(sums) * self._w["cost_unit_ms"]
        return costs

    def single_costs(self, embeddings: Floats) -> Floats:
        """Compute of pieces alone, milliseconds for ``COST_BATCH`` samples; [S, E + G] -> [S]."""
        return self.device_costs(embeddings)

    def begin(self, episodes: int) -> "AutoShardScorer":
        """Scores devices for so many new episodes, of which it remembers what the LSTM does."""
        return AutoShardScorer(self, episodes)

    @property
    def state_size(self) -> int:
        """Size of a state, H."""
        return int(self._w["policy.lstm.0.hidden"].shape[1])

    def advance(self, seen: Seen, state: Floats) -> Floats:
        """The LSTM's state after it has seen the next pieces, [2, 2, B, H]: by layer, the hidden state and the cell."""
        placed = linear(self._w, "policy.placed", seen.placed[:, None])
        x, after = np.concatenate([seen.pieces[:, self._split :], placed], axis=-1), []
        for layer in range(LSTM_LAYERS):
            x, cell = lstm_cell(self._w, f"policy.lstm.{layer}", x, *state[layer])
            after.append((x, cell))
        return np.array(after)

    def logits(self, seen: Seen, state: Floats, steps: int) -> Floats:
        """Logits of devices, rounded so that equal devices tie; [B, D].

        Args:
            seen: B episodes.
            state: that of the last layer; [B, H].
            steps: that were done before this one.
        """
        costs = relative_costs(self._units(seen.sums), self._units(seen.pieces), seen.devices)
        features = linear(self._w, "policy.device", np.stack([costs, seen.used], axis=-1))
        held = seen.sums[..., self._split :] / mean_count(steps, seen.devices)[:, None, None]
        device = np.concatenate([held, features], axis=-1)
        there = np.broadcast_to(state[:, None], device.shape)
        found = layers(self._w, "policy.logit", LOGIT_LAYERS, np.concatenate([there, device, there * device], axis=-1))
        return np.round(found[..., 0], LOGIT_DECIMALS)

    def _units(self, sums: Floats) -> Floats:
        return two_layers(self._w, "cost.head", sums[..., : self._split])[..., 0]


class AutoShardScorer(Scorer):
    """Carries the LSTM through B episodes in lock step.

    Attributes:
        state: before the next step; [2, 2, B, H]: by layer, the hidden state and the cell.
    """

    def __init__(self, networks: AutoShardNetworks, episodes: int) -> None:
        self._networks = networks
        self._steps = 0
        self.state: Floats = np.zeros((LSTM_LAYERS, 2, episodes, networks.state_size))

    def logits(self, seen: Seen) -> Floats:
        """Logits of devices for the next pieces; [B, D]."""
        self.state = self._networks.advance(seen, self.state)
        self._steps += 1
        return self._networks.logits(seen, self.state[-1, 0], self._steps - 1)


def relative_costs(costs: Floats, piece: Floats, devices: Flags) -> Floats:
    """By how many pieces like the next one devices are dearer than their mean, softly limited; [B, D].

    Pieces come by descending cost, so devices of a good placement differ by about one: with 20 tables as with 300.

    Args:
        costs: of devices; [B, D].
        piece: cost of the next piece alone; [B].
        devices: which devices there are; [B, D].
    """
    mean = np.where(devices, costs, 0.0).sum(axis=-1) / devices.sum(axis=-1)
    unit = np.maximum(np.maximum(piece, LEAST_SHARE * mean), LEAST_SHARE)
    found: Floats = MOST_PIECES * np.tanh((costs - mean[:, None]) / (MOST_PIECES * unit[:, None]))
    return found


def mean_count(steps: int, devices: Flags) -> Floats:
    """Pieces that a device holds on average after so many steps, at least 1; [B, D] -> [B]."""
    found: Floats = np.maximum(steps / devices.sum(axis=-1), 1.0)
    return found


def _check_sizes(version: str, weights: Arrays) -> None:
    """What shapes alone do not say: sizes that are sums or multiples of others."""
    size = weights["policy.lstm.0.hidden"].shape[1]
    device = len(weights["policy.table.1.bias"]) + len(weights["policy.device.bias"])
    for name, found, wanted in (
        ("policy.lstm.0.bias", len(weights["policy.lstm.0.bias"]), 4 * size),
        ("policy.logit.0.weight", weights["policy.logit.0.weight"].shape[1], 3 * size),
        ("policy.table.1.bias with policy.device.bias", device, size),
    ):
        if found != wanted:
            raise DamagedArtifact(
                f"{version}: array {name} is of size {found}, expected {wanted} for states of size {size}: restore the "
                "version or train a new one"
            )
