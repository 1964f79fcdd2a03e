"""The shipped versions keep what their manifests say, on the measurements that are part of the repository."""

import numpy as np
import pytest

from service.domain.measurements import Split
from service.registry.store import COMPUTE, ModelStore
from service.settings import Settings
from service.storage.measurement_files import read_measurements
from service.training.compute_dataset import data_fingerprint, measurements_dataset
from service.training.compute_evaluation import evaluate_compute

HARDWARE = "cpu-fbgemm"


def test_the_shipped_compute_model_meets_its_bar_on_the_frozen_held_out_part() -> None:
    store = ModelStore(Settings().model_store)
    version = store.latest(HARDWARE, COMPUTE)
    assert version is not None
    manifest, _ = store.read(version)
    measured, _ = read_measurements(store.measurement_files()[HARDWARE])
    assert data_fingerprint(measured) == manifest["data"]["fingerprint"]
    held_out = [m for m in measured if m.split is Split.TEST]
    found = evaluate_compute(store.compute_model(version), measurements_dataset(held_out))["total"]
    assert found.mape == pytest.approx(manifest["metrics"]["total"]["mape"], abs=1e-4)
    assert found.mape <= 0.12
    assert found.tau >= 0.92


def test_the_shipped_communication_model_prices_more_bytes_higher() -> None:
    communication = ModelStore(Settings().model_store).cost_models(HARDWARE).communication
    narrow, wide = communication.forward_transfer(np.array([[64.0, 64.0], [640.0, 640.0]]), 8192)[:, 0]
    assert 0 < narrow < wide
    assert communication.assumptions(2) == []
    assert communication.assumptions(8)
