"""What errors say, keep, and do not give away."""

import asyncio
import pickle
import traceback
from typing import Any

import httpx
import pytest

import shardwright_client
from shardwright_client import (
    AsyncClient,
    Busy,
    Client,
    Forbidden,
    Infeasible,
    InvalidArgument,
    InvalidRequest,
    NoPlanInTime,
    NotFound,
    Plan,
    ProblemError,
    ServiceFailed,
    ShardwrightError,
    Unauthorized,
    Unsupported,
)
from tests.client.asked import BOTH, QUESTION, URL, Answers, Asking, plan_answer, planned, problem, with_client

KEY = "sw_SECRET.0123"


def refused(answer: httpx.Response) -> Any:
    with pytest.raises(ProblemError) as raised:
        with_client(planned, handler=Answers(answer), timeout_s=0.05)
    return raised.value


@pytest.mark.parametrize(
    ("status", "kind", "expected"),
    [
        (422, "invalid_request", InvalidRequest),
        (422, "unsupported_sharding", Unsupported),
        (422, "unknown_hardware", Unsupported),
        (422, "infeasible", Infeasible),
        (422, "no_plan_in_time", NoPlanInTime),
        (422, "something_new", ProblemError),
        (404, "plan_not_found", NotFound),
        (401, "unauthenticated", Unauthorized),
        (403, "insufficient_scope", Forbidden),
        (429, "rate_limited", Busy),
        (503, "storage_unavailable", Busy),
        (500, "internal_error", ServiceFailed),
    ],
)
def test_each_kind_of_problem_has_its_class(status: int, kind: str, expected: type[ProblemError]) -> None:
    error = refused(problem(status, kind))
    assert type(error) is expected
    assert (error.kind, error.status, error.title, error.request_id) == (kind, status, "Words", "id-7")
    assert error.type == f"urn:shardwright:problem:{kind}"
    assert str(error).startswith(f"POST {URL}/plan: {status} {kind}: what is wrong (request id-7)")


def test_messages_are_one_line() -> None:
    assert "422 infeasible: a b" in str(refused(problem(422, "infeasible", detail="a\nb")))


def test_an_invalid_request_names_every_field() -> None:
    faults: list[dict[str, Any]] = [
        {"pointer": "/tables/0/embedding_dim", "message": "must be a multiple of 4", "table": "t0"},
        {"pointer": "/optimizer", "message": "is required", "table": None},
        {"pointer": "/tables/1/name", "message": "too long", "table": "t1"},
        {"pointer": "/tables/2/name", "message": "table 't2': too long", "table": "t2"},
    ]
    error = refused(problem(422, "invalid_request", detail="/tables/0/embedding_dim: m (and 3 more)", faults=faults))
    assert [fault.pointer for fault in error.errors] == [fault["pointer"] for fault in faults]
    assert error.errors[0].table == "t0"
    assert ": /tables/0/embedding_dim: m (table 't0'); /optimizer: is required; " in str(error)
    assert "/tables/1/name: too long (table 't1'); /tables/2/name: table 't2': too long (request" in str(error)
    many = refused(problem(422, "invalid_request", detail="/optimizer: m (and 11 more)", faults=faults * 3))
    assert str(many).endswith("embedding_dim: must be a multiple of 4 (table 't0'); and 7 more (request id-7)")
    (pointed,) = refused(problem(422, "unknown_hardware", pointer="/devices/hardware", faults=None)).errors
    assert (pointed.pointer, pointed.message) == ("/devices/hardware", "what is wrong")


def test_an_infeasible_request_says_what_would_help() -> None:
    facts: dict[str, Any] = {
        "reason": "total_memory", "proven": True, "shortfall_bytes": 7, "tables": ["t0"], "devices": [1],
        "remedies": ["give each device 2 GiB", "add a device"],
    }  # fmt: skip
    error = refused(problem(422, "infeasible", **facts))
    assert (error.reason, error.proven, error.shortfall_bytes) == ("total_memory", True, 7)
    assert (error.tables, error.devices) == (("t0",), (1,))
    assert error.remedies == tuple(facts["remedies"])
    assert "what would help: give each device 2 GiB | add a device" in str(error)
    assert error.extra == facts


def test_a_problem_that_says_little_is_still_told() -> None:
    vague = refused(problem(422, "infeasible", shortfall_bytes=None))
    assert (vague.reason, vague.proven, vague.shortfall_bytes, vague.tables, vague.remedies) == ("", False, 0, (), ())
    answer = httpx.Response(418, json={"type": "about:blank"}, headers={"X-Request-ID": "h-1"})
    error = refused(answer)
    assert (error.status, error.request_id, error.errors) == (418, "h-1", ())


def test_errors_can_be_sent_to_other_ranks() -> None:
    for answer in (problem(422, "infeasible", reason="pinned"), problem(503, "planner_busy", {"Retry-After": "1"})):
        error = refused(answer)
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error)
        assert (str(again), again.problem, again.request) == (str(error), error.problem, error.request)
        assert again.retry_after_s == error.retry_after_s


