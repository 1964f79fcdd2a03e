"""Request ids, metrics and log lines."""

import io
import json
import logging
from collections.abc import Iterator

import httpx
import pytest

from service.telemetry import logging as structured_logging
from tests.api.processes import wait_for
from tests.api.support import request


def _series(client: httpx.Client) -> set[str]:
    lines = client.get("/metrics").text.splitlines()
    return {line.rsplit(" ", 1)[0] for line in lines if not line.startswith("#")}


def test_hostile_paths_and_methods_add_no_series_but_unmatched_and_other(client: httpx.Client) -> None:
    client.get("/random")
    client.request("FOO", "/plan")
    client.request("FOO", "/random")
    _series(client)
    before = _series(client)
    for i in range(50):
        client.get(f"/random/{i}")
        client.request(f"FOO{i}", "/plan")
        client.request(f"BAR{i}", f"/random/{i}")
        client.get(f"/plans/{i}")
    added = _series(client) - before
    assert {series for series in added if 'route="/plans/{plan_id}"' not in series} == set()
    assert 'shardwright_http_requests_total{method="GET",route="unmatched",status="404"}' in before
    assert 'shardwright_http_requests_total{method="other",route="/plan",status="405"}' in before


def test_requests_and_plans_are_counted(client: httpx.Client) -> None:
    before = _value(client, 'shardwright_plans_total{algorithm="random",outcome="complete"}')
    client.post("/plan", json=request(algorithm="random", seed=77))
    client.post("/plan", json=request(algorithm="random", seed=77))
    assert _value(client, 'shardwright_plans_total{algorithm="random",outcome="complete"}') == before + 1
    assert _value(client, 'shardwright_plans_total{algorithm="random",outcome="stored"}') >= 1
    assert _value(client, 'shardwright_planning_seconds_count{algorithm="random"}') == before + 1
    assert _value(client, 'shardwright_http_requests_total{method="POST",route="/plan",status="200"}') >= 2
    series = _series(client)
    assert 'shardwright_model_info{hardware="fake",kind="compute",version="fake/compute/1"}' in series
    assert any(line.startswith("shardwright_build_info{") for line in series)


def _value(client: httpx.Client, series: str) -> float:
    for line in client.get("/metrics").text.splitlines():
        if line.startswith(series + " "):
            return float(line.rsplit(" ", 1)[1])
    return 0.0


@pytest.mark.parametrize("path", ["/healthz", "/nothing", "/plans/none", "/plan"])
def test_a_sane_request_id_is_returned_in_every_answer(client: httpx.Client, path: str) -> None:
    assert client.get(path, headers={"X-Request-ID": "trace-42!"}).headers["x-request-id"] == "trace-42!"


@pytest.mark.parametrize("given", ["", "a b", "x" * 129, "caf\xe9", "\x7f"])
def test_a_request_id_that_is_not_sane_is_replaced(client: httpx.Client, given: str) -> None:
    made = client.get("/healthz", headers={b"X-Request-ID": given.encode("latin-1")}).headers["x-request-id"]
    assert made != given
    assert len(made) == 32


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """What is logged, in the service's form."""
    root = logging.getLogger()
    before = (root.level, root.handlers[:])
    stream = io.StringIO()
    structured_logging.configure("info", stream)
    yield stream
    root.handlers[:] = before[1]
    root.setLevel(before[0])


def test_each_request_leaves_one_access_line_with_its_id(client: httpx.Client, lines: io.StringIO) -> None:
    client.get("/a%22%0Ab", headers={"X-Request-ID": "mine"})
    # The line follows the end of the answer.
    wait_for(lambda: "service.access" in lines.getvalue())
    logged = [json.loads(line) for line in lines.getvalue().splitlines()]
    (access,) = [entry for entry in logged if entry["logger"] == "service.access"]
    assert (access["request_id"], access["status"], access["route"]) == ("mine", 404, None)
    assert access["path"] == '/a"\nb'
    assert access["duration_ms"] >= 0
