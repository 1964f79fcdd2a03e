"""Files of models that go missing, or are damaged, while they serve and when a service starts."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from service.wiring import MODEL_STORE, running_app
from tests.api.processes import kill, planning_processes, wait_for
from tests.api.small_store import HARDWARE, priced, small_store
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
