"""Training: the network learns, the numpy code that serves computes what torch trained, and versions tell why."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.held_rows import HeldRows
from service.cost_models.compute import ComputeModel
from service.cost_models.features import FEATURES_VERSION
from service.domain.errors import DamagedArtifact, ModelStoreUnwritable, TooFewMeasurements
from service.domain.measurements import ComputeMeasurement, Split
from service.domain.tables import DataType, Optimizer, Table
from service.domain.versions import Version
from service.registry.store import ModelStore
from service.training.communication_trainer import CommunicationTraining
from service.training.compute_dataset import data_fingerprint, measured_domain, measurements_dataset
from service.training.compute_evaluation import predict
from service.training.compute_predictions import metrics_on
from service.training.compute_trainer import ComputeTraining, train_compute, train_network
from service.training.metrics import metrics
from service.usecases.evaluate_models import evaluate_compute_version
from service.usecases.train_models import LEAST_FOR_INTERVALS, train_communication_version, train_compute_version
from tests.training.data_sheet_machine import pool_by_part

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
QUICK = ComputeTraining(epochs=60)


def synthetic(count: int) -> list[ComputeMeasurement]:
    """Measurements whose costs follow a simple law of lookups and bytes, with 3% noise."""
    rng = np.random.default_rng(0)
    parts, found = pool_by_part(), []
    for index in range(count):
        batch_size = int(rng.choice([2048, 8192]))
        pool = parts[[*Split][int(rng.choice(3, p=[0.7, 0.15, 0.15]))]]
        tables = tuple(
            replace(pool[int(rng.integers(len(pool)))], embedding_dim=int(rng.choice([8, 32, 128])))
            for _ in range(int(rng.integers(1, 6)))
        )
        forward = 0.05 + sum(t.lookups(batch_size) * (1 + t.embedding_dim / 32) for t in tables) * 2e-5
        noisy = forward * float(rng.normal(1, 0.03)), 2.5 * forward * float(rng.normal(1, 0.03))
        found.append(
            ComputeMeasurement("synthetic", index, "cpu-x", tables, batch_size, Optimizer.SGD, *noisy, 0.02, 0.02, 5,
                               {"torch": "2", "device": "a processor"}, NOW)
        )  # fmt: skip
    return found


def test_a_trained_version_predicts_what_it_has_not_seen(tmp_path: Path) -> None:
    store = ModelStore(str(tmp_path))
    rows = synthetic(700)
    trained = train_compute_version("cpu-x", HeldRows(rows, []), store, QUICK, NOW)
    assert trained.version == "cpu-x/compute/1"
    assert trained.metrics["total"].mape < 0.15
    assert trained.metrics["total"].tau > 0.9
    manifest, _ = store.read(Version("cpu-x", "compute", 1))
    assert manifest["metrics"]["total"]["mape"] == round(trained.metrics["total"].mape, 5)
    assert manifest["metrics"]["total"]["coverage"] == round(trained.coverage["total"], 5)
    assert 0.8 < np.mean(list(trained.coverage.values())) < 0.99
    assert manifest["data"]["fingerprint"] == data_fingerprint(rows)
    assert sum(manifest["data"]["rows"].values()) == 700
    assert manifest["device"] == "a processor"
    assert manifest["measured"]["batch_sizes"] == [2048, 8192]
    assert manifest["training"]["epochs"] == QUICK.epochs


def test_the_reported_metrics_are_those_of_the_frozen_test_part(tmp_path: Path) -> None:
    store = ModelStore(str(tmp_path))
    rows = synthetic(300)
    trained = train_compute_version("cpu-x", HeldRows(rows, []), store, ComputeTraining(epochs=5), NOW)
    model = store.compute_model(Version("cpu-x", "compute", 1))
    assert isinstance(model, ComputeModel)
    test = [m for m in rows if m.split is Split.TEST]
    assert metrics_on(model, test)["total"] == pytest.approx(trained.metrics["total"])
    assert trained.rows["test"] == len(test) > 10


def test_combinations_that_mix_parts_are_left_out_and_counted(tmp_path: Path) -> None:
    rows = synthetic(300)
    one, other = (next(m for m in rows if m.split is split) for split in (Split.TRAIN, Split.TEST))
    mixed = replace(one, index=300, tables=one.tables + other.tables, forward_ms=1e6)
    store = ModelStore(str(tmp_path))
    trained = train_compute_version("cpu-x", HeldRows([*rows, mixed], []), store, ComputeTraining(epochs=1), NOW)
    manifest, _ = store.read(Version("cpu-x", "compute", 1))
    assert manifest["data"] == {"fingerprint": data_fingerprint(rows), "rows": trained.rows, "left_out": 1}
    model = store.compute_model(Version("cpu-x", "compute", 1))
    found = evaluate_compute_version(model, manifest, [*rows, mixed], Split.TEST)
    assert found.costs["total"].overall().coverage == pytest.approx(trained.coverage["total"])
    assert found.warnings == ("1 combinations of tables of several parts are left out",)


def test_numpy_serves_what_torch_trained() -> None:
    data = measurements_dataset(synthetic(80))
    for config in (ComputeTraining(epochs=3), ComputeTraining(epochs=3, fusion=False)):
        network = train_network(data, config)
        model = ComputeModel("v", network.weights(), FEATURES_VERSION, measured_domain(synthetic(80)))
        with torch.no_grad():
            wanted = network(torch.from_numpy(data.features), torch.from_numpy(data.members)).exp().numpy()
        assert predict(model, data) == pytest.approx(wanted, rel=1e-4)


def test_without_fusion_a_model_is_its_additive_part() -> None:
    data = measurements_dataset(synthetic(80))
    weights = train_compute(data, ComputeTraining(epochs=1, fusion=False))
    model = ComputeModel("v", weights, FEATURES_VERSION, measured_domain(synthetic(80)))
    sums = model.embed(data.features[:-1])
    assert model.head(sums) == pytest.approx(model.additive(sums))


def test_a_network_without_constraints_is_no_version() -> None:
    data = measurements_dataset(synthetic(80))
    weights = train_compute(data, ComputeTraining(epochs=1, monotone=False))
    with pytest.raises(DamagedArtifact, match="negative"):
        ComputeModel("v", weights, FEATURES_VERSION, measured_domain(synthetic(80)))


def test_training_is_the_same_for_the_same_seed() -> None:
    data = measurements_dataset(synthetic(60))
    first, again, other = (train_compute(data, ComputeTraining(epochs=2, seed=seed)) for seed in (1, 1, 2))
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert any(not np.array_equal(first[name], other[name]) for name in first)


def test_the_order_of_tables_in_a_combination_does_not_change_its_prediction() -> None:
    rows = synthetic(60)
    turned = [replace(m, tables=m.tables[::-1]) for m in rows]
    data = measurements_dataset(rows)
    model = ComputeModel("v", train_compute(data, ComputeTraining(epochs=1)), FEATURES_VERSION,
                         measured_domain(rows))  # fmt: skip
    assert predict(model, measurements_dataset(turned)) == pytest.approx(predict(model, data), rel=1e-4)


def test_too_few_measurements_are_refused_with_a_remedy(tmp_path: Path) -> None:
    store = ModelStore(str(tmp_path))
    with pytest.raises(TooFewMeasurements, match="shardwright profile"):
        train_compute_version("cpu-x", HeldRows(synthetic(20), []), store, QUICK, NOW)
    assert store.latest("cpu-x", "compute") is None


def test_nothing_is_trained_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    store, few = ModelStore(str(tmp_path / "file" / "models")), HeldRows(synthetic(20), [])
    with pytest.raises(ModelStoreUnwritable):
        train_compute_version("cpu-x", few, store, QUICK, NOW)
    with pytest.raises(ModelStoreUnwritable):
        train_communication_version("cpu-x", few, store, CommunicationTraining(epochs=1), NOW)


def test_intervals_are_not_fitted_to_a_few_rows(tmp_path: Path) -> None:
    store = ModelStore(str(tmp_path))
    rows = synthetic(400)
    others, held_out = ([m for m in rows if (m.split is Split.VALIDATION) is held] for held in (False, True))
    few, enough = (HeldRows(others + held_out[:count], []) for count in (LEAST_FOR_INTERVALS - 1, LEAST_FOR_INTERVALS))
    with pytest.raises(TooFewMeasurements, match=r"38 validation.*39 validation.*shardwright profile"):
        train_compute_version("cpu-x", few, store, ComputeTraining(epochs=2), NOW)
    assert store.latest("cpu-x", "compute") is None
    train_compute_version("cpu-x", enough, store, ComputeTraining(epochs=2), NOW)
    assert str(store.latest("cpu-x", "compute")) == "cpu-x/compute/1"


def test_what_was_measured_is_what_was_trained_on(tmp_path: Path) -> None:
    rows = [
        replace(m, tables=tuple(replace(t, data_type=DataType.FP16) for t in m.tables), batch_size=10 * m.batch_size)
        if m.split is not Split.TRAIN
        else m
        for m in synthetic(400)
    ]
    store = ModelStore(str(tmp_path))
    train_compute_version("cpu-x", HeldRows(rows, []), store, ComputeTraining(epochs=2), NOW)
    measured = store.read(Version("cpu-x", "compute", 1))[0]["measured"]
    assert measured["data_types"] == ["fp32"]
    assert measured["batch_sizes"] == [2048, 8192]
    assert measured["pairs"] == [["sgd", "fp32"]]


def test_one_model_tells_optimizers_apart(tmp_path: Path) -> None:
    rows = synthetic(300)
    slower = [replace(m, optimizer=Optimizer.ADAGRAD, backward_ms=4 * m.backward_ms) for m in rows]
    store = ModelStore(str(tmp_path))
    train_compute_version("cpu-x", HeldRows(rows + slower, []), store, ComputeTraining(epochs=30), NOW)
    model = store.compute_model(Version("cpu-x", "compute", 1))
    sgd, adagrad = (model.head(model.encode(rows[0].tables, 8192, o).sum(axis=0)) for o in list(Optimizer)[0:3:2])
    assert adagrad[0] == pytest.approx(sgd[0], rel=0.3)
    assert adagrad[1] > 2 * sgd[1]


def test_benches_are_not_mixed(tmp_path: Path) -> None:
    rows = synthetic(320)
    newer = [replace(m, environment={**m.environment, "bench": "2"}) for m in rows]
    older = [replace(m, campaign="older", forward_ms=99.0) for m in rows]
    store = ModelStore(str(tmp_path))
    trained = train_compute_version("cpu-x", HeldRows(older + newer, []), store, ComputeTraining(epochs=1), NOW)
    manifest, _ = store.read(Version("cpu-x", "compute", 1))
    assert manifest["data"]["fingerprint"] == data_fingerprint(newer)
    assert manifest["data"]["rows"] == trained.rows
    assert sum(trained.rows.values()) == 320
    assert manifest["data"]["left_out"] == 320


def test_a_feature_that_never_varied_does_not_explode_in_service() -> None:
    rows = [replace(m, tables=tuple(replace(t, embedding_dim=32) for t in m.tables)) for m in synthetic(60)]
    data = measurements_dataset(rows)
    weights = train_compute(data, ComputeTraining(epochs=1))
    assert weights["feature_scale"].min() > 0.01


def test_metrics_against_values_worked_out_by_hand() -> None:
    found = metrics(np.array([1.0, 2.2, 2.7, 4.0]), np.array([1.0, 2.0, 3.0, 2.0]))
    assert found.rows == 4
    assert found.mape == pytest.approx((0 + 0.1 + 0.1 + 1.0) / 4)
    assert found.median_ape == pytest.approx(0.1)
    assert found.mse == pytest.approx((0.04 + 0.09 + 4.0) / 4)
    # Pairs: (1,2)+ (1,3)+ (1,4)+ (2,3)+ (3,4)-, and (2,4) is tied in what was measured.
    assert found.tau == pytest.approx(3 / np.sqrt(6 * 5))


def test_tables_without_lookups_can_be_trained_on() -> None:
    tables = (Table("zero", 100, 8, 0.0), Table("busy", 100, 8, 3.0))
    rows = [replace(m, tables=(*m.tables, *tables)) for m in synthetic(60)]
    data = measurements_dataset(rows)
    weights = train_compute(data, ComputeTraining(epochs=1))
    assert all(np.isfinite(array).all() for array in weights.values())
