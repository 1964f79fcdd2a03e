"""Pins, colocation and separation in requests: what is refused, where it is pointed at, and what is one question."""

import json
from typing import Any

import httpx
import pytest

from service.api.conversion import posed_problem, request_content
from service.api.parsing import Limits, parse_plan
from tests.api.support import GIB, kind, pointers, request, table

LIMITS = Limits(default_time_limit_ms=2_000, max_time_limit_ms=60_000, max_tables=20)


def _constrained(**constraints: Any) -> dict[str, Any]:
    return request(constraints=constraints)


@pytest.mark.parametrize(
    ("constraints", "pointer", "named"),
    [
        ({"pin": {"t/~9": [0]}}, "/constraints/pin/t~1~09", "t/~9"),
        ({"pin": {"t0": []}}, "/constraints/pin/t0", "t0"),
        ({"pin": {"t0": [0, 2]}}, "/constraints/pin/t0/1", "t0"),
        ({"pin": {"t1": [0, -1]}}, "/constraints/pin/t1/1", "t1"),
        ({"pin": {"t1": ["0"]}}, "/constraints/pin/t1/0", "t1"),
        ({"pin": {"t1": 0}}, "/constraints/pin/t1", "t1"),
        ({"pin": [["t1", 0]]}, "/constraints/pin", None),
        ({"colocate": ["t0", "t1"]}, "/constraints/colocate/0", None),
        ({"colocate": [["t0"]]}, "/constraints/colocate/0", "t0"),
        ({"colocate": [["t0", "t1", "t0"]]}, "/constraints/colocate/0/2", "t0"),
        ({"separate": [["t0", "t1"], ["t0", "a/b"]]}, "/constraints/separate/1/1", "a/b"),
        ({"colocate": [["t0", "t1"], ["t1", "t2"]], "separate": [["t0", "t2"]]}, "/constraints/separate/0/1", "t2"),
        ({"colocate": [["t0", "t1"]], "pin": {"t1": [1], "t0": [0]}}, "/constraints/pin/t0", "t0"),
    ],
)
def test_constraints_at_fault_are_pointed_at_with_their_table(
    client: httpx.Client, constraints: dict[str, Any], pointer: str, named: str | None
) -> None:
    response = client.post("/plan", json=_constrained(**constraints))
    assert pointer in pointers(response)
    assert {fault["table"] for fault in response.json()["faults"]} == {named}


def test_constraints_are_judged_beside_faults_elsewhere(client: httpx.Client) -> None:
    body = _constrained(pin={"t0": [0, 700], "wide\tname": [1]}, separate=[["t0", "nobody"]])
    body["devices"] = {"count": 800, "memory_bytes": 0, "hardware": "fake"}
    body["tables"].append(table("wide\tname", pooling_factor=-1))
    wanted = {"/devices/memory_bytes", "/tables/3/pooling_factor", "/constraints/separate/0/1"}
    assert pointers(client.post("/plan", json=body)) == wanted


def test_constraints_reach_the_problem_as_they_are_given() -> None:
    body = _constrained(pin={"t0": [1, 0]}, colocate=[["t2", "t1"]], separate=[["t1", "t0"]])
    constraints = posed_problem(parse_plan(json.dumps(body).encode(), LIMITS)).constraints
    assert constraints.pin == {"t0": (1, 0)}
    assert (constraints.colocate, constraints.separate) == ((("t2", "t1"),), (("t1", "t0"),))


def test_a_body_without_constraints_poses_a_problem_without_any() -> None:
    constraints = posed_problem(parse_plan(json.dumps(request()).encode(), LIMITS)).constraints
    assert (constraints.pin, constraints.colocate, constraints.separate) == ({}, (), ())


def _content(**constraints: Any) -> dict[str, Any]:
    names = [f"t{i}" for i in range(6)]
    body = _constrained(**constraints) | {"tables": [table(name) for name in names]}
    return request_content(parse_plan(json.dumps(body).encode(), LIMITS))


