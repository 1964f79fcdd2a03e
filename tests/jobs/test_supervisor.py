"""The supervisor where the machine gives it no process."""

import time
from itertools import pairwise
from multiprocessing.context import SpawnProcess

import pytest

from service.jobs.measuring import Device, MeasuringSpec
from service.jobs.nightly import Nightly
from service.jobs.supervisor import _Place
from service.jobs.worker import WorkerSpec
from service.storage.claims import Retries

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
