"""As many threads as the process may use, processes that are spawned, and no connection that two of them have."""

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from service import settings as module
from service.settings import Settings
from tests.api.processes import kill, planning_processes, thread_count, wait_for
from tests.api.replicas import Replica
from tests.api.small_store import priced, question, small_store

_PROCESSES, _QUEUE, _SPARE = 2, 16, 32


@pytest.mark.parametrize(("usable", "processes"), [(1, 2), (2, 2), (3, 2), (8, 7)])
def test_planning_processes_are_as_many_as_the_cores_that_a_quota_leaves(
    monkeypatch: pytest.MonkeyPatch, usable: int, processes: int
) -> None:
    monkeypatch.setattr(module, "usable_cores", lambda: usable)
    assert Settings().planner_processes == processes


def _sockets(pid: int) -> set[str]:
    found = set()
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            found.add(os.readlink(file))
    return {name for name in found if name.startswith("socket:")}


@pytest.mark.slow
def test_threads_are_bounded_and_no_socket_is_shared(database_url: str, tmp_path: Path) -> None:
    small_store(str(tmp_path / "models"))
    replica = Replica(database_url, tmp_path / "models", tmp_path / "replica.log")
    try:
        wait_for(replica.answers, 60)
        # The second time processes are started from one that has connections to the database.
        for turn in range(2):
            with ThreadPoolExecutor(40) as pool:
                asked = [
                    pool.submit(replica.client.post, "/plan", json=question(seed=n + 40 * turn)) for n in range(40)
                ]
                priced_too = [pool.submit(replica.client.post, "/estimate", json=priced()) for _ in range(40)]
                statuses = {answer.result().status_code for answer in asked + priced_too}
            assert statuses <= {200, 503}
            planning = planning_processes(replica.process.pid)
            assert len(planning) == _PROCESSES
            own = _sockets(replica.process.pid)
            assert len(own) > 1
            assert all(own.isdisjoint(_sockets(pid)) for pid in planning)
            # Requests', those that follow promotions and queue new tables, and uvicorn's.
            assert thread_count(replica.process.pid) <= _PROCESSES + _QUEUE + _SPARE + 8
            assert all(thread_count(pid) <= 2 for pid in planning)
            if not turn:
                for pid in planning:
                    kill(pid)
                wait_for(lambda: replica.client.get("/readyz").json()["checks"]["planner"] == "ok")
    finally:
        replica.end()
