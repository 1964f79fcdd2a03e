"""Clients that are slow, hang up, or send what is huge or hostile: the service holds nothing for them."""

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator

import httpx
import pytest
import uvicorn

from service.api.http_server import ImpatientProtocol
from service.wiring import running_app
from tests.api.processes import resident_bytes, wait_for
from tests.api.support import FACTORY, GIB, listening, request, settings

_PATHS = ("/plan", "/estimate", "/profiles", f"/plans/{'0' * 32}/observations", "/models/fake/compute/1/promote")
_HEAD = "POST {} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{}\r\n\r\n"
_MEGABYTE = b"F4240\r\n" + bytes(1_000_000) + b"\r\n"


class _Hasty(ImpatientProtocol):
    head_timeout_s = 0.3


@pytest.fixture(scope="module")
def hasty() -> Iterator[tuple[str, int]]:
    """The address of a server that waits a third of a second for a head, over an application that says 204."""

    async def app(scope: dict[str, object], receive: Callable[[], object], send: Callable[[object], object]) -> None:
        await send({"type": "http.response.start", "status": 204, "headers": []})  # type: ignore[misc]
        await send({"type": "http.response.body", "body": b""})  # type: ignore[misc]

    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        config = uvicorn.Config(app, http=_Hasty, lifespan="off", log_config=None, access_log=False)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        yield listener.getsockname()
        server.should_exit = True
        thread.join()


def _closed_after(connection: socket.socket, drip: bytes) -> float:
    """Seconds until the server closes a connection on which a byte comes now and then."""
    began = time.monotonic()
    connection.settimeout(0.05)
    while time.monotonic() - began < 10:
        try:
            connection.sendall(drip)
            if connection.recv(1_000) == b"":
                break
        except TimeoutError:
            continue
        except ConnectionError:
            break
    return time.monotonic() - began


@pytest.mark.parametrize("begun", [b"", b"POST /plan HTTP/1.1\r\nHost: x\r\nX-Slow: "])
def test_a_head_that_drips_is_given_up_on(hasty: tuple[str, int], begun: bytes) -> None:
    with socket.create_connection(hasty, timeout=10) as connection:
        connection.sendall(begun)
        assert 0.2 < _closed_after(connection, b"a" if begun else b"") < 5


def test_so_is_a_second_one_and_connections_in_use_stay(hasty: tuple[str, int]) -> None:
    with socket.create_connection(hasty, timeout=10) as connection:
        for _ in range(4):
            connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b"204" in connection.recv(1_000)
            time.sleep(0.15)
        connection.sendall(b"GET / HTT")
        assert _closed_after(connection, b"P") < 5


def test_what_comes_after_the_answer_is_not_taken_for_long(hasty: tuple[str, int]) -> None:
    with socket.create_connection(hasty, timeout=10) as connection:
        connection.sendall(_HEAD.format("/", "Transfer-Encoding: chunked").encode() + _MEGABYTE)
        assert b"204" in connection.recv(1_000)
        assert _closed_after(connection, _MEGABYTE) < 5


@pytest.mark.parametrize("path", _PATHS)
def test_a_huge_chunked_body_is_refused_on_every_route_before_it_is_held(client: httpx.Client, path: str) -> None:
    before = resident_bytes(os.getpid())
    with socket.create_connection((client.base_url.host, client.base_url.port or 80), timeout=10) as connection:
        connection.sendall(_HEAD.format(path, "Transfer-Encoding: chunked").encode())
        for _ in range(50):
            connection.sendall(_MEGABYTE)
        assert connection.recv(1_000).startswith(b"HTTP/1.1 413 ")
    assert resident_bytes(os.getpid()) - before < 16 * 2**20
    assert client.get("/healthz").status_code == 200


def test_more_than_was_announced_is_no_part_of_the_body(client: httpx.Client) -> None:
    with socket.create_connection((client.base_url.host, client.base_url.port or 80), timeout=10) as connection:
        connection.sendall(_HEAD.format("/plan", "Content-Length: 10").encode() + b"{" + b" " * 100_000)
        assert connection.recv(4_096).startswith(b"HTTP/1.1 422 ")
    assert client.post("/plan", json=request()).status_code == 200


def test_clients_that_hang_up_leave_their_room_to_others(database_url: str) -> None:
    slow = json.dumps(request(devices={"count": 2, "memory_bytes": GIB, "hardware": "slow"})).encode()
    configured = settings(database_url, planner_processes=1, planner_queue=1)
    with running_app(configured, FACTORY) as app, listening(app) as client:
        for _ in range(12):
            with socket.create_connection((client.base_url.host, client.base_url.port or 80), timeout=10) as connection:
                connection.sendall(_HEAD.format("/plan", f"Content-Length: {len(slow)}").encode() + slow[:-1])
        wait_for(lambda: client.post("/plan", json=request()).status_code == 200, 30)
        assert client.get("/readyz").status_code == 200