@pytest.mark.parametrize("ask", BOTH)
@pytest.mark.parametrize(
    "answer",
    [plan_answer(), problem(401, "unauthenticated"), httpx.Response(200, text="no"), httpx.ConnectError("refused")],
)
def test_the_key_is_sent_and_never_shown(ask: Asking, answer: httpx.Response | Exception) -> None:
    answers, shown = Answers(answer), []

    def look(client: Any) -> Any:
        shown.append(repr(client) + repr(client._configuration) + repr(client._http.headers))
        return planned(client)

    try:
        ask(look, handler=answers, api_key=f" {KEY}\n", timeout_s=0.05)
    except ShardwrightError as error:
        shown += [repr(error), repr(error.request), *traceback.format_exception(error)]
        assert KEY.encode() not in pickle.dumps(error)
    assert answers.requests[0].headers["authorization"] == f"Bearer {KEY}"
    assert "SECRET" not in "".join(shown)


def test_the_service_and_the_key_are_taken_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDWRIGHT_URL", "http://from.test/base/\n")
    monkeypatch.setenv("SHARDWRIGHT_API_KEY", KEY)
    answers = Answers(plan_answer())
    with Client(transport=httpx.MockTransport(answers)) as client:
        client.get_plan("abc")
        assert client.base_url == "http://from.test/base"
    (request,) = answers.requests
    assert (str(request.url), request.method) == ("http://from.test/base/plans/abc", "GET")
    assert request.headers["authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "pass base_url or set SHARDWRIGHT_URL"),
        ({"base_url": ""}, "no service is named"),
        ({"base_url": "localhost:8000"}, "is no address"),
        ({"base_url": "ftp://x"}, "is no address"),
        ({"base_url": "http://"}, "is no address"),
        ({"base_url": "http://x?y=1"}, "is no address"),
        ({"base_url": "http://x:port"}, "cannot be read"),
        ({"base_url": "http://shardwright..svc:8000"}, "cannot be read"),
        ({"base_url": f"http://{'x' * 64}"}, "cannot be read"),
        ({"base_url": f"http://user:{KEY}@x"}, "must not have a user or password"),
        ({"base_url": URL, "api_key": f"{KEY} y"}, "characters that no key has"),
        ({"base_url": URL, "api_key": f"{KEY}é"}, "characters that no key has"),
        ({"base_url": URL, "api_key": f"{KEY}\r\nX: y"}, "characters that no key has"),
        ({"base_url": URL, "timeout_s": 0}, "timeout_s must be above 0"),
        ({"base_url": URL, "read_timeout_s": float("nan")}, "read_timeout_s must be above 0"),
    ],
)
def test_a_client_that_cannot_ask_is_not_made(
    monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], said: str
) -> None:
    monkeypatch.delenv("SHARDWRIGHT_URL", raising=False)
    with pytest.raises(InvalidArgument) as raised:
        Client(**arguments)
    assert said in str(raised.value)
    assert "SECRET" not in "".join(traceback.format_exception(raised.value))


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("SSL_CERT_FILE", "/no/such/file", "No such file"),
        ("HTTP_PROXY", f"ftp://user:{KEY}@proxy.test", "ftp"),
        ("HTTP_PROXY", f"http://user:{KEY}@proxy.test:port", "port"),
    ],
)
def test_an_environment_that_cannot_be_used_is_told(
    monkeypatch: pytest.MonkeyPatch, kind: Any, variable: str, value: str, said: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(InvalidArgument, match=rf"certificates .* cannot be used: .*{said}") as raised:
        kind(URL)
    assert "SECRET" not in "".join(traceback.format_exception(raised.value))


def test_what_cannot_be_sent_is_said_before_anything_is_asked() -> None:
    answers = Answers(plan_answer())
    calls = [
        lambda client: client.plan({"tables": [float("nan")]}),
        lambda client: client.plan({"tables": {1, 2}}),
        lambda client: client.plan([1]),
        lambda client: client.plan(QUESTION, idempotency_key="a\r\nb"),
        lambda client: client.plan(QUESTION, idempotency_key=""),
        lambda client: client.delete_plan("../models"),
        lambda client: client.get_plan("../models"),
        lambda client: client.get_plan(""),
        lambda client: client.observe("a/b", {}),
        lambda client: client.wait_for_profile("x y"),
        lambda client: client.wait_for_profile("a", 0),
    ]
    for call in calls:
        with pytest.raises(InvalidArgument):
            with_client(call, handler=answers)
    assert answers.requests == []
    with pytest.raises(ValueError, match="no Plan: /plan_id is missing"):
        Plan.from_json({})


@pytest.mark.parametrize("ask", BOTH)
def test_a_closed_client_says_so(ask: Asking) -> None:
    kept: list[Any] = []
    answers = Answers(plan_answer())

    def keep(client: Any) -> Any:
        kept.append(client)
        return planned(client)

    ask(keep, handler=answers)
    with pytest.raises(InvalidArgument, match="the client is closed: make another"):
        asyncio.run(kept[0].plan(QUESTION)) if isinstance(kept[0], AsyncClient) else kept[0].plan(QUESTION)
    assert len(answers.requests) == 1


def test_every_error_is_of_one_tree_and_has_a_docstring() -> None:
    public = [getattr(shardwright_client, name) for name in shardwright_client.__all__]
    errors = [each for each in public if isinstance(each, type) and issubclass(each, Exception)]
    assert len(errors) == 15
    for error in errors:
        assert issubclass(error, ShardwrightError)
        assert error.__doc__
