"""The service as a process: it stops cleanly, leaves nothing behind, and keeps its plans."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.api.processes import is_alive, mapped_files, planning_processes, wait_for
from tests.api.support import GIB, request

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 60


class Served:
    """A service process with a data directory of its own."""

    def __init__(self, data_dir: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        environment = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
        environment |= {
            "SHARDWRIGHT_DATA_DIR": str(data_dir),
            "PORT": str(port),
            "SHARDWRIGHT_PLANNER_PROCESSES": "2",
        }
        self.log = data_dir.with_suffix(".log")
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.api.serve_fake"], cwd=ROOT, env=environment, stderr=log
            )
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S, trust_env=False)

    def planning_processes(self) -> set[int]:
        """Its children that plan."""
        return planning_processes(self.process.pid)

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)


@contextmanager
def _served(data_dir: Path) -> Iterator[Served]:
    served = Served(data_dir)
    try:
        while True:
            try:
                served.client.get("/healthz")
                break
            except httpx.ConnectError:
                assert served.process.poll() is None, served.log.read_text()
                time.sleep(0.05)
        yield served
    finally:
        served.client.close()
        if served.process.poll() is None:
            served.stop()


def _postgres_runs(data_dir: Path) -> bool:
    note = data_dir / "postgres" / "postmaster.pid"
    return note.exists() and is_alive(int(note.read_text().splitlines()[0]))


def test_plans_survive_a_clean_stop_and_a_kill_and_nothing_is_left_running(tmp_path: Path) -> None:
    data_dir = tmp_path / "var"
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


def test_a_request_in_flight_is_answered_before_the_process_ends(tmp_path: Path) -> None:
    slow = request(devices={"count": 2, "memory_bytes": GIB, "hardware": "slow"}, time_limit_ms=30_000)
    with _served(tmp_path / "var") as served, ThreadPoolExecutor(1) as threads:
        answer = threads.submit(served.client.post, "/plan", json=slow)
        while "shardwright_planner_running 1.0" not in served.client.get("/metrics").text:
            time.sleep(0.02)
        assert served.stop() == 0
        assert answer.result().status_code == 200


def test_the_api_process_does_not_load_torch(tmp_path: Path) -> None:
    with _served(tmp_path / "var") as served:
        served.client.post("/plan", json=request())
        mapped = mapped_files(served.process.pid)
        assert "pydantic_core" in mapped
        assert "torch" not in mapped


def test_a_stop_during_start_up_leaves_no_database_behind(tmp_path: Path) -> None:
    data_dir = tmp_path / "var"
    served = Served(data_dir)
    while not (data_dir / "postgres" / "postmaster.pid").exists():
        assert served.process.poll() is None, served.log.read_text()
        time.sleep(0.01)
    assert served.stop() == 0
    assert not _postgres_runs(data_dir)


@pytest.mark.parametrize("host", ["127.0.0.1", "203.0.113.7"])
def test_an_address_that_cannot_be_had_is_one_line_and_starts_nothing(tmp_path: Path, host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        arguments = ["serve", "--host", host, "--port", port, "--data-dir", str(tmp_path / "var")]
        ended = subprocess.run(
            [sys.executable, "-m", "service", *arguments],
            cwd=ROOT,
            capture_output=True,
            check=False,
            text=True,
            timeout=PATIENCE_S,
        )
    assert ended.returncode == 1
    assert ended.stderr.startswith(f"shardwright: cannot listen on {host}:{port}: ")
    assert len(ended.stderr.splitlines()) == 1
    assert not (tmp_path / "var").exists()