def test_a_question_is_the_same_in_whatever_order_its_constraints_are_given() -> None:
    one = _content(
        pin={"t0": [0, 1], "t5": [1]}, colocate=[["t0", "t1"], ["t2", "t3"]], separate=[["t4", "t5"], ["t0", "t2"]]
    )
    other = _content(
        pin={"t5": [1, 1], "t0": [1, 0]}, colocate=[["t3", "t2"], ["t1", "t0"]], separate=[["t2", "t0"], ["t5", "t4"]]
    )
    assert json.dumps(one) == json.dumps(other)


def test_other_constraints_are_another_question() -> None:
    questions = [
        _content(),
        _content(pin={"t0": [0]}),
        _content(pin={"t0": [1]}),
        _content(colocate=[["t0", "t1"]]),
        _content(separate=[["t0", "t1"]]),
        _content(separate=[["t0", "t1"], ["t2", "t3"]]),
        _content(separate=[["t0", "t1", "t2", "t3"]]),
    ]
    assert len({json.dumps(question) for question in questions}) == len(questions)


def test_as_many_tables_as_there_are_may_be_pinned_but_no_other_object_is_wide(client: httpx.Client) -> None:
    names = [f"t{i}" for i in range(40)]
    body = request(tables=[table(name) for name in names], constraints={"pin": {name: [0, 1] for name in names}})
    assert client.post("/plan", json=body).status_code == 200
    wide = {f"m{i}": i for i in range(40)}
    for changed in (body | wide, body | {"devices": wide}, body | {"tables": [table() | wide]}):
        response = client.post("/plan", json=changed)
        assert pointers(response) == {""}
        assert "more than 16 members" in response.json()["detail"]


def test_a_table_that_is_pinned_twice_is_named(client: httpx.Client) -> None:
    pins = ", ".join(f'"t{i % 20}": [0]' for i in range(21))
    body = json.dumps(_constrained(pin="PINS")).replace('"PINS"', f"{{{pins}}}")
    response = client.post("/plan", content=body, headers={"content-type": "application/json"})
    assert pointers(response) == {""}
    assert "given twice: 't0'" in response.json()["detail"]


@pytest.mark.parametrize(
    ("constraints", "pointer"),
    [
        ({"pin": {f"x{i}": [0] for i in range(101)}}, "/constraints/pin"),
        ({"colocate": [["t0"] * 801]}, "/constraints/colocate"),
        ({"separate": [[]] * 801}, "/constraints/separate"),
    ],
)
def test_more_constraints_than_the_service_takes_are_refused_at_once(
    client: httpx.Client, constraints: dict[str, Any], pointer: str
) -> None:
    assert pointers(client.post("/plan", json=_constrained(**constraints))) == {pointer}


def test_a_pin_that_no_name_can_be_is_refused(client: httpx.Client) -> None:
    body = json.dumps(_constrained(pin="PIN")).replace('"PIN"', '{"\\ud800": [0]}')
    response = client.post("/plan", content=body, headers={"content-type": "application/json"})
    assert (response.status_code, kind(response)) == (422, "invalid_request")


def test_an_estimate_refuses_what_a_plan_refuses(client: httpx.Client) -> None:
    body = _constrained(pin={"t0": [5]}) | {"tables": [table("t0")]}
    del body["algorithm"]
    body["shards"] = [{"table": "t0", "columns": [0, 64], "device": 0}]
    assert pointers(client.post("/estimate", json=body)) == {"/constraints/pin/t0/0"}
    body["constraints"] = {"pin": {"t0": [1]}}
    assert client.post("/estimate", json=body).status_code == 200


def test_a_stored_plan_with_constraints_can_be_estimated(client: httpx.Client) -> None:
    body = _constrained(pin={"t0": [0, 1]}, separate=[["t1", "t2"]])
    body["devices"] = {"count": 3, "memory_bytes": GIB, "hardware": "fake"}
    plan = client.post("/plan", json=body).json()
    answer = client.post("/estimate", json={"plan_id": plan["plan_id"]}).json()
    assert answer["devices"] == plan["devices"]
