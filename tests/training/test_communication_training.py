"""Training the communication model: it learns, serves what torch trained, and serves numbers of devices never seen."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
import torch

from service.cost_models.communication import CommunicationModel, exchange_quantities
from service.domain.errors import TooFewMeasurements
from service.domain.measurements import CommunicationMeasurement, Split
from service.registry.store import ModelStore, Version
from service.training.communication_dataset import exchange_groups, exchanges_fingerprint, measured_exchanges
from service.training.communication_evaluation import evaluate_communication, predict
from service.training.communication_trainer import (
    CommunicationNetwork,
    CommunicationTraining,
    Weights,
    train_communication,
)
from service.usecases.train_models import train_communication_version
from tests.training.memory_store import Memory

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
QUICK = CommunicationTraining(epochs=20)
LAW = np.array([[0.3, 2e-7, 3e-7, 5e-8], [0.5, 1e-7, 6e-7, 2e-8]])
"""Milliseconds of a forward and a backward exchange for each of ``QUANTITIES``."""


def exchanges(count: int, ranks: tuple[int, ...] = (2, 4, 8)) -> list[CommunicationMeasurement]:
    """Exchanges that follow ``LAW``, slower by up to half where the widths are uneven, with 2% noise."""
    rng = np.random.default_rng(0)
    found = []
    for index in range(count):
        devices = ranks[index % len(ranks)]
        widths = rng.integers(0, 400, size=devices)
        batch_size = int(rng.choice([2048, 8192]))
        uneven = 1 + 0.5 * (1 - widths.mean() / max(widths.max(), 1))
        costs = exchange_quantities(widths.astype(float), batch_size) @ LAW.T * uneven
        forward, backward = (costs * rng.normal(1, 0.02, costs.shape)).T
        delays = rng.uniform(0, 100, size=devices)
        wait = delays.max() - delays
        found.append(
            CommunicationMeasurement(
                "synthetic", index, "cpu-x", tuple(map(int, widths)), batch_size, tuple(delays.tolist()),
                tuple(wait.tolist()), tuple(forward.tolist()), tuple(backward.tolist()), 5,
                {"device": "d", "oversubscribed": str(devices == 8).lower()}, NOW + timedelta(seconds=index),
            )
        )  # fmt: skip
    return found


def trained(rows: list[CommunicationMeasurement], config: CommunicationTraining = QUICK) -> Weights:
    parts = {split: exchange_groups([row for row in rows if row.split is split]) for split in Split}
    return train_communication(parts[Split.TRAIN], parts[Split.VALIDATION], config)


def test_a_trained_version_predicts_what_it_has_not_seen(tmp_path: Path) -> None:
    store = ModelStore(str(tmp_path))
    rows = exchanges(900)
    found = train_communication_version("cpu-x", Memory([], rows), store, QUICK, NOW)
    assert found.version == "cpu-x/communication/1"
    assert found.metrics["forward_transfer"].mape < 0.06
    assert found.metrics["backward_8"].mape < 0.06
    version = Version("cpu-x", "communication", 1)
    manifest, _ = store.read(version)
    assert manifest["data"] == {"fingerprint": exchanges_fingerprint(rows), "rows": found.rows}
    assert manifest["measured"] == {"ranks": [2, 4, 8], "oversubscribed": [8]}
    assert manifest["campaigns"] == {"synthetic": {"rows": 900, "hours": 0.25}}
    model = store.communication_model(version)
    held_out = exchange_groups([row for row in rows if row.split is Split.TEST])
    assert evaluate_communication(model, held_out) == found.metrics
    assert model.assumptions(4) == []


def test_a_number_of_devices_that_was_never_measured_follows_the_law() -> None:
    weights = trained(exchanges(900))
    model = CommunicationModel("v", weights, measured_exchanges(exchanges(3)))
    unseen = exchange_groups(exchanges(60, ranks=(3, 16)))
    assert evaluate_communication(model, unseen)["forward_transfer"].mape < 0.2


def test_numpy_serves_what_torch_trained() -> None:
    rows = exchanges(60)
    weights = trained(rows, CommunicationTraining(epochs=2))
    model = CommunicationModel("v", weights, measured_exchanges(rows))
    for group in exchange_groups(rows):
        features, quantities = (torch.from_numpy(a).float() for a in (group.features, group.quantities))
        base = torch.from_numpy(weights["base"])
        network = CommunicationNetwork(CommunicationTraining(), base, features.flatten(0, 1))
        network.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()})
        with torch.no_grad():
            wanted = network(features, quantities).exp().numpy()
        assert predict(model, group) == pytest.approx(wanted, rel=1e-3)


def test_training_is_the_same_for_the_same_seed() -> None:
    rows = exchanges(60)
    first, again, other = (trained(rows, CommunicationTraining(epochs=2, seed=seed)) for seed in (1, 1, 2))
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert any(not np.array_equal(first[name], other[name]) for name in first)


def test_the_part_of_an_exchange_does_not_depend_on_the_order_of_its_ranks() -> None:
    for row in exchanges(30):
        turned = replace(row, widths=row.widths[::-1], start_delays_ms=row.start_delays_ms[::-1])
        assert turned.split is row.split


def test_too_few_exchanges_are_refused_with_a_remedy(tmp_path: Path) -> None:
    store = ModelStore(str(tmp_path))
    with pytest.raises(TooFewMeasurements, match="shardwright profile"):
        train_communication_version("cpu-x", Memory([], exchanges(20)), store, QUICK, NOW)
    assert store.latest("cpu-x", "communication") is None


def test_the_forward_metric_counts_the_wait_and_the_others_do_not() -> None:
    (group,) = exchange_groups(exchanges(30, ranks=(4,)))
    model = CommunicationModel("v", trained(exchanges(60)), measured_exchanges(exchanges(3)))
    found, predicted = evaluate_communication(model, [group]), predict(model, group)
    total, measured = predicted[..., 0] + group.wait_ms, group.costs[..., 0] + group.wait_ms
    assert found["forward"].mape == pytest.approx(np.abs(total / measured - 1).mean())
    assert found["backward"] == found["backward_4"]
