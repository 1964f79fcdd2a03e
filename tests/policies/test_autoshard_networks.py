"""AutoShard's networks against hand-computed values, and what holds for any weights."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from service.domain.errors import DamagedArtifact
from service.domain.policy import Seen
from service.domain.tables import Table
from service.policies.autoshard import (
    AUTOSHARD_SHAPES,
    AutoShardNetworks,
    mean_count,
    relative_costs,
)
from service.policies.networks import lstm_cell
from service.policies.table_features import POLICY_FEATURE_NAMES, POLICY_FEATURES_VERSION
from tests.policies.random_autoshard import SIZES, autoshard_arrays, autoshard_networks

Arrays = dict[str, NDArray[np.float32]]

F, N = len(POLICY_FEATURE_NAMES), SIZES["E"] + SIZES["G"]


def _sigmoid(x: float) -> float:
    return float(1 / (1 + np.exp(-x)))


def _seen(generator: np.random.Generator, episodes: int, devices: int) -> Seen:
    there = generator.random((episodes, devices)) < 0.7
    there[:, 0] = True
    return Seen(
        generator.normal(size=(episodes, N)),
        generator.random(episodes),
        generator.normal(size=(episodes, devices, N)) * there[..., None],
        generator.random((episodes, devices)) * there,
        there,
    )


def _by_hand() -> AutoShardNetworks:
    """Sizes of 1 throughout, but for a state of 2; costs are dim + 1, the policy embeds the pooling factor."""
    sizes = dict.fromkeys(SIZES, 1) | {"H": 2, "4H": 8, "3H": 6}
    arrays = {
        name: np.zeros([axis if isinstance(axis, int) else sizes[axis] for axis in axes], dtype=np.float32)
        for name, axes in AUTOSHARD_SHAPES.items()
    }
    ones = ("cost.table.1", "cost.head.0", "cost.head.1", "policy.table.1", "policy.placed", "policy.logit.1")
    for name in (*(f"{one}.weight" for one in ones), "policy.logit.2.weight", "policy.logit.3.weight", "feature_scale"):
        arrays[name][:] = 1.0
    arrays["cost_unit_ms"][:] = 10.0
    arrays["cost.table.0.weight"][0, 0] = arrays["policy.table.0.weight"][0, 2] = 1.0
    arrays["cost.head.1.bias"][:] = 1.0
    # The LSTM's first layer: new content is what the piece brings, the gates are half open; the second: of the first.
    for layer in range(2):
        arrays[f"policy.lstm.{layer}.input"][4:6] = np.eye(2)
    arrays["policy.device.weight"][:] = [[0.5, 2.0]]
    arrays["policy.logit.0.weight"][:] = [[0.0, 1.0, -1.0, 1.0, 0.0, 3.0]]
    arrays["policy.logit.0.bias"][:] = 20.0
    return AutoShardNetworks("by hand", arrays, POLICY_FEATURES_VERSION)


def _features(dim: float, pooling: float) -> list[float]:
    row = [0.0] * F
    row[0], row[2] = dim, pooling
    return row


def test_values_are_those_computed_by_hand() -> None:
    networks = _by_hand()
    embeddings = networks.embed(np.array([_features(3, 0.5), _features(1, 2), _features(0, 1)]))
    assert embeddings.tolist() == [[3, 0.5], [1, 2], [0, 1]]
    assert networks.single_costs(embeddings).tolist() == [40, 20, 10]
    # One device holds the first table, the other one nothing, a third is padding; the second table is next.
    used, devices = np.array([[0.25, 0.0, 0.0]]), np.array([[True, True, False]])
    sums = np.stack([embeddings[0], np.zeros(2), np.zeros(2)])[None]
    first = Seen(embeddings[[0]], np.array([0.0]), np.zeros((1, 3, 2)), np.zeros((1, 3)), devices)
    seen = Seen(embeddings[[1]], np.array([1 / 3]), sums, used, devices)
    scorer = networks.begin(1)
    scorer.logits(first)
    found = scorer.logits(seen)
    state, cells = [], [[0.0, 0.0], [0.0, 0.0]]
    for piece in ([0.5, 0.0], [2.0, 1 / 3]):
        x = piece
        for layer in range(2):
            cells[layer] = [0.5 * cell + 0.5 * np.tanh(into) for cell, into in zip(cells[layer], x, strict=True)]
            x = [0.5 * np.tanh(cell) for cell in cells[layer]]
        state = x
    # Costs in units are 4 and 1, the mean 2.5, the next piece 2: 0.75 pieces more and less than the mean.
    for device, (cost, memory, pooling) in enumerate([(0.75, 0.25, 0.5), (-0.75, 0.0, 0.0)]):
        feature = 0.5 * 4 * np.tanh(cost / 4) + 2 * memory
        wanted = 20 + state[1] - pooling + feature + 3 * state[1] * feature
        assert found[0, device] == pytest.approx(wanted, abs=1e-6)


def test_lstm_cell_is_that_computed_by_hand() -> None:
    weights = {
        "it.input": np.array([[1.0], [0.5], [-1.0], [2.0]]),
        "it.hidden": np.array([[0.1], [0.2], [0.3], [0.4]]),
        "it.bias": np.array([0.0, 1.0, 0.5, -0.5]),
    }
    hidden, cell = lstm_cell(weights, "it", np.array([[2.0]]), np.array([[-1.0]]), np.array([[0.7]]))
    after = _sigmoid(1.8) * 0.7 + _sigmoid(1.9) * np.tanh(-1.8)
    assert cell == pytest.approx(np.array([[after]]))
    assert hidden == pytest.approx(np.array([[_sigmoid(3.1) * np.tanh(after)]]))
    far, _ = lstm_cell(weights, "it", np.array([[-1e6]]), np.zeros((1, 1)), np.zeros((1, 1)))
    assert np.isfinite(far).all()


def test_costs_are_compared_in_pieces_like_the_next_among_the_devices_there_are() -> None:
    costs, devices = np.array([[6.0, 2.0, 50.0]]), np.array([[True, True, False]])
    found = relative_costs(costs, np.array([1.0]), devices)
    assert found[0, :2] == pytest.approx([4 * np.tanh(0.5), -4 * np.tanh(0.5)])
    # The same at a thousand times the cost; and a piece of no cost does not make every difference infinite.
    assert relative_costs(1000 * costs, np.array([1000.0]), devices) == pytest.approx(found)
    tiny = relative_costs(np.array([[4.01, 3.99]]), np.array([-1.0]), np.array([[True, True]]))
    assert tiny[0] == pytest.approx([4 * np.tanh(0.0625), -4 * np.tanh(0.0625)])


def test_sums_are_divided_by_the_pieces_that_a_device_holds_on_average() -> None:
    devices = np.array([[True] * 4, [True, True, False, False]])
    assert mean_count(0, devices).tolist() == [1, 1]
    assert mean_count(6, devices).tolist() == [1.5, 3]


@pytest.mark.parametrize("seed", range(5))
def test_permuting_devices_permutes_the_logits(seed: int) -> None:
    networks, generator = autoshard_networks(seed), np.random.default_rng(seed)
    one, other = networks.begin(3), networks.begin(3)
    order = generator.permutation(7)
    for _ in range(4):
        seen = _seen(generator, 3, 7)
        turned = replace(seen, sums=seen.sums[:, order], used=seen.used[:, order], devices=seen.devices[:, order])
        assert other.logits(turned) == pytest.approx(one.logits(seen)[:, order], abs=2e-6)


def test_equal_devices_tie_to_the_last_bit() -> None:
    networks, generator = autoshard_networks(3), np.random.default_rng(3)
    seen = _seen(generator, 2, 1)
    many = replace(
        seen,
        sums=np.repeat(seen.sums, 64, axis=1),
        used=np.repeat(seen.used, 64, axis=1),
        devices=np.ones((2, 64), dtype=np.bool_),
    )
    found = networks.begin(2).logits(many)
    assert (found == found[:, :1]).all()


def test_episodes_of_a_batch_do_not_see_each_other_nor_padding() -> None:
    networks, generator = autoshard_networks(4), np.random.default_rng(4)
    together, alone = networks.begin(3), [networks.begin(1) for _ in range(3)]
    there = np.array([[True] * 5, [True] * 2 + [False] * 3, [True] * 4 + [False]])
    for _ in range(5):
        seen = replace(_seen(generator, 3, 5), devices=there)
        found = together.logits(seen)
        for row, width in enumerate([5, 2, 4]):
            one = Seen(
                seen.pieces[[row]],
                seen.placed[[row]],
                seen.sums[[row], :width],
                seen.used[[row], :width],
                there[[row], :width],
            )
            assert alone[row].logits(one)[0] == pytest.approx(found[row, :width], abs=2e-6)


def test_an_episode_is_scored_by_what_came_before() -> None:
    networks, generator = autoshard_networks(5), np.random.default_rng(5)
    before, seen = _seen(generator, 1, 4), _seen(generator, 1, 4)
    scorer = networks.begin(1)
    scorer.logits(before)
    assert np.abs(scorer.logits(seen) - networks.begin(1).logits(seen)).max() > 1e-3
    assert networks.begin(1).logits(seen).tolist() == networks.begin(1).logits(seen).tolist()


def test_permuting_tables_permutes_their_embeddings() -> None:
    networks, generator = autoshard_networks(6), np.random.default_rng(6)
    tables = [Table(f"t{i}", int(generator.integers(10, 10**6)), 4 * (i + 1), float(i)) for i in range(9)]
    order = generator.permutation(9)
    found = networks.encode(tables, 1024)
    assert found.shape == (9, N)
    assert networks.encode([tables[i] for i in order], 1024) == pytest.approx(found[order])
    assert networks.single_costs(found).shape == (9,)
    assert networks.device_costs(found.reshape(3, 3, N)).shape == (3, 3)
    assert networks.encode([], 1024).shape == (0, N)


def _refused(arrays: Mapping[str, NDArray[np.float32]], says: str, version: int = POLICY_FEATURES_VERSION) -> None:
    with pytest.raises(DamagedArtifact, match=says):
        AutoShardNetworks("damaged", arrays, version)


def test_damaged_versions_are_refused() -> None:
    arrays = autoshard_arrays(0)
    assert set(arrays) == set(AUTOSHARD_SHAPES)
    AutoShardNetworks("whole", arrays, POLICY_FEATURES_VERSION)
    _refused({name: array for name, array in arrays.items() if name != "policy.lstm.1.bias"}, r"lstm.1.bias is missing")
    _refused({**arrays, "policy.lstm.0.input": np.zeros((32, 7), dtype=np.float32)}, "lstm.0.hidden is of shape")
    _refused({**arrays, "cost_unit_ms": np.zeros(1, dtype=np.float32)}, "cost_unit_ms must be positive")
    _refused({**arrays, "feature_scale": -arrays["feature_scale"]}, "feature_scale must be positive")
    _refused({**arrays, "feature_mean": np.full(F, np.nan, dtype=np.float32)}, "not finite")
    _refused({**arrays, "policy.logit.0.weight": np.zeros((7, 23), dtype=np.float32)}, "size 23, expected 24")
    extra = {"policy.placed": 1, "policy.device": 2}
    narrow: Arrays = {f"{name}.weight": np.zeros((2, into), dtype=np.float32) for name, into in extra.items()}
    narrow |= {f"{name}.bias": np.zeros(2, dtype=np.float32) for name in extra}
    _refused({**arrays, **narrow}, "size 7, expected 8")
    gates: Arrays = {
        f"policy.lstm.{layer}.{name}": np.zeros((30, *axes), dtype=np.float32)
        for layer in range(2)
        for name, axes in {"input": (8,), "hidden": (8,), "bias": ()}.items()
    }
    _refused({**arrays, **gates}, "size 30, expected 32")
    _refused(arrays, "policy features version 0", version=0)
