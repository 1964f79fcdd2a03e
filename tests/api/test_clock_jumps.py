"""The machine's clock is set while requests run: what waits, waits by a clock that nobody sets."""

import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from service.wiring import running_app
from tests.api.processes import wait_for
from tests.api.support import FACTORY, GIB, listening, request, settings

_YEAR_S = 365 * 86_400.0
_BODY_THAT_DOES_NOT_COME = (
    b"POST /plan HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
)


@pytest.mark.parametrize("jump_s", [_YEAR_S, pytest.param(-_YEAR_S, marks=pytest.mark.slow)])
def test_a_jump_ends_no_request_and_lengthens_none(
    database_url: str, monkeypatch: pytest.MonkeyPatch, jump_s: float
) -> None:
    slow = request(devices={"count": 2, "memory_bytes": GIB, "hardware": "slow"}, time_limit_ms=30_000)
    told, sleeping = time.time, time.monotonic
    configured = settings(database_url, planner_processes=2, body_timeout_s=0.5)
    with running_app(configured, FACTORY) as app, listening(app) as client, ThreadPoolExecutor(2) as threads:
        running = threads.submit(client.post, "/plan", json=slow | {"launch_id": "night"})
        waiting = threads.submit(client.post, "/plan", json=slow | {"seed": 1})
        wait_for(lambda: "shardwright_planner_running 2.0" in client.get("/metrics").text)
        monkeypatch.setattr(time, "time", lambda: told() + jump_s)
        assert [answer.result(30).status_code for answer in (running, waiting)] == [200, 200]
        began = sleeping()
        with socket.create_connection((client.base_url.host, client.base_url.port or 80), timeout=10) as connection:
            connection.sendall(_BODY_THAT_DOES_NOT_COME)
            assert connection.recv(1_000).startswith(b"HTTP/1.1 408 ")
        assert 0.4 < sleeping() - began < 5
        again = client.post("/plan", json=slow | {"launch_id": "night"})
        assert again.json() == running.result().json()
        assert client.get("/readyz").status_code == 200
