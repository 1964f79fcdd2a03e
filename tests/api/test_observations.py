"""POST and GET /plans/{plan_id}/observations."""

import json
import math
import zlib
from typing import Any

import httpx
import pytest

from tests.api.support import kind, pointers, request


@pytest.fixture
def plan(client: httpx.Client, request: pytest.FixtureRequest) -> dict[str, Any]:
    """A plan of this test's own."""
    seed = zlib.crc32(request.node.nodeid.encode())
    answer: dict[str, Any] = client.post("/plan", json=_question(seed)).json()
    return answer


def _question(seed: int) -> dict[str, Any]:
    return request(seed=seed)


def times(plan: dict[str, Any], rank: int = 0, steps: tuple[int, int] = (100, 200), factor: float = 1.0) -> Any:
    cost = plan["devices"][rank]["cost_ms"]
    return {
        "rank": rank,
        "steps": list(steps),
        "forward_compute_ms": cost["forward_compute"] * factor,
        "backward_compute_ms": cost["backward_compute"] * factor,
    }


def url(plan: dict[str, Any]) -> str:
    return f"/plans/{plan['plan_id']}/observations"


def test_what_was_measured_is_answered_beside_what_was_predicted(client: httpx.Client, plan: dict[str, Any]) -> None:
    cost = plan["devices"][1]["cost_ms"]
    second = times(plan, 1, factor=3.0) | {
        "forward_comm_ms": cost["forward_wait"] + cost["forward_transfer"],
        "backward_comm_ms": 0.0,
        "total_ms": cost["total"],
    }
    body = {"observations": [times(plan), second], "environment": {"device": "größe", "bench": "1"}}
    posted = client.post(url(plan), json=body)
    assert posted.status_code == 201, posted.text
    answer = posted.json()
    assert (answer["plan_id"], answer["stored"]) == (plan["plan_id"], 2)
    first, other = answer["observations"]
    assert (first["rank"], first["steps"], first["launch_id"]) == (0, [100, 200], None)
    assert first["environment"] == {"device": "größe", "bench": "1"}
    assert first["costs"]["forward_comm"] is None
    forward = first["costs"]["forward_compute"]
    assert (forward["ratio"], forward["within_interval"]) == (1.0, True)
    assert forward["interval_ms"] == plan["devices"][0]["cost_interval_ms"]["forward_compute"]
    assert other["costs"]["forward_compute"]["ratio"] == 3.0
    assert other["costs"]["forward_compute"]["within_interval"] is False
    assert other["costs"]["forward_comm"]["within_interval"] is True
    assert (other["costs"]["total"]["ratio"], other["costs"]["backward_comm"]["ratio"]) == (1.0, 0.0)
    summary = {each["part"]: each for each in answer["summary"]}
    assert summary["forward_compute"] == {
        "part": "forward_compute", "observations": 2, "median_ratio": 2.0, "share_within_interval": 0.5,
    }  # fmt: skip
    assert summary["total"]["observations"] == 1

    shown = client.get(url(plan)).json()
    assert shown == {name: value for name, value in answer.items() if name != "stored"} | {"next_cursor": None}


def test_posting_again_stores_nothing_and_answers_what_is_stored(client: httpx.Client, plan: dict[str, Any]) -> None:
    first = client.post(url(plan), json={"observations": [times(plan)]}).json()
    again = client.post(url(plan), json={"observations": [times(plan, factor=2.0)]})
    assert again.status_code == 201
    assert again.json() == first | {"stored": 0}


def test_pages_of_observations_follow_each_other(client: httpx.Client, plan: dict[str, Any]) -> None:
    given = [times(plan, steps=(i, i + 1)) for i in range(5)]
    client.post(url(plan), json={"observations": given})
    steps: list[int] = []
    cursor: dict[str, str] = {}
    while True:
        page = client.get(url(plan), params={"limit": 2, **cursor}).json()
        steps += [each["steps"][0] for each in page["observations"]]
        assert page["summary"][0]["observations"] == len(page["observations"])
        if page["next_cursor"] is None:
            break
        cursor = {"cursor": page["next_cursor"]}
    assert steps == list(range(5))


@pytest.mark.parametrize("query", [{"limit": "0"}, {"limit": "1001"}, {"limit": "a"}, {"cursor": "x"}, {"cursor": ""}])
def test_a_page_that_cannot_be_is_refused(client: httpx.Client, plan: dict[str, Any], query: dict[str, str]) -> None:
    refused = client.get(url(plan), params=query)
    assert (refused.status_code, kind(refused)) == (422, "invalid_request")
    assert [fault["parameter"] for fault in refused.json()["faults"]] == list(query)
    assert refused.json()["detail"].startswith(f"{next(iter(query))}: must be ")


def test_each_parameter_of_a_page_that_cannot_be_is_named(client: httpx.Client, plan: dict[str, Any]) -> None:
    refused = client.get(url(plan), params={"limit": "0", "cursor": "x"})
    assert [fault["parameter"] for fault in refused.json()["faults"]] == ["limit", "cursor"]


