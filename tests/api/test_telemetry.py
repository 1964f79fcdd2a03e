"""Request ids, metrics and log lines."""

import io
import json
import logging
from collections.abc import Iterator
from math import inf
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from service.telemetry import logging as structured_logging
from service.telemetry.metrics import Metrics
from tests.api.processes import wait_for
from tests.api.support import request, table


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


def test_the_novelty_of_planned_tables_is_counted_by_hardware(client: httpx.Client) -> None:
    buckets = {le: f'shardwright_table_novelty_bucket{{hardware="fake",le="{le}"}}' for le in ("1.0", "2.0", "+Inf")}
    before = {le: _value(client, series) for le, series in buckets.items()}
    # The fake model takes ten million rows for new.
    tables = [table("known", num_embeddings=10**6), table("new", num_embeddings=15 * 10**6, embedding_dim=4)]
    plan = client.post("/plan", json=request(tables=tables, seed=78)).json()
    assert {le: _value(client, series) - before[le] for le, series in buckets.items()} == {
        "1.0": 1, "2.0": 2, "+Inf": 2,
    }  # fmt: skip
    assert any("new (1.5)" in said and "shardwright profile --tables" in said for said in plan["assumptions"])


def test_tables_of_unmeasured_hardware_are_counted_apart() -> None:
    metrics = Metrics(CollectorRegistry(), "1")
    metrics.tables_planned("h100", [inf, 0.5])
    told = metrics.exposition().decode()
    assert 'shardwright_table_novelty_bucket{hardware="h100",le="+Inf"} 1.0' in told
    assert 'shardwright_table_novelty_sum{hardware="h100"} 0.5' in told
    assert 'shardwright_tables_unmeasured_total{hardware="h100"} 1.0' in told


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

    def own() -> list[dict[str, Any]]:
        logged = [json.loads(line) for line in lines.getvalue().splitlines()]
        return [e for e in logged if e["logger"] == "service.access" and e["request_id"] == "mine"]

    # The line follows the end of the answer, as that of the test before may do still.
    wait_for(lambda: bool(own()))
    (access,) = own()
    assert (access["status"], access["route"]) == (404, None)
    assert access["path"] == '/a"\nb'
    assert access["duration_ms"] >= 0
