"""The supervisor where the machine gives it no process, and where nights cannot write what they train."""

import time
from itertools import pairwise
from multiprocessing.context import SpawnProcess
from pathlib import Path

import pytest
from sqlalchemy import Engine

from service.domain.trainings import Ended
from service.jobs.measuring import Device, MeasuringSpec
from service.jobs.nightly import Nightly
from service.jobs.supervisor import _Place
from service.jobs.worker import WorkerSpec
from service.settings import Settings
from service.storage.claims import Retries
from service.storage.trainings import TrainingRepository
from service.supervision import beside_serving, build_supervisor, nightly

SPEC = WorkerSpec(
    database_url="postgresql://nowhere.invalid/x", supervisor="s", hardware="made-up",
    measuring=MeasuringSpec(Device("cpu"), 2**20, 0.3), nightly=Nightly("", 1.0, None, "", ""),
    retries=Retries(3, 10, 30, 30), heartbeat_s=5, poll_s=5, job_timeout_s=5, shutdown_s=5, log_level="error",
)  # fmt: skip


def test_a_worker_that_cannot_be_started_is_tried_again_later_and_later(monkeypatch: pytest.MonkeyPatch) -> None:
    now, tried = [1_000.0], []

    def start(process: SpawnProcess) -> None:
        tried.append(now[0])
        raise BlockingIOError("no process ids are left")

    monkeypatch.setattr(SpawnProcess, "start", start)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    place = _Place(SPEC)
    while now[0] < 1_020:
        assert place.look() is None
        assert place.pid is None
        now[0] += 0.25
    assert [later - earlier for earlier, later in pairwise(tried)] == [0.5, 1, 2, 4, 8]


@pytest.mark.parametrize("cron", ["0 2 * * *", ""])
def test_a_model_store_that_nights_cannot_write_to_is_told_once_as_workers_start(
    engine: Engine, tmp_path: Path, caplog: pytest.LogCaptureFixture, cron: str
) -> None:
    (tmp_path / "file").touch()
    for store in (tmp_path / "file" / "models", tmp_path / "file" / "models", tmp_path / "models"):
        settings = Settings(model_store=str(store), nightly_cron=cron)
        build_supervisor(settings, engine, "made-up", [Device("cpu")], nightly(settings, engine))
    told = TrainingRepository(engine).all("made-up", 10)
    assert [(outcome.ended, "cannot be written to" in outcome.reason) for outcome in told] == [
        (Ended.FAILED, True)
    ] * bool(cron)
    assert caplog.messages.count("nights will train nothing") == 2 * bool(cron)


@pytest.mark.parametrize(
    ("shutdown_s", "worker_s", "has"),
    [(30, 20, 20), (30, 5, 5), (25, 20, 15), (10, 20, 0.1), (1, 20, 0.1)],
)
def test_a_worker_beside_an_api_is_through_by_the_time_that_the_api_has(
    shutdown_s: int, worker_s: int, has: float
) -> None:
    alone = Settings(shutdown_timeout_s=shutdown_s, worker_shutdown_s=worker_s)
    assert beside_serving(alone).worker_shutdown_s == has
    assert alone.worker_shutdown_s == worker_s
