"""Clients that hang up before they are answered: what they asked for is ended, unless others wait for it too."""

import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from tests.api.processes import wait_for
from tests.api.support import GIB, request

CANCELLED = 'shardwright_plans_total{algorithm="dim_greedy",outcome="cancelled"}'
PLANNED = 'shardwright_plans_total{algorithm="dim_greedy",outcome="complete"}'
HUNG_UP = 'shardwright_http_requests_total{method="POST",route="/plan",status="499"}'
WAITING, DEATHS = "shardwright_planner_waiting ", "shardwright_planner_deaths_total "


def stuck(**changes: Any) -> dict[str, Any]:
    """A question that nobody ever gets an answer to."""
    return request(devices={"count": 2, "memory_bytes": GIB, "hardware": "stuck"}, time_limit_ms=60_000, **changes)


def slow(**changes: Any) -> dict[str, Any]:
    """A question whose answer takes a second or two."""
    return request(devices={"count": 2, "memory_bytes": GIB, "hardware": "slow"}, time_limit_ms=60_000, **changes)


@contextmanager
def asking(client: httpx.Client, question: dict[str, Any], **headers: str) -> Iterator[None]:
    """A client that has sent a question, and hangs up at the end."""
    body = json.dumps(question).encode()
    sent = {"Host": "here", "Content-Type": "application/json", "Content-Length": str(len(body))} | headers
    head = "".join(f"{name}: {value}\r\n" for name, value in sent.items())
    with socket.create_connection((client.base_url.host, client.base_url.port or 80), timeout=10) as connection:
        connection.sendall(b"POST /plan HTTP/1.1\r\n" + head.encode() + b"\r\n" + body)
        yield


def metric(client: httpx.Client, series: str) -> float:
    lines = client.get("/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(series))


def is_planning(client: httpx.Client) -> bool:
    return metric(client, "shardwright_planner_running ") == 1


def test_a_client_that_hangs_up_leaves_its_room_to_others(client: httpx.Client) -> None:
    cancelled, hung_up, deaths = metric(client, CANCELLED), metric(client, HUNG_UP), metric(client, DEATHS)
    with asking(client, stuck()):
        wait_for(lambda: is_planning(client))
        with asking(client, stuck(seed=1)):
            wait_for(lambda: metric(client, WAITING) == 1)
        wait_for(lambda: metric(client, WAITING) == 0)
        assert is_planning(client)
    # Its time limit is a minute; the process that had it is started again.
    assert client.post("/plan", json=request(seed=701, time_limit_ms=20_000)).status_code == 200
    wait_for(lambda: metric(client, HUNG_UP) == hung_up + 2)
    assert metric(client, CANCELLED) == cancelled + 2
    assert metric(client, DEATHS) == deaths


def test_a_plan_that_another_waits_for_is_made(client: httpx.Client) -> None:
    cancelled = metric(client, CANCELLED)
    with ThreadPoolExecutor(1) as threads, asking(client, slow(seed=702)):
        wait_for(lambda: is_planning(client))
        other = threads.submit(client.post, "/plan", json=slow(seed=702))
        time.sleep(0.3)
    answer = other.result()
    assert (answer.status_code, answer.json()["saved"]) == (200, True)
    assert metric(client, CANCELLED) == cancelled


@pytest.mark.parametrize(
    ("changes", "headers"),
    [({"launch_id": "night", "seed": 703}, {}), ({"seed": 704}, {"Idempotency-Key": "night"})],
    ids=["launch", "key"],
)
def test_what_somebody_may_come_back_for_is_made(
    client: httpx.Client, changes: dict[str, Any], headers: dict[str, str]
) -> None:
    cancelled, made = metric(client, CANCELLED), metric(client, PLANNED)
    with asking(client, slow(**changes), **headers):
        wait_for(lambda: is_planning(client))
    wait_for(lambda: metric(client, PLANNED) == made + 1)
    assert metric(client, CANCELLED) == cancelled
