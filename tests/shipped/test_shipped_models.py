"""The shipped versions keep what their manifests say, on the measurements that are part of the repository."""

import numpy as np
import pytest

from service.cost_models.compute import ComputeModel
from service.domain.measurements import Split, comparable
from service.domain.versions import COMMUNICATION, COMPUTE
from service.registry.store import ModelStore
from service.settings import Settings
from service.storage.measurement_files import read_measurements
from service.training.communication_dataset import exchange_groups, exchanges_fingerprint
from service.training.communication_evaluation import PARTS, evaluate_communication
from service.training.compute_dataset import data_fingerprint
from service.training.compute_predictions import metrics_on
from service.training.sittings import Sitting, without_factors

HARDWARE = "cpu-fbgemm"


def test_the_shipped_compute_model_meets_its_bar_on_the_frozen_held_out_part() -> None:
    store = ModelStore(Settings().model_store)
    version = store.latest(HARDWARE, COMPUTE)
    assert version is not None
    manifest, _ = store.read(version)
    measured = [m for m in comparable(read_measurements(store.measurement_files()[HARDWARE])[0]) if m.split is not None]
    assert data_fingerprint(measured) == manifest["data"]["fingerprint"]
    held_out = [m for m in measured if m.split is Split.TEST]
    held_out = without_factors(held_out, [Sitting.from_dict(sitting) for sitting in manifest["sittings"]])
    model = store.compute_model(version)
    assert isinstance(model, ComputeModel)
    found = metrics_on(model, held_out)["total"]
    assert found.mape == pytest.approx(manifest["metrics"]["total"]["mape"], abs=1e-4)
    assert found.mape <= 0.08
    assert found.tau >= 0.95
    assert 0.87 <= manifest["metrics"]["total"]["coverage"] <= 0.93


def test_the_shipped_communication_model_keeps_its_manifest_on_the_frozen_held_out_part() -> None:
    store = ModelStore(Settings().model_store)
    version = store.latest(HARDWARE, COMMUNICATION)
    assert version is not None
    manifest, _ = store.read(version)
    measured = comparable(read_measurements(store.measurement_files()[HARDWARE])[1])
    assert exchanges_fingerprint(measured) == manifest["data"]["fingerprint"]
    held_out = exchange_groups([m for m in measured if m.split is Split.TEST])
    found = evaluate_communication(store.communication_model(version), held_out)
    for part in PARTS:
        assert found[part].mape == pytest.approx(manifest["metrics"][part]["mape"], abs=1e-4)
    assert found["forward_transfer"].mape <= 0.22
    assert found["backward"].mape <= 0.24
    assert found["forward_transfer"].tau >= 0.85


@pytest.mark.parametrize("devices", [2, 4, 8, 16, 256])
def test_the_shipped_communication_model_prices_ten_times_the_columns_higher(devices: int) -> None:
    communication = ModelStore(Settings().model_store).cost_models(HARDWARE).communication
    widths = np.random.default_rng(devices).integers(4, 400, size=devices).astype(float)
    waits = np.random.default_rng(0).uniform(0, 50, size=devices)
    forward, wider_forward = (communication.forward_transfer(held, waits, 8192) for held in (widths, 10 * widths))
    backward, wider_backward = (communication.backward(held, 8192) for held in (widths, 10 * widths))
    assert min(forward.min(), backward.min()) > 0
    assert (forward < wider_forward).all()
    assert (backward < wider_backward).all()


@pytest.mark.parametrize("devices", [2, 4, 8])
def test_the_shipped_communication_model_prices_no_nonsense_at_any_skew(devices: int) -> None:
    communication = ModelStore(Settings().model_store).cost_models(HARDWARE).communication
    rng = np.random.default_rng(devices)
    widths = rng.integers(0, 900, size=(100, devices)).astype(float)
    start = rng.uniform(size=(100, devices))
    for batch_size in (2048, 8192, 65_536):
        together = communication.forward_transfer(widths, np.zeros_like(widths), batch_size)
        for skew_ms in (1.0, 20.0, 1e3, 1e4):
            waits = skew_ms * (start.max(axis=1, keepdims=True) - start)
            later = communication.forward_transfer(widths, waits, batch_size)
            assert (later <= 1.5 * together).all()
            assert (later >= np.maximum(together - waits.max(axis=1, keepdims=True), 0.05 * together)).all()
