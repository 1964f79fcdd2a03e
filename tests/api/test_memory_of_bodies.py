"""What bodies at the limits cost a service of its own in memory, at their worst moment."""

import json
import socket
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from service.settings import Settings
from tests.api.processes import peak_resident_bytes, resident_bytes, wait_for
from tests.api.replicas import Replica
from tests.api.small_store import question, small_store
from tests.api.support import table

_LIMIT = Settings().max_body_bytes
_AT_ONCE = 8
_CHUNK = b"10000\r\n" + b"\0" * 65_536 + b"\r\n"


@pytest.fixture
def replica(database_url: str, tmp_path: Path) -> Iterator[Replica]:
    small_store(str(tmp_path / "models"))
    replica = Replica(database_url, tmp_path / "models", tmp_path / "replica.log")
    try:
        wait_for(replica.answers, 60)
        yield replica
    finally:
        replica.end()


def _filled(body: Mapping[str, object], item: object) -> bytes:
    """A body whose tables are as many of one item as the limit has room for."""
    text = json.dumps(item).encode()
    head, tail = json.dumps({**body, "tables": ["here"]}).encode().split(b'"here"')
    return head + b",".join([text] * ((_LIMIT - len(head) - len(tail)) // (len(text) + 1))) + tail


BODIES = {
    "tables": _filled(question(), table()),
    "numbers": _filled(question(), 1),
    "nothing": _filled(question(), {}),
    "nested": b"[" * (_LIMIT // 2) + b"]" * (_LIMIT // 2),
    "text": b'"' + b"x" * (_LIMIT - 2) + b'"',
}


def _chunked(replica: Replica) -> int:
    """The status that is answered to 200 MB without an announced end."""
    with socket.create_connection((replica.client.base_url.host, replica.client.base_url.port or 0), 20) as connection:
        head = "POST /plan HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        connection.sendall(head.encode())
        try:
            for _ in range(200_000_000 // len(_CHUNK)):
                connection.sendall(_CHUNK)
        except OSError:
            # It answered and hung up.
            pass
        return int(connection.recv(1_024).split()[1])


@pytest.mark.slow
def test_bodies_at_the_limits_cost_a_bounded_memory_however_often_they_come(replica: Replica) -> None:
    before, peaks = resident_bytes(replica.process.pid), []

    def sent(body: bytes) -> int:
        return replica.client.post("/plan", content=body, headers={"content-type": "application/json"}).status_code

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for _ in range(3):
            for body in BODIES.values():
                assert set(pool.map(sent, [body] * _AT_ONCE)) == {422}
            assert set(pool.map(_chunked, [replica] * _AT_ONCE)) == {413}
            peaks.append(peak_resident_bytes(replica.process.pid) - before)
    assert peaks[-1] < 1.1 * peaks[-2]
    assert peaks[-1] < 2**30
    assert replica.client.post("/plan", json=question(algorithm="dim_greedy")).json()["saved"] is True
