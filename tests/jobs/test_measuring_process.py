"""One measuring process: how long it may take, and what it tells of a refusal."""

import os
import threading
from collections.abc import Iterator
from multiprocessing.context import SpawnProcess
from pathlib import Path

import pytest

from service.jobs import children
from service.jobs.measuring import (
    Device,
    MeasuringFailed,
    MeasuringProcess,
    MeasuringSpec,
    NeverMeasured,
    _prepare,
    alone_on,
)
from tests.jobs.made_up import BENCH, NOTES, REFUSED, SHORT, STUCK
from tests.jobs.supervised import profile

CORE = Device("cpu", (min(os.sched_getaffinity(0)),))


@pytest.fixture
def measuring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MeasuringProcess]:
    monkeypatch.setenv(NOTES, str(tmp_path / "notes"))
    # Locks of the machine are kept there: no other run of the tests is waited for.
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    found = MeasuringProcess(MeasuringSpec(CORE, 2**20, 0.3, BENCH))
    yield found
    found.end()


def test_waiting_for_another_worker_of_the_machine_is_not_measuring(measuring: MeasuringProcess) -> None:
    measuring.measure(profile(), 0, 60)
    with alone_on(CORE):
        results: list[object] = []
        asked = threading.Thread(target=lambda: results.append(measuring.measure(profile(), 0, 1)))
        asked.start()
        asked.join(2)
        assert results == []
        assert asked.is_alive()
    asked.join(20)
    assert len(results) == 1


def test_a_measurement_that_takes_too_long_is_ended(measuring: MeasuringProcess) -> None:
    measuring.measure(profile(), 0, 60)
    with pytest.raises(MeasuringFailed, match=r"measuring took longer than 0\.5 s"):
        measuring.measure(profile(STUCK), 0, 0.5)


def test_only_what_is_refused_for_good_is_told_as_that(measuring: MeasuringProcess) -> None:
    with pytest.raises(NeverMeasured, match="not to be measured"):
        measuring.measure(profile(REFUSED), 0, 60)
    with pytest.raises(MeasuringFailed, match="no memory") as short:
        measuring.measure(profile(SHORT), 0, 60)
    assert not isinstance(short.value, NeverMeasured)


def test_where_the_machine_gives_no_process_the_try_fails_and_the_next_one_starts_it(
    measuring: MeasuringProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(process: SpawnProcess) -> None:
        raise BlockingIOError("no process ids are left")

    with monkeypatch.context() as full:
        full.setattr(SpawnProcess, "start", start)
        with pytest.raises(MeasuringFailed, match="did not start: no process ids"):
            measuring.measure(profile(), 0, 60)
    assert measuring.measure(profile(), 0, 60).measurements


@pytest.mark.parametrize(
    ("visible", "device", "seen"),
    [("", "cuda", "0"), ("", "cuda:1", "1"), ("4,7", "cuda:1", "7"), ("4,7", "cuda", "4")],
)
def test_a_worker_of_a_gpu_sees_that_one_of_those_that_its_supervisor_may_use(
    visible: str, device: str, seen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(children, "prepare", lambda cpus: None)
    _prepare(MeasuringSpec(Device(device), 2**20, 0.3, BENCH))
    assert os.environ["CUDA_VISIBLE_DEVICES"] == seen
