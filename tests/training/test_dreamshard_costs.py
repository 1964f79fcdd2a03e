"""What the cost network learns from, against one placement and one device at a time."""

import numpy as np
import pytest
import torch

from service.policies.dreamshard import DreamShardNetworks
from service.policies.table_features import POLICY_FEATURE_NAMES, POLICY_FEATURES_VERSION
from service.training.dreamshard_networks import DreamShard, DreamShardSizes
from service.training.measured_placements import MeasuredPlacements, cost_losses
from service.training.meters import StepTimes

GENERATOR = np.random.default_rng(0)
FEATURES = GENERATOR.normal(5.0, 3.0, (9, len(POLICY_FEATURE_NAMES)))

# Tables among those of all tasks, their devices, and how many devices there are.
PLACED = [([0, 1, 2, 3], [0, 1, 1, 0], 2), ([4, 5], [2, 0], 3), ([6, 7, 8], [0, 0, 0], 1)]
TIMES = [
    StepTimes(GENERATOR.random((devices, 2)) * 90, GENERATOR.random(devices) * 9, float(GENERATOR.random() * 200))
    for _, _, devices in PLACED
]


def _measured(units: list[float], tables: int = 4, devices: int = 3) -> MeasuredPlacements:
    return MeasuredPlacements.of(
        [np.array(held) for held, _, _ in PLACED],
        [np.array(on) for _, on, _ in PLACED],
        TIMES,
        units,
        tables,
        devices,
    )


def _networks() -> DreamShard:
    torch.manual_seed(0)
    return DreamShard(DreamShardSizes(), FEATURES, cost_unit_ms=20.0)


def _losses(networks: DreamShard, measured: MeasuredPlacements) -> list[float]:
    features = networks.standardised(torch.from_numpy(FEATURES).float())
    found: list[float] = cost_losses(networks, features, measured).tolist()
    return found


@pytest.mark.parametrize("units", [[20.0, 20.0, 20.0], [5.0, 30.0, 70.0]])
def test_losses_are_mean_squared_errors_of_each_device_and_each_placement(units: list[float]) -> None:
    networks = _networks()
    served = DreamShardNetworks("served", networks.arrays(), POLICY_FEATURES_VERSION)
    embeddings = served.embed(FEATURES)
    of_devices, of_plans = [], []
    for (held, on, devices), times, unit in zip(PLACED, TIMES, units, strict=True):
        sums = np.zeros((devices, embeddings.shape[1]))
        for table, device in zip(held, on, strict=True):
            sums[device] += embeddings[table]
        for device in range(devices):
            costs = served.device_costs(sums[device])
            of_devices.append((costs - [*times.compute[device], times.exchange[device]]) / unit)
        of_plans.append((served.plan_costs(sums, np.ones(devices, dtype=np.bool_)) - times.plan) / unit)
    wanted = [*np.square(of_devices).mean(axis=0), np.square(of_plans).mean()]
    assert _losses(networks, _measured(units)) == pytest.approx(wanted, rel=1e-4)


def test_padding_does_not_count() -> None:
    networks, units = _networks(), [20.0] * 3
    assert _losses(networks, _measured(units, 11, 8)) == pytest.approx(_losses(networks, _measured(units)), rel=1e-6)


def test_the_order_of_tables_and_of_devices_changes_nothing() -> None:
    networks, measured = _networks(), _measured([20.0] * 3).rows(torch.tensor([1]))
    tensors, order = measured.tensors(), torch.tensor([2, 0, 1])
    # Device 2 is now the first, 0 the second, 1 the third.
    moved = {
        "tables": tensors["tables"][:, [1, 0, 2, 3]],
        "on": torch.tensor([[1, 0, 0, 0]]),
        "costs": tensors["costs"][:, order],
        "devices": tensors["devices"][:, order],
    }
    again = MeasuredPlacements(**{**tensors, **moved})
    assert _losses(networks, again) == pytest.approx(_losses(networks, measured), rel=1e-5)


def test_embeddings_follow_their_tables() -> None:
    networks, order = _networks(), GENERATOR.permutation(len(FEATURES))
    x = networks.standardised(torch.from_numpy(FEATURES).float())
    for table in (networks.cost.table, networks.policy.table):
        assert torch.equal(table(x)[order], table(x[order]))


def test_placements_are_kept_as_they_were_given() -> None:
    both = _measured([1.0, 2.0, 3.0]).and_these(_measured([4.0, 5.0, 6.0]))
    assert len(both) == 6
    assert both.units.tolist() == [1, 2, 3, 4, 5, 6]
    some = both.rows(torch.tensor([4, 4]))
    assert some.tables.tolist() == [[4, 5, -1, -1]] * 2
    assert some.on.tolist() == [[2, 0, 0, 0]] * 2
    assert some.plans.numpy() == pytest.approx([TIMES[1].plan] * 2)
    assert both.costs[0, :2, 2].numpy() == pytest.approx(TIMES[0].exchange)
    assert both.devices.sum(dim=1).tolist() == [2, 3, 1] * 2
    assert len(MeasuredPlacements.of([], [], [], [], 4, 3)) == 0


def test_only_the_cost_network_learns_from_costs() -> None:
    networks = _networks()
    features = networks.standardised(torch.from_numpy(FEATURES).float())
    torch.autograd.backward(cost_losses(networks, features, _measured([20.0] * 3)).sum())
    assert all(weights.grad is None for weights in networks.policy.parameters())
    assert all(weights.grad is not None for weights in networks.cost.parameters())
