"""A service under test: request bodies, settings, a server in a thread."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI

from service.api.http_server import ImpatientProtocol
from service.settings import Settings

FACTORY = "tests.api.fake_store:FakeStore"
GIB = 1024**3


def table(name: str = "t0", **changes: Any) -> dict[str, Any]:
    """One table of a request."""
    return {"name": name, "num_embeddings": 1000, "embedding_dim": 64, "pooling_factor": 2.0} | changes


def request(**changes: Any) -> dict[str, Any]:
    """A request that can be planned."""
    return {
        "tables": [table("t0"), table("t1", num_embeddings=50_000, embedding_dim=128), table("t2", pooling_factor=9)],
        "devices": {"count": 2, "memory_bytes": GIB, "hardware": "fake"},
        "global_batch_size": 512,
        "optimizer": "sgd",
        "algorithm": "dim_greedy",
    } | changes


def settings(database_url: str, **changes: Any) -> Settings:
    """Settings for a small service."""
    values: dict[str, Any] = {"database_url": database_url, "planner_processes": 1, "planner_queue": 4}
    return Settings(**values | changes)


@contextmanager
def listening(app: FastAPI) -> Iterator[httpx.Client]:
    """A client of an application that a real server serves from a thread."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        config = uvicorn.Config(
            app, http=ImpatientProtocol, log_config=None, access_log=False, timeout_graceful_shutdown=5
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            with httpx.Client(base_url=url, timeout=30, trust_env=False) as client:
                yield client
        finally:
            server.should_exit = True
            thread.join()


def kind(response: httpx.Response) -> str:
    """The kind of a problem response, its form checked."""
    assert response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    assert problem["status"] == response.status_code
    assert problem["instance"] == response.headers["x-request-id"]
    return str(problem["type"]).removeprefix("urn:shardwright:problem:")


def pointers(response: httpx.Response) -> set[str]:
    """Where the faults of an invalid request are."""
    assert (response.status_code, kind(response)) == (422, "invalid_request")
    return {fault["pointer"] for fault in response.json()["faults"]}
