"""DreamShard's networks against hand-computed values, and what holds for any weights."""

from collections.abc import Mapping

import numpy as np
import pytest
from numpy.typing import NDArray

from service.domain.errors import DamagedArtifact
from service.domain.tables import DataType, ReuseHistogram, Table
from service.policies.dreamshard import COSTS, DREAMSHARD_SHAPES, DreamShardNetworks
from service.policies.networks import drawn, log_probabilities
from service.policies.table_features import POLICY_FEATURE_NAMES, POLICY_FEATURES_VERSION, policy_features
from tests.policies.random_networks import random_arrays, random_networks

F = len(POLICY_FEATURE_NAMES)
Arrays = dict[str, NDArray[np.float32]]


def _layers(name: str, first: object, first_bias: object, second: object, second_bias: object) -> Arrays:
    values = {"0.weight": first, "0.bias": first_bias, "1.weight": second, "1.bias": second_bias}
    return {f"{name}.{key}": np.array(value, dtype=np.float32) for key, value in values.items()}


def _dim_and_pooling(dim: float, pooling: float) -> list[float]:
    row = [0.0] * F
    row[0], row[2] = dim, pooling
    return row


def _by_hand() -> DreamShardNetworks:
    """Costs see dim and pooling of each table, the policy sees dim alone; every head has one hidden unit."""
    sizes = [_dim_and_pooling(1, 0), _dim_and_pooling(0, 1)]
    mean, scale = np.zeros(F, dtype=np.float32), np.ones(F, dtype=np.float32)
    mean[0], scale[0] = 10.0, 2.0
    return DreamShardNetworks(
        "by hand",
        {
            "feature_mean": mean,
            "feature_scale": scale,
            "cost_unit_ms": np.array([10.0], dtype=np.float32),
            **_layers("cost.table", sizes, [0, 0], [[1, 0], [0, 1]], [0, 1]),
            **_layers("cost.forward_compute", [[1, 0]], [0], [[2]], [0]),
            **_layers("cost.backward_compute", [[0, 1]], [-2], [[3]], [1]),
            **_layers("cost.backward_exchange", [[1, 1]], [0], [[1]], [0]),
            **_layers("cost.plan_cost", [[1, 2]], [0], [[1]], [0]),
            **_layers("policy.table", [sizes[0]], [0], [[1]], [0]),
            **_layers("policy.costs", [[1, 1, 1]], [-20], [[1]], [0]),
            "policy.logit.sums": np.array([-1.0], dtype=np.float32),
            "policy.logit.costs": np.array([-0.5], dtype=np.float32),
        },
        POLICY_FEATURES_VERSION,
    )


def test_values_are_those_computed_by_hand() -> None:
    networks = _by_hand()
    # Standardised dims are 3, 1 and -2, the last of which ReLU makes 0; a table's second number is 1 + pooling.
    embeddings = networks.embed(np.array([_dim_and_pooling(16, 4), _dim_and_pooling(12, 0), _dim_and_pooling(6, 2)]))
    assert embeddings.tolist() == [[3, 5, 3], [1, 1, 1], [0, 3, 0]]
    sums = np.stack([embeddings[0], embeddings[1] + embeddings[2], np.zeros(3)])
    # Device 0 holds (3, 5): 2 * 3, 3 * (5 - 2) + 1, 3 + 5, in units of 10 ms. Device 1 holds (1, 4).
    assert networks.device_costs(sums).tolist() == [[60, 100, 80], [20, 70, 50], [0, 10, 0]]
    # The costs, 24, 14 and 1 units, beyond 20: 4, 0 and 0.
    assert networks.logits(sums).tolist() == [-3 - 0.5 * 4, -1, 0]
    # The maximum in each coordinate is (3, 5): 3 + 2 * 5 units.
    everywhere = np.ones(3, dtype=np.bool_)
    assert networks.slowest_devices(sums, everywhere) == 60 + 100 + 80
    assert networks.slowest_devices(sums[None], np.array([[False, True, True]])).tolist() == [20 + 70 + 50]
    assert networks.plan_costs(sums, everywhere) == 130
    assert networks.plan_costs(sums[None], np.array([[False, True, True]])).tolist() == [10 * (1 + 2 * 4)]


def test_maximum_is_of_each_coordinate_and_padding_is_not_an_empty_device() -> None:
    sums = np.array([[3.0, 1.0, 0.0], [1.0, 5.0, 0.0]])
    assert _by_hand().plan_costs(sums, np.array([True, True])) == 10 * (3 + 2 * 5)
    below = -sums
    padded = np.concatenate([below, np.zeros((1, 3))])
    networks, there = random_networks(0, embedding=2, policy_embedding=1), np.array([True, True, False])
    assert networks.plan_costs(padded, there) == networks.plan_costs(below, there[:2])
    assert networks.plan_costs(padded, np.ones(3, dtype=np.bool_)) != networks.plan_costs(padded, there)


