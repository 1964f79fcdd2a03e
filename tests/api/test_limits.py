"""Bodies that are too large, too slow or too many, and requests beyond what the planning processes can take."""

import json
import os
import socket
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import anyio
import httpx
from starlette.types import Message

from service.api.body import BodyAdmission
from service.api.parsing import Limits, parse_plan
from service.settings import Settings
from service.wiring import running_app
from tests.api.processes import kill, planning_processes, wait_for
from tests.api.support import FACTORY, GIB, kind, listening, request, settings, table


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


def test_a_client_that_does_not_read_its_answer_keeps_no_room_for_bodies(database_url: str) -> None:
    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/plan", "query_string": b"", "headers": headers}
    statuses = []
    with running_app(settings(database_url), FACTORY) as app:
        bodies: BodyAdmission = app.state.services.bodies
        room = bodies._free

        async def receive() -> Message:
            return {"type": "http.request", "body": json.dumps(request()).encode()}

        async def send(message: Message) -> None:
            # Where a client does not read, this waits.
            with ExitStack() as stack:
                for _ in range(room):
                    stack.enter_context(bodies.admitted())
            statuses.append(message.get("status"))

        anyio.run(app, scope, receive, send)
    assert statuses == [200, None]


def test_a_body_that_drips_is_given_up_on(database_url: str) -> None:
    def drip() -> Iterator[bytes]:
        yield b"{"
        time.sleep(0.6)
        yield b"}"

    with running_app(settings(database_url, body_timeout_s=0.2), FACTORY) as app, listening(app) as client:
        response = client.post("/plan", content=drip(), headers={"content-type": "application/json"})
        assert (response.status_code, kind(response)) == (408, "body_too_slow")


def test_bodies_beyond_those_that_fit_in_memory_are_refused_before_they_are_read(database_url: str) -> None:
    configured = settings(database_url, planner_processes=1, planner_queue=0)
    head = b"POST /plan HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"
    with running_app(configured, FACTORY) as app, listening(app) as client:
        with ExitStack() as slow:

            def full() -> bool:
                """Whether another slow body has taken the last room."""
                connection = socket.create_connection((client.base_url.host, client.base_url.port or 80), timeout=10)
                slow.enter_context(connection).sendall(head)
                return client.post("/plan", json=request()).status_code == 503

            wait_for(full)
            refused = client.post("/estimate", json={})
            assert (refused.status_code, kind(refused)) == (503, "planner_busy")
            assert int(refused.headers["retry-after"]) >= 1
            assert client.get("/healthz").status_code == 200
        wait_for(lambda: client.post("/plan", json=request()).status_code == 200)


def test_the_largest_public_workload_fits_into_the_defaults() -> None:
    default = {name: field.default for name, field in Settings.model_fields.items()}
    fractions = [1 / 17 + 1e-9 * (8 - i) for i in range(17)]
    tables = [
        table(f"embedding_table_{i}", num_embeddings=10**9, pooling_factor=123.456789012345, distinct_rows=None)
        | {"reuse_histogram": {"batch_size": 65_536, "fractions": fractions}}
        for i in range(2_002)
    ]
    body = json.dumps(request(tables=tables, global_batch_size=65_536)).encode()
    assert len(body) < default["max_body_bytes"] / 4
    assert len(tables) < default["max_tables"] / 2
    assert len(parse_plan(body, Limits(2_000, 60_000, default["max_tables"])).tables) == 2_002


def test_a_full_pool_answers_busy(database_url: str) -> None:
    slow = request(devices={"count": 2, "memory_bytes": GIB, "hardware": "slow"}, time_limit_ms=30_000)
    configured = settings(database_url, planner_processes=2, planner_queue=2)
    with running_app(configured, FACTORY) as app, listening(app) as client, ThreadPoolExecutor(4) as threads:
        plans = [threads.submit(client.post, "/plan", json=slow | {"seed": seed}) for seed in range(4)]
        wait_for(lambda: "shardwright_planner_waiting 2.0" in client.get("/metrics").text)
        assert "shardwright_planner_running 2.0" in client.get("/metrics").text
        refused = client.post("/plan", json=request())
        assert (refused.status_code, kind(refused)) == (503, "planner_busy")
        assert int(refused.headers["retry-after"]) >= 1
        assert [plan.result().status_code for plan in plans] == [200] * 4
        assert client.post("/plan", json=request()).status_code == 200
        metrics = client.get("/metrics").text
        assert 'shardwright_plans_total{algorithm="dim_greedy",outcome="planner_busy"} 1.0' in metrics


def test_health_stays_quick_while_large_plans_are_computed(database_url: str) -> None:
    tables = [
        table(f"t{i}", num_embeddings=1_000 + 97 * i, embedding_dim=4 + 4 * (i % 32), pooling_factor=1.0 + i % 50)
        for i in range(1_000)
    ]
    devices = {"count": 64, "memory_bytes": GIB, "hardware": "fake"}
    busy = request(tables=tables, devices=devices, algorithm="neuroshard", time_limit_ms=5_000)
    configured = settings(database_url, planner_processes=2)
    with running_app(configured, FACTORY) as app, listening(app) as client, ThreadPoolExecutor(2) as threads:
        plans = [threads.submit(client.post, "/plan", json=busy | {"seed": seed}) for seed in range(2)]
        waits = []
        while not all(plan.done() for plan in plans):
            waits.append(_seconds(client))
            time.sleep(0.01)
        assert [plan.result().status_code for plan in plans] == [200] * 2
    assert len(waits) >= 20
    assert statistics.median(waits) <= 0.1, f"of {len(waits)} the largest is {max(waits):.3f} s"


def test_a_service_answers_from_the_versions_that_its_database_began_with(database_url: str, tmp_path: Path) -> None:
    # A busy machine takes more than the usual limit to start a planning process again.
    configured = settings(database_url, model_store=str(tmp_path), default_time_limit_ms=30_000)
    before = planning_processes(os.getpid())
    with running_app(configured, FACTORY) as app, listening(app) as client:
        (first,) = planning_processes(os.getpid()) - before
        (tmp_path / "latest").write_text("2")
        kill(first)
        answer = client.post("/plan", json=request()).json()
        assert answer["models"]["compute"] == "fake/compute/1"
        assert client.post("/plan", json=request()).json() == answer
        assert client.post("/estimate", json={"plan_id": answer["plan_id"]}).json()["models"] == answer["models"]
        assert (planning_processes(os.getpid()) - before).isdisjoint({first})
        assert "shardwright_planner_deaths_total 1.0" in client.get("/metrics").text
    with running_app(configured, FACTORY) as app, listening(app) as client:
        assert client.post("/plan", json=request()).json() == answer
        client.post("/models/fake/compute/2/promote", json={}).raise_for_status()
        wait_for(lambda: client.post("/plan", json=request()).json()["models"]["compute"] == "fake/compute/2", 5)


def test_a_failure_in_a_planning_process_is_an_error_without_internals(client: httpx.Client) -> None:
    broken = request(devices={"count": 2, "memory_bytes": GIB, "hardware": "broken"})
    response = client.post("/plan", json=broken)
    assert (response.status_code, kind(response)) == (500, "internal_error")
    assert "secret" not in response.text
    assert client.post("/plan", json=request()).status_code == 200


def _seconds(client: httpx.Client) -> float:
    began = time.perf_counter()
    assert client.get("/healthz").json() == {"status": "ok"}
    return time.perf_counter() - began
