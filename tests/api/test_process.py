"""The service as a process: it stops cleanly, leaves nothing behind, and keeps its plans."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.storage.embedded import EmbeddedPostgres
from tests.api.processes import clean_environment, is_alive, logged_port, mapped_files, planning_processes, wait_for
from tests.api.support import GIB, request

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 60


class Served:
    """A service process, leader of its group, with a data directory of its own."""

    def __init__(self, data_dir: Path, **settings: str) -> None:
        # A port that the system gives it: one that was free a moment ago may be another's by now.
        environment = clean_environment(
            SHARDWRIGHT_DATA_DIR=str(data_dir), PORT="0", SHARDWRIGHT_PLANNER_PROCESSES="2", **settings
        )
        self.log = data_dir.with_suffix(".log")
        with self.log.open("a") as log:
            self._logged_before = log.tell()
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.api.serve_fake"],
                cwd=ROOT,
                env=environment,
                stderr=log,
                start_new_session=True,
            )
        self.port = 0
        self.client = httpx.Client(timeout=PATIENCE_S, trust_env=False)

    def planning_processes(self) -> set[int]:
        """Its children that plan."""
        return planning_processes(self.process.pid)

    def answers(self) -> bool:
        """Whether it serves; fails where it has ended."""
        assert self.process.poll() is None, self.log.read_text()
        port = logged_port(self.log, self._logged_before)
        if port is None:
            return False
        self.port = port
        self.client.base_url = f"http://127.0.0.1:{port}"
        try:
            return self.client.get("/healthz").status_code == 200
        except httpx.ConnectError:
            return False

    def interrupt(self) -> None:
        """Ctrl-C: SIGINT to the whole group."""
        os.killpg(self.process.pid, signal.SIGINT)

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)


@contextmanager
def started(data_dir: Path, **settings: str) -> Iterator[Served]:
    """A service process that is over with the block."""
    served = Served(data_dir, **settings)
    try:
        yield served
    finally:
        served.client.close()
        if served.process.poll() is None:
            try:
                served.stop()
            except subprocess.TimeoutExpired:
                served.process.kill()
                served.process.wait()


@contextmanager
def _served(data_dir: Path, **settings: str) -> Iterator[Served]:
    with started(data_dir, **settings) as served:
        wait_for(served.answers, PATIENCE_S)
        yield served


@pytest.fixture
def data_dir(server_folder: Path) -> Iterator[Path]:
    """Where a service keeps its data; no Postgres is left running in it."""
    folder = server_folder / "var"
    yield folder
    if _postgres_runs(folder):
        with EmbeddedPostgres(folder):
            pass


@pytest.fixture
def used_dir(data_dir: Path, cluster_at_head: Path) -> Path:
    """The same, with a database in it that was used before."""
    subprocess.run(["cp", "-a", str(cluster_at_head), str(data_dir)], check=True)
    return data_dir


def _postgres_runs(data_dir: Path) -> bool:
    note = data_dir / "postgres" / "postmaster.pid"
    return note.exists() and is_alive(int(note.read_text().splitlines()[0]))


def _question(hardware: str, **changes: Any) -> dict[str, Any]:
    return request(devices={"count": 2, "memory_bytes": GIB, "hardware": hardware}, **changes)


def test_plans_survive_a_clean_stop_and_a_kill_and_nothing_is_left_running(data_dir: Path) -> None:
    with _served(data_dir) as served:
        plan = served.client.post("/plan", json=request()).json()
        assert plan["saved"] is True
        children = served.planning_processes()
        assert len(children) == 2
        assert served.stop() == 0
        wait_for(lambda: not any(is_alive(child) for child in children))
        assert not _postgres_runs(data_dir)

    with _served(data_dir) as served:
        assert served.client.get(f"/plans/{plan['plan_id']}").json() == plan
        children = served.planning_processes()
        served.process.kill()
        served.process.wait()
        wait_for(lambda: not any(is_alive(child) for child in children))

    with _served(data_dir) as served:
        assert served.client.get(f"/plans/{plan['plan_id']}").json() == plan
        assert served.client.post("/plan", json=request()).json() == plan
        assert served.stop() == 0
    assert not _postgres_runs(data_dir)


def _running(served: Served, number: int) -> Callable[[], bool]:
    return lambda: f"shardwright_planner_running {number}.0" in served.client.get("/metrics").text


def test_a_request_in_flight_is_answered_before_the_process_ends(used_dir: Path) -> None:
    with _served(used_dir) as served, ThreadPoolExecutor(1) as threads:
        answer = threads.submit(served.client.post, "/plan", json=_question("slow", time_limit_ms=30_000))
        wait_for(_running(served, 1))
        assert served.stop() == 0
        assert answer.result().status_code == 200


@pytest.mark.parametrize("signals", [[signal.SIGTERM], [signal.SIGINT, signal.SIGINT]])
def test_requests_that_do_not_end_do_not_keep_the_process_from_ending(used_dir: Path, signals: list[int]) -> None:
    shards = [{"table": f"t{i}", "columns": [0, 64 + 64 * (i == 1)], "device": 0} for i in range(3)]
    estimate = _question("stuck", shards=shards)
    del estimate["algorithm"]
    patience_s = "1" if len(signals) == 1 else "30"
    with (
        ThreadPoolExecutor(3) as threads,
        _served(
            used_dir, SHARDWRIGHT_SHUTDOWN_TIMEOUT_S=patience_s, SHARDWRIGHT_DEFAULT_TIME_LIMIT_MS="60000"
        ) as served,
    ):
        for body in (estimate, estimate, estimate):
            threads.submit(served.client.post, "/estimate", json=body)
        wait_for(_running(served, 2))
        began = time.monotonic()
        for number in signals:
            os.killpg(served.process.pid, number)
            time.sleep(0.5)
        assert served.process.wait(PATIENCE_S) == 0
        assert time.monotonic() - began < 20
    assert not _postgres_runs(used_dir)


def test_the_api_process_does_not_load_torch(used_dir: Path) -> None:
    with _served(used_dir) as served:
        served.client.post("/plan", json=request())
        mapped = mapped_files(served.process.pid)
        assert "pydantic_core" in mapped
        assert "torch" not in mapped


@pytest.mark.parametrize("stage", ["initialisation", "database", "planning processes"])
def test_ctrl_c_during_start_up_is_a_clean_stop(data_dir: Path, stage: str) -> None:
    with started(data_dir) as served:
        stages: dict[str, Callable[[], bool]] = {
            "initialisation": (data_dir / "postgres.new").exists,
            "database": (data_dir / "postgres" / "postmaster.pid").exists,
            "planning processes": lambda: bool(served.planning_processes()),
        }
        reached = stages[stage]
        wait_for(lambda: served.process.poll() is not None or reached(), PATIENCE_S)
        served.interrupt()
        assert served.process.wait(PATIENCE_S) == 0, served.log.read_text()
    assert not _postgres_runs(data_dir)
    assert "Traceback" not in served.log.read_text()


def test_ctrl_c_while_it_serves_is_a_clean_stop(used_dir: Path) -> None:
    with _served(used_dir) as served:
        served.interrupt()
        assert served.process.wait(PATIENCE_S) == 0, served.log.read_text()
    assert not _postgres_runs(used_dir)
    assert "Traceback" not in served.log.read_text()


def test_a_stop_during_start_up_leaves_no_database_behind(used_dir: Path) -> None:
    with started(used_dir) as served:
        note = used_dir / "postgres" / "postmaster.pid"
        wait_for(lambda: served.process.poll() is not None or note.exists(), PATIENCE_S)
        assert served.stop() == 0
    assert not _postgres_runs(used_dir)


@pytest.mark.parametrize("host", ["127.0.0.1", "203.0.113.7"])
def test_an_address_that_cannot_be_had_is_one_line_and_starts_nothing(data_dir: Path, host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        arguments = ["serve", "--host", host, "--port", port, "--data-dir", str(data_dir)]
        ended = subprocess.run(
            [sys.executable, "-m", "service", *arguments],
            cwd=ROOT,
            env=clean_environment(),
            capture_output=True,
            check=False,
            text=True,
            timeout=PATIENCE_S,
        )
    assert ended.returncode == 1
    assert ended.stderr.startswith(f"shardwright: cannot listen on {host}:{port}: ")
    assert len(ended.stderr.splitlines()) == 1
    assert not data_dir.exists()


def test_all_ranks_that_ask_at_once_get_one_plan_that_was_made_once(used_dir: Path) -> None:
    with _served(used_dir) as served, ThreadPoolExecutor(24) as threads:
        question = _question("slow")
        answers = list(threads.map(lambda _: served.client.post("/plan", json=question), range(24)))
        assert {answer.status_code for answer in answers} == {200}
        assert len({answer.text for answer in answers}) == 1
        counted = served.client.get("/metrics").text
    made = [line for line in counted.splitlines() if line.startswith("shardwright_plans_total") and "complete" in line]
    assert [float(line.split()[-1]) for line in made] == [1.0]


def test_an_embedded_database_that_is_killed_comes_back_by_itself(used_dir: Path) -> None:
    with _served(used_dir) as served:
        plan = served.client.post("/plan", json=request()).json()
        note = used_dir / "postgres" / "postmaster.pid"
        os.kill(int(note.read_text().splitlines()[0]), signal.SIGKILL)
        wait_for(lambda: served.client.get("/readyz").status_code == 200 and _postgres_runs(used_dir), PATIENCE_S)
        wait_for(lambda: served.client.get(f"/plans/{plan['plan_id']}").status_code == 200, PATIENCE_S)
        assert served.client.get(f"/plans/{plan['plan_id']}").json() == plan
        counted = "shardwright_embedded_database_restarts_total 1.0"
        wait_for(lambda: counted in served.client.get("/metrics").text)
