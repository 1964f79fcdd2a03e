"""Training the communication model: it learns, serves what torch trained, and serves numbers of devices never seen."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.exchange_skew import transfer_errors
from benchmarks.held_rows import HeldRows
from service.cost_models.communication import CommunicationModel, exchange_quantities, exchanged_bytes
from service.domain.errors import TooFewMeasurements
from service.domain.measurements import CommunicationMeasurement, Split
from service.domain.versions import Version
from service.registry.store import ModelStore
from service.training.communication_dataset import Values, exchange_groups, exchanges_fingerprint, measured_exchanges
from service.training.communication_evaluation import evaluate_communication, predict
from service.training.communication_trainer import (
    CommunicationNetwork,
    CommunicationTraining,
    Weights,
    train_communication,
)
from service.training.cross_fitting import FOLDS, held_out_exchanges
from service.usecases.train_models import train_communication_version

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
QUICK = CommunicationTraining(epochs=20)
SHORT = CommunicationTraining(epochs=1)
LAW = np.array([[0.3, 2e-7, 3e-7, 5e-8], [0.5, 1e-7, 6e-7, 2e-8]])
"""Milliseconds of a forward and a backward exchange for each of ``QUANTITIES``."""


def exchanges(count: int, ranks: tuple[int, ...] = (2, 4, 8)) -> list[CommunicationMeasurement]:
    """Exchanges that follow ``LAW``, slower by up to half where the widths are uneven, with 2% noise.

    A third of a transfer is done while its device waits, where it waits long.
    """
    rng = np.random.default_rng(0)
    found = []
    for index in range(count):
        devices = ranks[index % len(ranks)]
        widths = rng.integers(0, 400, size=devices)
        batch_size = int(rng.choice([2048, 8192]))
        uneven = 1 + 0.5 * (1 - widths.mean() / max(widths.max(), 1))
        costs = exchange_quantities(widths.astype(float), batch_size) @ LAW.T * uneven
        delays = rng.uniform(0, 100, size=devices)
        wait = delays.max() - delays
        costs[:, 0] *= 1 - wait / (wait + costs[:, 0]) / 3
        forward, backward = (costs * rng.normal(1, 0.02, costs.shape)).T
        found.append(
            CommunicationMeasurement(
                "synthetic", index, "cpu-x", tuple(map(int, widths)), batch_size, tuple(delays.tolist()),
                tuple(wait.tolist()), tuple(forward.tolist()), tuple(backward.tolist()), 5,
                {"device": "d", "oversubscribed": str(devices == 8).lower()}, NOW + timedelta(seconds=index),
            )
        )  # fmt: skip
    return found


COVERED = measured_exchanges(exchanges(30), least_in_part=0)


def trained(rows: list[CommunicationMeasurement], config: CommunicationTraining = QUICK) -> Weights:
    parts = {split: exchange_groups([row for row in rows if row.split is split]) for split in Split}
    return train_communication(parts[Split.TRAIN], parts[Split.VALIDATION], config)


def test_a_trained_version_predicts_what_it_has_not_seen(tmp_path: Path) -> None:
    store = ModelStore(str(tmp_path))
    rows = exchanges(900)
    found = train_communication_version("cpu-x", HeldRows([], rows), store, QUICK, NOW)
    assert found.version == "cpu-x/communication/1"
    assert found.metrics["forward_transfer"].mape < 0.06
    assert found.metrics["backward_8"].mape < 0.06
    version = Version("cpu-x", "communication", 1)
    manifest, _ = store.read(version)
    assert manifest["data"] == {
        "fingerprint": exchanges_fingerprint(rows),
        "rows": found.rows,
        "left_out": 0,
    }
    train = [row for row in rows if row.split is Split.TRAIN]
    sizes = [exchanged_bytes(np.array(row.widths), row.batch_size) for row in train]
    skews = [max(row.start_delays_ms) - min(row.start_delays_ms) for row in train]
    assert manifest["measured"] == {
        "ranks": [2, 4, 8],
        "oversubscribed": [8],
        "batch_sizes": [2048, 8192],
        "device_bytes": [min(part.min() for part in sizes), max(part.max() for part in sizes)],
        "skew_ms": [min(skews), max(skews)],
    }
    assert manifest["campaigns"] == {"synthetic": {"rows": 900, "hours": 0.25}}
    model = store.communication_model(version)
    held_out = exchange_groups([row for row in rows if row.split is Split.TEST])
    assert evaluate_communication(model, held_out) == found.metrics
    assert manifest["metrics"]["backward"]["coverage"] == round(found.coverage["backward"], 5)
    assert all(0.8 < share < 0.98 for share in found.coverage.values())
    assert model.assumptions(np.full(4, 100.0), np.zeros(4), 8192) == []


def test_a_number_of_devices_that_was_never_measured_follows_the_law() -> None:
    weights = trained(exchanges(900))
    model = CommunicationModel("v", weights, COVERED)
    unseen = exchange_groups(exchanges(60, ranks=(3, 16)))
    assert evaluate_communication(model, unseen)["forward_transfer"].mape < 0.2


def test_numpy_serves_what_torch_trained() -> None:
    rows = exchanges(60)
    weights = trained(rows, CommunicationTraining(epochs=2))
    model = CommunicationModel("v", weights, COVERED)
    for group in exchange_groups(rows):
        base = torch.from_numpy(weights["base"])
        arrays = (group.features(base.double().numpy()), group.quantities)
        features, quantities = (torch.from_numpy(array).float() for array in arrays)
        network = CommunicationNetwork(CommunicationTraining(), base, features.flatten(0, 2))
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
        train_communication_version("cpu-x", HeldRows([], exchanges(20)), store, QUICK, NOW)
    assert store.latest("cpu-x", "communication") is None


def test_intervals_are_not_fitted_to_a_few_exchanges(tmp_path: Path) -> None:
    rows = exchanges(800)
    train, others = ([row for row in rows if (row.split is Split.TRAIN) is wanted] for wanted in (True, False))
    with pytest.raises(TooFewMeasurements, match=r"38 train.*39 train.*shardwright profile"):
        train_communication_version("cpu-x", HeldRows([], train[:38] + others), ModelStore(str(tmp_path)), SHORT, NOW)


def test_numbers_of_devices_with_too_few_exchanges_count_as_not_measured(tmp_path: Path) -> None:
    store = ModelStore(str(tmp_path))
    few = [replace(row, campaign="few") for row in exchanges(8, ranks=(8,))]
    train_communication_version("cpu-x", HeldRows([], exchanges(300, ranks=(2, 4)) + few), store, SHORT, NOW)
    manifest, _ = store.read(Version("cpu-x", "communication", 1))
    assert manifest["measured"]["ranks"] == [2, 4]
    assert manifest["measured"]["oversubscribed"] == []
    with pytest.raises(TooFewMeasurements, match="no number of devices has 5 exchanges"):
        train_communication_version("cpu-x", HeldRows([], exchanges(200, ranks=tuple(range(2, 42)))), store, SHORT, NOW)


def test_what_intervals_are_fitted_to_neither_trained_a_model_nor_chose_its_epoch() -> None:
    rows = exchanges(200)
    parts = {split: [row for row in rows if row.split is split] for split in Split}
    validation = exchange_groups(parts[Split.VALIDATION])
    found = held_out_exchanges(parts[Split.TRAIN], validation, COVERED, SHORT)
    assert sum(len(group) for group, _ in found) == len(parts[Split.TRAIN])
    # However those of the first fold turn out, it changes nothing of what is predicted for them.
    spoilt = [
        replace(row, backward_ms=tuple(9 * ms for ms in row.backward_ms)) if i % FOLDS == 0 else row
        for i, row in enumerate(parts[Split.TRAIN])
    ]
    again = held_out_exchanges(spoilt, validation, COVERED, SHORT)
    same = [np.array_equal(one, other) for (_, one), (_, other) in zip(found, again, strict=True)]
    first = len(exchange_groups(spoilt[::FOLDS]))
    assert all(same[:first])
    assert not any(same[first:])


def test_only_the_comparable_is_trained_on(tmp_path: Path) -> None:
    store = ModelStore(str(tmp_path))
    newest = [replace(row, environment={**row.environment, "bench": "10"}) for row in exchanges(400)]
    older = [replace(row, campaign=bench, environment={**row.environment, "bench": bench}, backward_ms=row.widths)
             for bench in ("2", "9") for row in newest]  # fmt: skip
    unnamed = [replace(row, campaign="unnamed", environment={}) for row in newest]
    for rows in (newest, [*older, *newest, *unnamed]):
        train_communication_version("cpu-x", HeldRows([], rows), store, SHORT, NOW)
    (alone, weights), (mixed, again) = (store.read(Version("cpu-x", "communication", n)) for n in (1, 2))
    assert all(np.array_equal(weights[name], again[name]) for name in weights)
    assert mixed["data"] == alone["data"] | {"left_out": 1200}
    assert mixed["campaigns"] == alone["campaigns"]


def test_campaigns_that_take_turns_share_the_hours(tmp_path: Path) -> None:
    store = ModelStore(str(tmp_path))
    rows = [
        replace(row, campaign="ab"[row.index // 50 % 2], measured_at=NOW + timedelta(seconds=10 * row.index))
        for row in exchanges(300)
    ]
    rows[-1] = replace(rows[-1], measured_at=NOW + timedelta(days=1))
    train_communication_version("cpu-x", HeldRows([], rows), store, SHORT, NOW)
    manifest, _ = store.read(Version("cpu-x", "communication", 1))
    # Of 298 gaps of 10 s those that led to the first 50, but for the very first, are a's, as is every other 50.
    assert manifest["campaigns"] == {"a": {"rows": 150, "hours": 0.41}, "b": {"rows": 150, "hours": 0.41}}


def test_the_forward_metric_counts_the_waits_and_the_others_do_not() -> None:
    late = [replace(row, forward_wait_ms=tuple(5 + 2 * ms for ms in row.forward_wait_ms)) for row in exchanges(30)]
    (group,) = exchange_groups([row for row in late if len(row.widths) == 4])
    model = CommunicationModel("v", trained(exchanges(60)), COVERED)
    found, predicted = evaluate_communication(model, [group]), predict(model, group)
    assert group.wait_ms == pytest.approx(5 + 2 * group.nominal_wait_ms)
    wanted = {
        "forward_transfer": predicted[..., 0] / group.costs[..., 0],
        "forward": (predicted[..., 0] + group.nominal_wait_ms) / (group.costs[..., 0] + group.wait_ms),
        "backward": predicted[..., 1] / group.costs[..., 1],
    }
    for part, ratios in wanted.items():
        assert found[part].mape == pytest.approx(np.abs(ratios - 1).mean())
        assert found[part] == found[f"{part}_4"]


def test_devices_that_had_nothing_to_wait_for_are_neither_learned_nor_judged() -> None:
    rows = exchanges(900)
    some = [
        replace(row, forward_transfer_ms=(0.0, *row.forward_transfer_ms[1:])) if row.index % 10 < 2 else row
        for row in rows
    ]
    model = CommunicationModel("v", trained(some), COVERED)
    clean, spoilt = (exchange_groups([row for row in part if row.split is Split.TEST]) for part in (rows, some))
    assert evaluate_communication(model, clean)["forward_transfer"].mape < 0.06
    found = evaluate_communication(model, spoilt)
    without = sum(row.forward_transfer_ms[0] == 0 for row in some if row.split is Split.TEST)
    assert without > 5
    assert found["forward_transfer"].rows == found["backward"].rows - without
    assert found["forward_transfer"].mape < 0.06


def transfer(model: CommunicationModel, widths: tuple[int, ...], late_ms: float, batch_size: int) -> Values:
    """Predicted transfer where the first rank is the last to start."""
    waits = np.array([0.0] + [late_ms] * (len(widths) - 1))
    return model.forward_transfer(np.array(widths, dtype=float), waits, batch_size)


def test_transfers_are_judged_apart_for_each_skew() -> None:
    model = CommunicationModel("v", trained(exchanges(60)), COVERED)
    rows = [
        replace(
            row,
            start_delays_ms=(skew, *[0.0] * (len(row.widths) - 1)),
            forward_transfer_ms=tuple(by * transfer(model, row.widths, skew, row.batch_size)),
        )
        for row, (skew, by) in zip(exchanges(40), [(0.0, 1.0), (3.0, 2.0), (40.0, 2.0), (41.0, 0.5)] * 10, strict=True)
    ]
    together, near, far = transfer_errors(model, rows)
    assert [found.up_to_ms for found in (together, near, far)] == [0, 40, np.inf]
    assert near.times == sum(len(row.widths) for row in rows if 0 < row.start_delays_ms[0] <= 40)
    wanted = ((together, 0.0, 0.0), (near, 0.5, -0.5), (far, 1.0, 1.0))
    for found, error, bias in wanted:
        assert (found.error, found.bias, found.median_bias) == pytest.approx((error, bias, bias), abs=1e-9)
    assert len(transfer_errors(model, rows[::4])) == 1


def test_what_cannot_be_ranked_is_not_judged() -> None:
    alike = replace(exchanges(1)[0], widths=(64, 64), start_delays_ms=(0.0, 0.0))
    groups = exchange_groups([*exchanges(30, ranks=(4,)), alike])
    found = evaluate_communication(CommunicationModel("v", trained(exchanges(60)), COVERED), groups)
    assert list(found) == ["forward_transfer", "forward", "backward", "forward_transfer_4", "forward_4", "backward_4"]


def test_every_exchange_weighs_the_same_when_the_epoch_is_chosen() -> None:
    told: list[float] = []
    groups = exchange_groups(exchanges(60, ranks=(2, 8)))
    still = CommunicationTraining(epochs=1, learning_rate=0.0)
    weights = train_communication(groups, groups, still, lambda epoch, error: told.append(error))
    model = CommunicationModel("v", weights, COVERED)
    errors = [np.abs(np.log(predict(model, group) / group.costs)) for group in groups]
    by_exchange = np.mean([error.mean(axis=(1, 2)) for error in errors])
    assert told == pytest.approx([by_exchange], rel=1e-3)
    assert by_exchange != pytest.approx(np.concatenate([error.ravel() for error in errors]).mean(), rel=1e-2)