@pytest.mark.parametrize("plan_id", ["0" * 32, "none", "..", "%00"])
def test_without_a_stored_plan_there_is_nothing_to_observe(client: httpx.Client, plan_id: str) -> None:
    body = {"observations": [{"rank": 0, "steps": [0, 1], "forward_compute_ms": 1, "backward_compute_ms": 1}]}
    for response in (
        client.get(f"/plans/{plan_id}/observations"),
        client.post(f"/plans/{plan_id}/observations", json=body),
    ):
        assert response.status_code == 404
        assert kind(response) in ("plan_not_found", "not_found")


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"rank": 2}, "/observations/1/rank"),
        ({"rank": -1}, "/observations/1/rank"),
        ({"rank": True}, "/observations/1/rank"),
        ({"steps": [200, 100]}, "/observations/1/steps"),
        ({"steps": [100, 100]}, "/observations/1/steps"),
        ({"steps": [100]}, "/observations/1/steps"),
        ({"steps": [-1, 100]}, "/observations/1/steps/0"),
        ({"steps": [0, 2**53]}, "/observations/1/steps/1"),
        ({"forward_compute_ms": -0.1}, "/observations/1/forward_compute_ms"),
        ({"forward_compute_ms": "1"}, "/observations/1/forward_compute_ms"),
        ({"backward_compute_ms": None}, "/observations/1/backward_compute_ms"),
        ({"total_ms": 1e10}, "/observations/1/total_ms"),
        ({"mean": 1}, "/observations/1/mean"),
        ({"rank": 0}, "/observations/1"),
    ],
)
def test_a_bad_observation_is_named_and_none_is_stored(
    client: httpx.Client, plan: dict[str, Any], change: dict[str, Any], pointer: str
) -> None:
    body = {"observations": [times(plan), times(plan, 1) | change]}
    assert pointers(client.post(url(plan), json=body)) == {pointer}
    assert client.get(url(plan)).json()["observations"] == []


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"observations": []}, "/observations"),
        ({"launch_id": ""}, "/launch_id"),
        ({"environment": {"bench": "new"}}, "/environment/bench"),
        ({"environment": {"bench": "٣"}}, "/environment/bench"),
        ({"environment": {"a": 1}}, "/environment/a"),
        ({"environment": {"a": "b\x00"}}, "/environment/a"),
        ({"environment": {"a": "\ud800"}}, "/environment/a"),
        ({"environment": {str(i): "" for i in range(17)}}, ""),
        (
            {
                "observations": [
                    {"rank": 0, "steps": [i, i + 1], "forward_compute_ms": 1, "backward_compute_ms": 1}
                    for i in range(1001)
                ]
            },
            "/observations",
        ),
    ],
)
def test_a_bad_body_is_named(client: httpx.Client, plan: dict[str, Any], change: dict[str, Any], pointer: str) -> None:
    content = json.dumps({"observations": [times(plan)]} | change)
    response = client.post(url(plan), content=content, headers={"Content-Type": "application/json"})
    assert pointers(response) == {pointer}


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_time_that_is_no_number_is_refused(client: httpx.Client, plan: dict[str, Any], value: float) -> None:
    content = json.dumps({"observations": [times(plan) | {"total_ms": value}]})
    response = client.post(url(plan), content=content, headers={"Content-Type": "application/json"})
    assert pointers(response) == {"/observations/0/total_ms"}


def test_a_launch_that_never_asked_is_a_name_and_the_plan_as_stored_is_compared(
    client: httpx.Client, plan: dict[str, Any]
) -> None:
    body = {"observations": [times(plan)], "launch_id": "night"}
    answer = client.post(url(plan), json=body).json()
    assert answer["observations"][0]["launch_id"] == "night"
    assert answer["observations"][0]["costs"]["forward_compute"]["ratio"] == 1.0
    assert client.post(url(plan), json={"observations": [times(plan)]}).json()["stored"] == 1


def _value(client: httpx.Client, series: str) -> float:
    lines = client.get("/metrics").text.splitlines()
    return next((float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(series + " ")), 0.0)


def test_drift_is_counted_by_hardware_once_an_observation(client: httpx.Client, plan: dict[str, Any]) -> None:
    part = 'hardware="fake",part="forward_compute"'
    series = {
        "yes": f'shardwright_observed_costs_total{{{part},within="yes"}}',
        "no": f'shardwright_observed_costs_total{{{part},within="no"}}',
        "ratios": f"shardwright_observed_over_predicted_count{{{part}}}",
        "low": 'shardwright_observed_over_predicted_bucket{hardware="fake",le="1.05",part="forward_compute"}',
    }
    before = {name: _value(client, each) for name, each in series.items()}
    body = {"observations": [times(plan), times(plan, 1, factor=3.0)]}
    for _ in range(2):
        assert client.post(url(plan), json=body).status_code == 201
    after = {name: _value(client, each) - before[name] for name, each in series.items()}
    assert after == {"yes": 1, "no": 1, "ratios": 2, "low": 1}
