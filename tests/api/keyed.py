"""A service that requires keys, and keys for it, right and wrong."""

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from sqlalchemy import Engine

from service.domain.access import ApiKey, NewKey
from service.domain.callers import Scope
from service.storage.api_keys import ApiKeyRepository
from service.storage.audit import AuditTrail
from service.storage.engine import build_engine
from service.wiring import running_app
from tests.api.support import FACTORY, listening, settings


@dataclass(frozen=True)
class Keyed:
    """A service that requires keys, as its callers and its operator see it."""

    url: str
    engine: Engine
    keys: ApiKeyRepository

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.url.rpartition(":")[2])

    def key(self, name: str, *scopes: Scope, **more: Any) -> tuple[ApiKey, str]:
        """A new key and its secret."""
        return self.keys.create(NewKey(name, frozenset(scopes), **more), "a test")

    def client(self, name: str, *scopes: Scope, **more: Any) -> httpx.Client:
        """A caller with a new key."""
        return self.caller({"Authorization": f"Bearer {self.key(name, *scopes, **more)[1]}"})

    def caller(self, headers: Any) -> httpx.Client:
        """A caller with given headers."""
        return httpx.Client(base_url=self.url, timeout=30, trust_env=False, headers=headers)


@contextmanager
def keyed(database_url: str, **changes: Any) -> Iterator[Keyed]:
    """A service with fake cost models on a database."""
    engine = build_engine(database_url)
    values = {"require_keys": True, "promotion_poll_s": 1.0, "max_tables": 100, "max_body_bytes": 100_000} | changes
    with running_app(settings(database_url, **values), FACTORY) as app, listening(app) as client:
        yield Keyed(str(client.base_url), engine, ApiKeyRepository(engine, AuditTrail(engine)))
    engine.dispose()


def hostile_values(valid: bytes) -> list[bytes]:
    """What is no key, or not quite one."""
    plain = [b"", b"caf\xe9", b"\xff\x80", b"%00", b"x" * 16_384, b"shw_" + b"x" * 43, b"shw_" + b"x" * 43 + b" "]
    plain += [b"\x01\x7f", b"\t" + valid + b"\x01"]
    return [*plain, valid[:-1], valid + b"\xa0", valid + b",", b'"' + valid + b'"', b"Basic " + valid, valid.swapcase()]


def hostile_headers(valid: bytes, values: Sequence[bytes]) -> list[list[tuple[bytes, bytes]]]:
    """Values as keys in both headers, and a valid key sent twice."""
    bearer = (b"Authorization", b"Bearer " + valid)
    found = [
        [(b"X-API-Key", valid)] * 2,
        [bearer, bearer],
        [bearer, (b"X-API-Key", valid)],
        [bearer, (b"X-API-Key", b"")],
    ]
    for value in values:
        found += [[(b"X-API-Key", value)], [(b"Authorization", b"Bearer " + value)], [(b"Authorization", value)]]
    return found


def raw_answer(
    port: int, headers: Sequence[tuple[bytes, bytes]], path: bytes = b"/models"
) -> tuple[int, frozenset[bytes], bytes]:
    """Status, names of headers and body of what is answered to headers that no client library would send."""
    sent = [b"GET " + path + b" HTTP/1.1", b"Host: x", b"Connection: close", b"X-Request-ID: same"]
    sent += [name + b": " + value for name, value in headers]
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(b"\r\n".join(sent) + b"\r\n\r\n")
        answer = b"".join(iter(lambda: connection.recv(65_536), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    return int(first.split()[1]), frozenset(line.partition(b":")[0].lower() for line in lines), body
