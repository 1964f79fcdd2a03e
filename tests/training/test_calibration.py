"""Calibrating the analytic model: what a device differs by is found from few measurements, and nothing else moves."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from benchmarks.held_rows import HeldRows
from service.cost_models.calibrated import INSIDE, OUTSIDE, CalibratedCompute, Calibration
from service.domain.errors import DamagedArtifact, TooFewMeasurements, UnknownHardware
from service.domain.measurements import ComputeMeasurement, Split
from service.domain.ports import BACKWARD, COMPUTE_TOTAL, FORWARD
from service.domain.tables import DataType, Optimizer, Table
from service.domain.versions import Version
from service.registry.store import ModelStore
from service.training.calibration import calibrate
from service.training.compute_dataset import measured_domain
from service.training.compute_predictions import measured_costs, metrics_on, predicted_costs
from service.training.intervals import with_total
from service.usecases.train_models import calibrate_compute_version
from tests.training.data_sheet_machine import ANALYTIC, NOW, synthetic

ROWS = synthetic(240)
TRAIN = [row for row in ROWS if row.split is Split.TRAIN]
TEST = [row for row in ROWS if row.split is Split.TEST]


def model_of(samples: Sequence[ComputeMeasurement]) -> CalibratedCompute:
    calibration = Calibration(len(samples), "a processor", measured_domain(samples))
    return CalibratedCompute("v", ANALYTIC, calibrate(ANALYTIC, samples), calibration)


@pytest.fixture(scope="module")
def model() -> CalibratedCompute:
    return model_of(TRAIN)


def test_few_measurements_correct_the_data_sheet(model: CalibratedCompute) -> None:
    raw, few, all_of_them = (metrics_on(m, TEST)["total"].mape for m in (ANALYTIC, model_of(TRAIN[:50]), model))
    assert raw > 0.3
    assert few < 0.12
    assert all_of_them < 0.07
    assert metrics_on(model, TEST)["backward"].tau > 0.95


def test_a_pair_that_was_not_measured_has_what_its_optimizer_and_its_precision_have() -> None:
    left_out = (Optimizer.ADAGRAD, DataType.FP16)

    def of(row: ComputeMeasurement) -> tuple[Optimizer, DataType]:
        return row.optimizer, row.tables[0].data_type

    found = model_of([row for row in TRAIN if of(row) != left_out])
    assert metrics_on(found, [row for row in ROWS if of(row) == left_out])["total"].mape < 0.25


def test_a_pair_that_was_not_measured_is_new() -> None:
    left_out = (Optimizer.ADAGRAD, DataType.FP16)
    found = model_of([row for row in TRAIN if (row.optimizer, row.tables[0].data_type) != left_out])
    row = next(row for row in TRAIN if (row.optimizer, row.tables[0].data_type) == left_out)
    table = min(row.tables, key=lambda table: abs(table.embedding_dim - 64))
    assert found.novelty([table], row.batch_size, Optimizer.ADAGRAD).tolist() == [OUTSIDE]
    assert found.novelty([table], row.batch_size, Optimizer.SGD).tolist() == [INSIDE]


def test_outliers_do_not_rule() -> None:
    noisy = [replace(row, backward_ms=row.backward_ms * (20 if i % 10 == 0 else 1)) for i, row in enumerate(TRAIN)]
    assert metrics_on(model_of(noisy), TEST)["backward"].median_ape < 0.12


def test_measurements_as_the_data_sheet_says_leave_it_alone() -> None:
    predicted = predicted_costs(ANALYTIC, TRAIN)
    exact = [replace(row, forward_ms=p[0], backward_ms=p[1]) for row, p in zip(TRAIN, predicted, strict=True)]
    weights = calibrate(ANALYTIC, exact)
    assert all(np.abs(array).max() < 1e-3 for array in weights.values())


def test_a_fit_that_does_not_converge_is_no_calibration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.training.calibration._STEPS", 3)
    with pytest.raises(RuntimeError, match="60 measurements did not converge"):
        calibrate(ANALYTIC, TRAIN[:60])


def test_more_work_costs_more_and_no_work_nothing(model: CalibratedCompute) -> None:
    table = Table("t", 10**6, 64, 10.0)
    one = model.encode([table], 8_192, Optimizer.ADAGRAD)[0]
    costs = model.head(np.stack([0 * one, one, 2 * one]))
    assert costs[0].tolist() == [0.0, 0.0]
    assert (np.diff(costs, axis=0) > 0).all()
    assert costs[1:, FORWARD].max() < costs[1:, BACKWARD].max()


def test_nine_of_ten_held_out_costs_lie_in_the_intervals(model: CalibratedCompute) -> None:
    rows = [row for row in synthetic(250, seed=1) if row.split is Split.TEST]
    errors = np.log(with_total(measured_costs(rows)) / with_total(predicted_costs(model, rows)))
    for cost in (FORWARD, BACKWARD, COMPUTE_TOTAL):
        law = [model.errors(np.ones((1, 2)), [row.tables], row.batch_size, row.optimizer) for row in rows]
        low, high = (
            np.array([found.scales[0, cost] * np.quantile(found.quantiles[cost], p) for found in law])
            for p in (0.05, 0.95)
        )
        assert 0.8 < ((low <= errors[:, cost]) & (errors[:, cost] <= high)).mean() < 0.98


def test_what_lies_outside_the_measurements_is_new_and_less_sure(model: CalibratedCompute) -> None:
    known = TRAIN[0]
    wide = known.tables[0].sliced(1_024)
    assert model.novelty([known.tables[0], wide], known.batch_size, known.optimizer).tolist() == [INSIDE, OUTSIDE]
    for optimizer, batch_size in ((Optimizer.ADAM, known.batch_size), (known.optimizer, 10**6)):
        assert model.novelty([known.tables[0]], batch_size, optimizer).tolist() == [OUTSIDE]
    law = model.errors(np.ones((3, 2)), [known.tables, [*known.tables, wide], []], known.batch_size, known.optimizer)
    assert law.scales.tolist() == [[1.0] * 3, [2.0] * 3, [1.0] * 3]
    first, outside, *_ = model.assumptions([*known.tables, wide], known.batch_size, known.optimizer)
    assert first == f"compute is the analytic model corrected by {len(TRAIN)} measurements of a processor"
    assert wide.name in outside
    assert "not like what was measured" in outside
    assert not any("not like" in said for said in model.assumptions(known.tables, known.batch_size, known.optimizer))


def test_a_calibrated_version_is_loaded_as_it_was_written(tmp_path: Path, model: CalibratedCompute) -> None:
    store = ModelStore(str(tmp_path))
    trained = calibrate_compute_version("cpu-fbgemm", HeldRows(ROWS, []), store, NOW)
    version = Version.parse(trained.version)
    assert store.newest("cpu-fbgemm", "compute") == version == Version("cpu-fbgemm", "compute", 1)
    loaded = store.compute_model(version)
    assert isinstance(loaded, CalibratedCompute)
    assert np.array_equal(predicted_costs(loaded, TEST), predicted_costs(model, TEST))
    assert metrics_on(loaded, TEST) == trained.metrics
    assert trained.rows == {"train": len(TRAIN), "validation": 0, "test": len(TEST)}
    manifest, _ = store.read(version)
    assert manifest["samples"]["count"] == len(TRAIN)
    assert manifest["device"] == "a processor"
    assert manifest["metrics"]["total"]["mape"] == round(trained.metrics["total"].mape, 5)


def test_a_version_of_another_analytic_formula_is_refused_with_the_remedy(tmp_path: Path) -> None:
    store = ModelStore(str(tmp_path))
    version = Version.parse(calibrate_compute_version("cpu-fbgemm", HeldRows(ROWS, []), store, NOW).version)
    manifest, weights = store.read(version)
    facts = {name: value for name, value in manifest.items() if name not in ("format", "version", "weights_sha256")}
    older = store.write(
        "cpu-fbgemm", "compute", weights, {**facts, "analytic": {**facts["analytic"], "analytic_version": 1}}
    )
    with pytest.raises(DamagedArtifact, match=f"{older} corrects analytic version 1.*--from-analytic"):
        store.compute_model(older)
    missing = store.write("cpu-fbgemm", "compute", weights, {**facts, "analytic": {"analytic_version": 2}})
    with pytest.raises(DamagedArtifact, match=f"{missing}: .*another one"):
        store.compute_model(missing)


def test_a_slower_day_is_taken_out_where_there_are_rows_enough_to_tell(tmp_path: Path) -> None:
    train = [row for row in synthetic(1_000, seed=2) if row.split is Split.TRAIN]
    slow = [
        replace(row, measured_at=NOW - timedelta(days=1), forward_ms=1.5 * row.forward_ms,
                backward_ms=1.5 * row.backward_ms) for row in train[:400]
    ]  # fmt: skip
    store, rows = ModelStore(str(tmp_path)), [*slow, *train[400:], *TEST]
    trained = calibrate_compute_version("cpu-fbgemm", HeldRows(rows, []), store, NOW)
    manifest, _ = store.read(Version.parse(trained.version))
    first, second = manifest["sittings"]
    assert (first["rows"], first["factor"]) == (400, pytest.approx(1.5, rel=0.1))
    assert second["factor"] == 1.0
    mixed = metrics_on(model_of([*slow, *train[400:]]), TEST)["total"].mape
    assert trained.metrics["total"].mape < 0.08 < mixed


def test_some_of_the_measurements_are_drawn_by_seed(tmp_path: Path) -> None:
    store = ModelStore(str(tmp_path))
    for seed in (0, 0, 1):
        calibrate_compute_version("cpu-fbgemm", HeldRows(ROWS, []), store, NOW, samples=60, seed=seed)
    manifests = [store.read(Version("cpu-fbgemm", "compute", number))[0] for number in (1, 2, 3)]
    assert [manifest["data"]["rows"]["train"] for manifest in manifests] == [60] * 3
    first, again, other = (manifest["samples"]["fingerprint"] for manifest in manifests)
    assert first == again != other


@pytest.mark.parametrize(("rows", "samples"), [(ROWS[:20], None), (ROWS, 100_000), (TRAIN, None)])
def test_too_few_measurements_are_refused_with_a_remedy(
    tmp_path: Path, rows: list[ComputeMeasurement], samples: int | None
) -> None:
    store = ModelStore(str(tmp_path))
    with pytest.raises(TooFewMeasurements, match=r"to calibrate with.*shardwright profile"):
        calibrate_compute_version("cpu-fbgemm", HeldRows(rows, []), store, NOW, samples)
    assert store.latest("cpu-fbgemm", "compute") is None


def test_fewer_samples_than_a_calibration_needs_are_refused_by_name(tmp_path: Path) -> None:
    store = ModelStore(str(tmp_path))
    with pytest.raises(TooFewMeasurements, match=r"--samples 29 is too few .*, 30 are needed: .* leave --samples out"):
        calibrate_compute_version("cpu-fbgemm", HeldRows(ROWS, []), store, NOW, samples=29)
    assert store.latest("cpu-fbgemm", "compute") is None
    calibrate_compute_version("cpu-fbgemm", HeldRows(ROWS, []), store, NOW, samples=30)
    assert store.latest("cpu-fbgemm", "compute") is not None


def test_hardware_without_a_data_sheet_cannot_be_calibrated(tmp_path: Path) -> None:
    with pytest.raises(UnknownHardware, match=r"no data sheet of hardware 'cpu-x'.*without --from-analytic"):
        calibrate_compute_version("cpu-x", HeldRows(ROWS, []), ModelStore(str(tmp_path)), NOW)
