"""The same call through both clients, over whatever transport a test wants."""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import httpx

from shardwright_client import AsyncClient, Client, Devices, PlanRequest, Table

URL = "http://service.test"
QUESTION = PlanRequest(
    tables=[Table("t0", 1000, 64, 2.0), Table("t1", 50_000, 128, 2.0)],
    devices=Devices.with_gib(2, 1, "fake"),
    global_batch_size=512,
    optimizer="sgd",
    algorithm="dim_greedy",
)
Handler = Callable[[httpx.Request], httpx.Response]
Asking = Callable[..., Any]


def with_client(call: Callable[[Any], Any], url: str = URL, handler: Handler | None = None, **options: Any) -> Any:
    """What a call of the blocking client comes to."""
    transport = httpx.MockTransport(handler) if handler else httpx.HTTPTransport()
    with Client(url, transport=transport, **options) as client:
        return call(client)


def with_async_client(
    call: Callable[[Any], Any], url: str = URL, handler: Handler | None = None, **options: Any
) -> Any:
    """What a call of the asynchronous client comes to."""

    async def ask() -> Any:
        transport = httpx.MockTransport(handler) if handler else httpx.AsyncHTTPTransport()
        async with AsyncClient(url, transport=transport, **options) as client:
            return await call(client)

    return asyncio.run(ask())


BOTH: Sequence[Asking] = (with_client, with_async_client)


def planned(client: Any) -> Any:
    """The question, asked."""
    return client.plan(QUESTION)


class Answers:
    """A transport that gives answers in turn, the last for ever, and notes what it was asked."""

    def __init__(self, *answers: httpx.Response | Exception) -> None:
        self.requests: list[httpx.Request] = []
        self._answers = answers

    def __call__(self, request: httpx.Request) -> httpx.Response:
        answer = self._answers[min(len(self.requests), len(self._answers) - 1)]
        self.requests.append(request)
        if isinstance(answer, Exception):
            raise answer
        # A response belongs to the client that has read it.
        return httpx.Response(answer.status_code, headers=answer.headers, content=answer.content)


def plan_answer(**changes: Any) -> httpx.Response:
    """A plan of one shard on one device."""
    costs = dict.fromkeys(
        ("forward_compute", "backward_compute", "forward_wait", "forward_transfer", "backward_comm", "total"), 1.0
    )
    memory = {"weights": 1, "optimizer": 2, "buffers": 3, "total": 6}
    answer = {
        "plan_id": "0" * 32,
        "status": "complete",
        "saved": True,
        "algorithm": "auto",
        "shards": [{"table": "t0", "sharding_type": "table_wise", "columns": [0, 64], "device": 0}],
        "devices": [{"device": 0, "memory_limit_bytes": 9, "memory_bytes": memory, "cost_ms": costs}],
        "max_cost_ms": 1,
        "models": {"compute": "fake/compute/1"},
        "assumptions": ["something"],
        "planning_ms": 2.5,
    }
    return httpx.Response(200, json=answer | changes)


def problem(status: int, kind: str, headers: dict[str, str] | None = None, **members: Any) -> httpx.Response:
    """A problem of the service."""
    body = {
        "type": f"urn:shardwright:problem:{kind}", "title": "Words", "status": status, "detail": "what is wrong",
        "instance": "id-7",
    }  # fmt: skip
    given = {"Content-Type": "application/problem+json"} | (headers or {})
    return httpx.Response(status, json=body | members, headers=given)


@contextmanager
def raw_server(*answers: bytes) -> Iterator[str]:
    """The address of a server that sends these bytes in turn, each to one connection, and cuts it off."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for answer in answers:
                connection, _ = listener.accept()
                with connection:
                    connection.settimeout(10)
                    connection.recv(65_536)
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            thread.join(10)


@contextmanager
def silent_server() -> Iterator[str]:
    """The address of a server that takes connections and requests, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
