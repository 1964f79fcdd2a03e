"""Bodies of any length, on every route that takes one, by callers with a key and without."""

import os
import socket

import pytest

from service.domain.callers import Scope
from tests.api.keyed import Keyed
from tests.api.processes import resident_bytes, wait_for

ROUTES = [
    "/plan", "/estimate", "/profiles", "/plans/x/observations", "/models/fake/compute/1/promote",
    "/models/fake/compute/rollback",
]  # fmt: skip
CHUNK = b"10000\r\n" + b"\0" * 65_536 + b"\r\n"


@pytest.fixture(scope="module")
def secret(keyed_service: Keyed) -> str:
    """A key that the service knows already."""
    _, secret = keyed_service.key("large", Scope.ADMIN)
    with keyed_service.caller({"X-API-Key": secret}) as client:
        wait_for(lambda: client.get("/models").status_code == 200)
    return secret


def _answer(service: Keyed, path: str, headers: list[str], body: bytes, times: int = 1) -> int:
    """The status of what is answered to a body that comes so many times."""
    head = "\r\n".join([f"POST {path} HTTP/1.1", "Host: x", "Content-Type: application/json", *headers, "", ""])
    with socket.create_connection(("127.0.0.1", service.port), timeout=20) as connection:
        connection.sendall(head.encode())
        try:
            for _ in range(times):
                connection.sendall(body)
        except OSError:
            # It answered and hung up.
            pass
        return int(connection.recv(1_024).split()[1])


@pytest.mark.parametrize("path", ROUTES)
def test_a_body_without_an_announced_end_is_refused_at_the_limit(keyed_service: Keyed, secret: str, path: str) -> None:
    chunked, before = ["Transfer-Encoding: chunked"], resident_bytes(os.getpid())
    assert _answer(keyed_service, path, [*chunked, f"X-API-Key: {secret}"], CHUNK, 3) == 413
    # Without a key nobody's body is read at all.
    assert _answer(keyed_service, path, chunked, CHUNK, 3) == 401
    assert resident_bytes(os.getpid()) - before < 20_000_000


def test_two_hundred_megabytes_do_not_come_in(keyed_service: Keyed, secret: str) -> None:
    before = resident_bytes(os.getpid())
    headers = ["Transfer-Encoding: chunked", f"X-API-Key: {secret}"]
    status = _answer(keyed_service, "/plan", headers, CHUNK, 200_000_000 // len(CHUNK))
    assert status == 413
    assert resident_bytes(os.getpid()) - before < 20_000_000


@pytest.mark.parametrize("path", ROUTES)
def test_what_comes_after_the_announced_length_is_not_the_body(keyed_service: Keyed, secret: str, path: str) -> None:
    status = _answer(keyed_service, path, ["Content-Length: 10", f"X-API-Key: {secret}"], b'{"a": [1,2' * 100)
    assert status == 422