@pytest.mark.parametrize("seed", range(5))
def test_permuting_devices_permutes_what_is_said_of_each_and_leaves_the_plan_cost(seed: int) -> None:
    networks, generator = random_networks(seed), np.random.default_rng(seed)
    sums, devices = generator.normal(size=(4, 7, 11)), generator.random((4, 7)) < 0.7
    devices[:, 0] = True
    order = generator.permutation(7)
    assert networks.logits(sums[:, order]).tolist() == networks.logits(sums)[:, order].tolist()
    assert np.allclose(networks.device_costs(sums[:, order]), networks.device_costs(sums)[:, order], atol=1e-12)
    assert np.allclose(networks.plan_costs(sums[:, order], devices[:, order]), networks.plan_costs(sums, devices))


def test_any_numbers_of_devices_and_episodes_are_taken() -> None:
    networks = random_networks(1)
    for shape in [(11,), (1, 11), (2, 64, 11), (3, 2, 5, 11)]:
        sums = np.zeros(shape)
        assert networks.logits(sums).shape == shape[:-1]
        assert networks.device_costs(sums).shape == (*shape[:-1], len(COSTS))
    assert networks.plan_costs(np.zeros((3, 2, 5, 11)), np.ones((3, 2, 5), dtype=np.bool_)).shape == (3, 2)


def test_features_are_dim_rows_pooling_size_and_the_histogram() -> None:
    fractions = (0.75, 0.25, *[0.0] * 15)
    known = Table("known", 1 << 20, 16, 2.0, data_type=DataType.FP16, reuse_histogram=ReuseHistogram(4096, fractions))
    found = policy_features([known, Table("idle", 8, 4, 0.0)], 4096)
    assert found.shape == (2, 21)
    assert found[0].tolist() == pytest.approx([16, 20, 2.0, 25, *fractions])
    assert found[1].tolist() == [4, 3, 0.0, 7, *[0.0] * 17]
    assert policy_features([], 4096).shape == (0, 21)


def test_the_histogram_is_that_of_the_planned_batch() -> None:
    often = Table("often", 1000, 16, 4.0, reuse_histogram=ReuseHistogram(1024, (0.0, 0.0, 0.0, 1.0, *[0.0] * 13)))
    at_once, thinned = policy_features([often], 1024)[0], policy_features([often], 64)[0]
    assert (at_once[4], at_once[7]) == (0.0, 1.0)
    assert thinned[4] > 0.5


def test_probabilities_are_of_the_legal_devices_alone() -> None:
    logits = np.array([[0.0, 5.0, np.log(3.0)], [1000.0, 1000.0, -1000.0], [1.0, 2.0, 3.0]])
    legal = np.array([[True, False, True], [True, True, True], [False, False, False]])
    found = np.exp(log_probabilities(logits, legal))
    assert found == pytest.approx(np.array([[0.25, 0.0, 0.75], [0.5, 0.5, 0.0], [0.0, 0.0, 0.0]]))


def test_devices_are_drawn_as_often_as_they_are_probable_and_never_where_illegal() -> None:
    logits = np.tile([0.0, 9.0, np.log(3.0)], (20_000, 1))
    chosen = drawn(logits, np.tile([True, False, True], (20_000, 1)), np.random.default_rng(0))
    assert set(chosen.tolist()) == {0, 2}
    assert (chosen == 2).mean() == pytest.approx(0.75, abs=0.015)


def _refused(arrays: Mapping[str, NDArray[np.float32]], says: str, version: int = POLICY_FEATURES_VERSION) -> None:
    with pytest.raises(DamagedArtifact, match=says):
        DreamShardNetworks("damaged", arrays, version)


def test_damaged_versions_are_refused() -> None:
    arrays = random_arrays(0)
    assert set(arrays) == set(DREAMSHARD_SHAPES)
    DreamShardNetworks("whole", arrays, POLICY_FEATURES_VERSION)
    _refused({name: array for name, array in arrays.items() if name != "policy.logit.sums"}, "logit.sums is missing")
    _refused({**arrays, "policy.logit.costs": np.zeros(4, dtype=np.float32)}, "logit.costs is of shape")
    _refused({**arrays, "cost_unit_ms": np.zeros(1, dtype=np.float32)}, "cost_unit_ms must be positive")
    _refused({**arrays, "feature_scale": -arrays["feature_scale"]}, "feature_scale must be positive")
    _refused({**arrays, "feature_mean": np.full(F, np.nan, dtype=np.float32)}, "not finite")
    _refused(arrays, "policy features version 0", version=0)
