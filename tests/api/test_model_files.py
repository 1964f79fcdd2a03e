"""Files of models that go missing, or are damaged, while they serve and when a service starts."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from service.wiring import MODEL_STORE, running_app
from tests.api.processes import kill, planning_processes, wait_for
from tests.api.small_store import HARDWARE, priced, question, small_store
from tests.api.support import kind, listening, settings


def _missing(weights: Path) -> None:
    weights.unlink()


def _cut(weights: Path) -> None:
    weights.write_bytes(weights.read_bytes()[:100])


def _altered(weights: Path) -> None:
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)


DAMAGES = [_missing, _cut, _altered]


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A model store; the file that is damaged is that of its compute model."""
    small_store(str(tmp_path / "models"))
    return tmp_path / "models"


def _weights(models: Path) -> Path:
    return models / HARDWARE / "compute" / "1" / "weights.safetensors"


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_file_that_goes_while_it_serves_is_missed_by_new_planning_processes_only(
    database_url: str, models: Path, damage: Callable[[Path], None]
) -> None:
    weights = _weights(models)
    sound, others = weights.read_bytes(), planning_processes(os.getpid())
    with running_app(settings(database_url, model_store=str(models)), MODEL_STORE) as app, listening(app) as client:
        first = client.post("/estimate", json=priced(optimizer="sgd"))
        assert first.status_code == 200
        damage(weights)
        # What is loaded serves on.
        assert client.post("/estimate", json=priced(optimizer="adam")).status_code == 200
        assert client.post("/estimate", json=priced(optimizer="sgd")).json() == first.json()
        for pid in planning_processes(os.getpid()) - others:
            kill(pid)
        refused = client.post("/estimate", json=priced(optimizer="adagrad"))
        assert (refused.status_code, kind(refused)) == (503, "damaged_artifact")
        assert f"{HARDWARE}/compute/1" in refused.json()["detail"]
        assert str(models) not in refused.text
        assert client.get("/healthz").status_code == 200
        weights.write_bytes(sound)
        wait_for(lambda: client.post("/estimate", json=priced(optimizer="adagrad")).status_code == 200)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_service_that_starts_without_a_file_says_so_and_answers_once_it_is_there(
    database_url: str, models: Path, damage: Callable[[Path], None]
) -> None:
    weights = _weights(models)
    sound = weights.read_bytes()
    damage(weights)
    with running_app(settings(database_url, model_store=str(models)), MODEL_STORE) as app, listening(app) as client:
        refused = client.post("/estimate", json=priced())
        assert (refused.status_code, kind(refused)) == (503, "damaged_artifact")
        ready = client.get("/readyz")
        assert f"{HARDWARE}/compute/1" in ready.json()["checks"]["models"]
        assert str(models) not in ready.text
        assert client.get("/healthz").status_code == 200
        weights.write_bytes(sound)
        wait_for(lambda: client.post("/estimate", json=priced()).status_code == 200)
        assert client.get("/readyz").status_code == 200


def test_a_model_store_that_is_not_there_is_no_fault_of_the_caller_and_serves_once_it_is(
    database_url: str, tmp_path: Path
) -> None:
    folder, others = tmp_path / "mount", planning_processes(os.getpid())
    calls = {"/plan": question(algorithm="dim_greedy"), "/estimate": priced()}
    with running_app(settings(database_url, model_store=str(folder)), MODEL_STORE) as app, listening(app) as client:
        for path, body in calls.items():
            response = client.post(path, json=body)
            assert (response.status_code, kind(response)) == (503, "models_unavailable")
            assert int(response.headers["retry-after"]) == response.json()["retry_after_s"] > 0
            assert "SHARDWRIGHT_MODEL_STORE" in response.json()["detail"]
            assert str(folder) not in response.text
        assert client.get("/readyz").json()["checks"]["models"].startswith("no measured cost models")

        small_store(str(folder))
        assert [client.post(path, json=body).status_code for path, body in calls.items()] == [200, 200]
        elsewhere = {**calls["/plan"]["devices"], "hardware": "abacus"}
        response = client.post("/plan", json={**calls["/plan"], "devices": elsewhere})
        assert (response.status_code, kind(response)) == (422, "unknown_hardware")

        shutil.rmtree(folder)
        for pid in planning_processes(os.getpid()) - others:
            kill(pid)
        response = client.post("/estimate", json=priced(optimizer="adam"))
        assert (response.status_code, kind(response)) == (503, "models_unavailable")
