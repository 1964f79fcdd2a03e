"""Bodies that are too large or too slow, and requests beyond what the planning processes can take."""

import os
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from service.api.planner_pool import PlannerPool
from service.api.planner_worker import SourceSpec
from service.domain.deadline import Deadline
from service.domain.errors import Infeasible, NoPlanInTime, PlannerBusy
from service.domain.plan import Algorithm, Problem
from service.domain.tables import Optimizer, Table
from service.domain.topology import Topology
from service.wiring import running_app
from tests.api.processes import kill, mapped_files, planning_processes, thread_count, wait_for
from tests.api.support import FACTORY, GIB, kind, listening, request, settings


def test_a_body_over_the_limit_is_refused(client: httpx.Client) -> None:
    response = client.post("/plan", content=b" " * 100_001, headers={"content-type": "application/json"})
    assert (response.status_code, kind(response)) == (413, "body_too_large")
    assert response.json()["max_body_bytes"] == 100_000


def test_a_chunked_body_is_refused_as_soon_as_the_count_passes_the_limit(client: httpx.Client) -> None:
    address = (client.base_url.host, client.base_url.port or 80)
    with socket.create_connection(address, timeout=10) as connection:
        connection.sendall(
            b"POST /plan HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        connection.sendall(b"186A1\r\n" + b" " * 100_001 + b"\r\n")
        # The body has not ended, and need not for the answer to come.
        assert b"413" in connection.recv(1024).split(b"\r\n")[0]


def test_a_body_that_drips_is_given_up_on(database_url: str) -> None:
    def drip() -> Iterator[bytes]:
        yield b"{"
        time.sleep(0.6)
        yield b"}"

    with running_app(settings(database_url, body_timeout_s=0.2), FACTORY) as app, listening(app) as client:
        response = client.post("/plan", content=drip(), headers={"content-type": "application/json"})
        assert (response.status_code, kind(response)) == (408, "body_too_slow")


def test_a_full_pool_answers_busy_and_health_stays_quick(database_url: str) -> None:
    slow = request(devices={"count": 2, "memory_bytes": GIB, "hardware": "slow"}, time_limit_ms=30_000)
    configured = settings(database_url, planner_processes=2, planner_queue=2)
    with running_app(configured, FACTORY) as app, listening(app) as client, ThreadPoolExecutor(4) as threads:
        plans = [threads.submit(client.post, "/plan", json=slow | {"seed": seed}) for seed in range(4)]
        wait_for(lambda: "shardwright_planner_waiting 2.0" in client.get("/metrics").text)
        assert "shardwright_planner_running 2.0" in client.get("/metrics").text
        # The best of several: the machine may be busy with other things.
        assert min(_seconds(client) for _ in range(10)) < 0.1
        refused = client.post("/plan", json=request())
        assert (refused.status_code, kind(refused)) == (503, "planner_busy")
        assert int(refused.headers["retry-after"]) >= 1
        assert [plan.result().status_code for plan in plans] == [200] * 4
        assert client.post("/plan", json=request()).status_code == 200
        metrics = client.get("/metrics").text
        assert 'shardwright_plans_total{algorithm="dim_greedy",outcome="planner_busy"} 1.0' in metrics


def test_waiting_for_a_process_counts_against_the_time_limit() -> None:
    with _pool(processes=1, queue=1) as pool, ThreadPoolExecutor(1) as threads:
        running = threads.submit(pool.plan, _problem("slow"), Algorithm.DIM_GREEDY, 0, Deadline())
        time.sleep(0.3)
        began = time.monotonic()
        with pytest.raises(NoPlanInTime):
            pool.plan(_problem("fake"), Algorithm.DIM_GREEDY, 0, Deadline.after(0.1))
        assert time.monotonic() - began < 0.5
        running.result()


def test_a_killed_planning_process_is_replaced_and_its_request_made_again() -> None:
    before = planning_processes(os.getpid())
    with _pool(processes=1, queue=0) as pool, ThreadPoolExecutor(1) as threads:
        (first,) = planning_processes(os.getpid()) - before
        plan = threads.submit(pool.plan, _problem("slow"), Algorithm.DIM_GREEDY, 0, Deadline())
        time.sleep(0.3)
        kill(first)
        assert plan.result(timeout=30).shards
        (second,) = planning_processes(os.getpid()) - before
        assert second != first


def test_a_request_whose_processes_keep_dying_is_given_up_on() -> None:
    before = planning_processes(os.getpid())
    with _pool(processes=1, queue=0) as pool, ThreadPoolExecutor(1) as threads:
        plan = threads.submit(pool.plan, _problem("slow"), Algorithm.DIM_GREEDY, 0, Deadline())
        dead: set[int] = set()
        while len(dead) < 2:
            for pid in planning_processes(os.getpid()) - before - dead:
                kill(pid)
                dead.add(pid)
        with pytest.raises(PlannerBusy):
            plan.result(timeout=30)
        assert pool.plan(_problem("fake"), Algorithm.DIM_GREEDY, 0, Deadline()).shards


def test_errors_of_a_planning_process_keep_their_data() -> None:
    with _pool(processes=1, queue=0) as pool, pytest.raises(Infeasible) as caught:
        pool.plan(_problem("fake", memory=1), Algorithm.DIM_GREEDY, 0, Deadline())
    assert caught.value.data["reason"] == "total_memory"


def test_planning_processes_load_neither_torch_nor_the_api_and_use_one_blas_thread() -> None:
    before = planning_processes(os.getpid())
    with _pool(processes=1, queue=0) as pool:
        pool.plan(_problem("fake"), Algorithm.DIM_GREEDY, 0, Deadline())
        (process,) = planning_processes(os.getpid()) - before
        mapped = mapped_files(process)
        assert "numpy" in mapped
        assert not [name for name in ("torch", "pydantic_core", "psycopg") if name in mapped]
        # The main thread, and the one that follows the parent.
        assert thread_count(process) <= 2


def test_a_failure_in_a_planning_process_is_an_error_without_internals(client: httpx.Client) -> None:
    broken = request(devices={"count": 2, "memory_bytes": GIB, "hardware": "broken"})
    response = client.post("/plan", json=broken)
    assert (response.status_code, kind(response)) == (500, "internal_error")
    assert "secret" not in response.text
    assert client.post("/plan", json=request()).status_code == 200


class _NoGauge:
    def inc(self) -> None: ...

    def dec(self) -> None: ...


def _pool(processes: int, queue: int) -> PlannerPool:
    return PlannerPool(SourceSpec(FACTORY, ""), processes, queue, _NoGauge(), _NoGauge())


def _problem(hardware: str, memory: int = GIB) -> Problem:
    return Problem((Table("t", 100, 8, 1.0),), Topology(hardware, (memory, memory)), 64, Optimizer.SGD)


def _seconds(client: httpx.Client) -> float:
    began = time.perf_counter()
    assert client.get("/healthz").json() == {"status": "ok"}
    return time.perf_counter() - began
