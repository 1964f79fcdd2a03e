"""What is tried again, when, for how long, and what is said when it is given up."""

import time
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest

from shardwright_client import ConnectionFailed, ShardwrightError, Timeout, UnexpectedAnswer
from tests.client.asked import BOTH, Answers, Asking, plan_answer, planned, problem, raw_server

pytestmark = pytest.mark.parametrize("ask", BOTH)

BUSY = {"Retry-After": "0"}
GATEWAY = httpx.Response(502, html="<html><style>p {}</style><h1>502 Bad Gateway</h1><hr>nginx</html>")


@pytest.mark.parametrize(
    "first",
    [
        problem(503, "planner_busy", BUSY),
        problem(429, "rate_limited", BUSY),
        GATEWAY,
        httpx.Response(504, html="<h1>504 Gateway Time-out</h1>"),
        httpx.ConnectError("refused"),
        httpx.ReadError("reset by peer"),
        httpx.ReadTimeout("slow"),
        httpx.RemoteProtocolError("cut off"),
    ],
)
def test_what_passes_is_tried_again(ask: Asking, first: httpx.Response | Exception) -> None:
    answers = Answers(first, plan_answer())
    assert ask(planned, handler=answers).plan_id == "0" * 32
    one, two = answers.requests
    assert one.content == two.content
    # With one the service could not plan while its database is away.
    assert "idempotency-key" not in one.headers


def test_a_plan_that_is_being_made_is_looked_for_again(ask: Asking) -> None:
    made = httpx.Response(202, json={"plan_id": "0" * 32, "status": "planning"}, headers=BUSY)
    answers = Answers(made, plan_answer())
    assert ask(lambda client: client.get_plan("0" * 32), handler=answers).plan_id == "0" * 32
    assert [request.method for request in answers.requests] == ["GET", "GET"]
    with pytest.raises(Timeout, match="being made still"):
        ask(lambda client: client.get_plan("0" * 32), handler=Answers(made), timeout_s=0.3)


@pytest.mark.parametrize(
    "answer",
    [
        problem(422, "infeasible", BUSY),
        problem(409, "conflict"),
        problem(404, "plan_not_found"),
        problem(500, "internal_error"),
        problem(503, "no_worker", {"Retry-After": "60"}),
        problem(429, "profile_quota_exceeded", {"Retry-After": "40000"}),
        httpx.Response(200, text="hello"),
        httpx.DecodingError("no gzip"),
    ],
)
def test_what_does_not_pass_is_told_at_once(ask: Asking, answer: httpx.Response | Exception) -> None:
    answers = Answers(answer)
    with pytest.raises(ShardwrightError) as raised:
        ask(planned, handler=answers)
    assert len(answers.requests) == 1
    assert "tries" not in str(raised.value)


def test_a_service_that_stays_away_is_given_up_in_time(ask: Asking) -> None:
    answers, began = Answers(httpx.ConnectError("refused")), time.monotonic()
    with pytest.raises(
        ConnectionFailed, match=r"^POST http://service.test/plan: the service cannot be reached"
    ) as raised:
        ask(planned, handler=answers, timeout_s=0.6)
    assert time.monotonic() - began < 2
    assert f"given up after {len(answers.requests)} tries" in str(raised.value)
    assert len(answers.requests) > 1
    assert raised.value.request is not None
    assert raised.value.request.body is not None
    assert raised.value.request.body["global_batch_size"] == 512


def test_an_answer_that_trickles_is_given_up_in_time(ask: Asking) -> None:
    class Trickle(httpx.SyncByteStream, httpx.AsyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            while True:
                time.sleep(0.05)
                yield b" "

        async def __aiter__(self) -> AsyncIterator[bytes]:
            for some in self:
                yield some

    began = time.monotonic()
    with pytest.raises(Timeout, match="has begun, but does not end"):
        ask(planned, handler=lambda _: httpx.Response(200, stream=Trickle()), timeout_s=0.3)
    assert time.monotonic() - began < 2


def test_an_answer_that_comes_whole_is_taken_however_late(ask: Asking) -> None:
    def late(_: httpx.Request) -> httpx.Response:
        time.sleep(0.2)
        return plan_answer()

    assert ask(planned, handler=late, timeout_s=0.1).plan_id == "0" * 32


def test_an_answer_that_is_cut_off_is_asked_for_again(ask: Asking) -> None:
    whole = plan_answer().content
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(whole)
    with raw_server(head + whole[:100], b"", head + whole) as url:
        assert ask(planned, url).algorithm == "auto"


def test_what_does_not_speak_http_is_no_service(ask: Asking) -> None:
    with (
        raw_server(b"SSH-2.0-OpenSSH_9.9\r\n") as url,
        pytest.raises(ConnectionFailed, match="cannot be reached"),
    ):
        ask(planned, url, timeout_s=0.1)


def test_a_service_that_does_not_answer_is_a_timeout(ask: Asking) -> None:
    with raw_server(b"") as url, pytest.raises(ShardwrightError):
        ask(planned, url, timeout_s=0.1)
    with pytest.raises(Timeout, match="no answer in time"):
        ask(planned, handler=Answers(httpx.ReadTimeout("")), timeout_s=0.05)


def test_a_page_of_a_proxy_is_told_from_the_service(ask: Asking) -> None:
    with pytest.raises(ConnectionFailed, match=r"502 from what is no Shardwright service: '502 Bad Gateway nginx'"):
        ask(planned, handler=Answers(GATEWAY), timeout_s=0.1)
    login = httpx.Response(401, html="<h1>Please log in</h1>")
    with pytest.raises(UnexpectedAnswer, match="401 from what is no Shardwright service: 'Please log in'") as raised:
        ask(planned, handler=Answers(login))
    assert raised.value.status == 401
    with pytest.raises(UnexpectedAnswer, match=r"307 from what redirects to http://elsewhere\.test: is that"):
        ask(planned, handler=Answers(httpx.Response(307, headers={"Location": "http://elsewhere.test"})))


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (httpx.Response(200, html="<p>Welcome</p>"), "not JSON, but 'Welcome'"),
        (httpx.Response(200), "not JSON, but nothing"),
        (httpx.Response(200, json=[]), "it must be an object"),
        (httpx.Response(200, json={"plan_id": "x"}), "/status is missing"),
        (plan_answer(max_cost_ms="much"), "/max_cost_ms must be a number"),
        (plan_answer(saved=1), "/saved must be a boolean"),
        (plan_answer(shards=[{"table": "t0", "columns": [0], "device": 0}]), "/shards/0/columns must have 2 members"),
        (plan_answer(shards=[{"table": "t0", "columns": [0, True], "device": 0}]), "/shards/0/columns/1 must not be"),
    ],
)
def test_an_answer_that_is_none_says_what_is_wrong_with_it(ask: Asking, answer: httpx.Response, said: str) -> None:
    with pytest.raises(UnexpectedAnswer) as raised:
        ask(planned, handler=Answers(answer))
    assert said in str(raised.value)


def test_an_answer_of_a_newer_service_is_read(ask: Asking) -> None:
    shard = {"table": "t0", "sharding_type": "row_wise", "columns": [0, 64], "device": 0, "rows": [0, 10]}
    plan = ask(planned, handler=Answers(plan_answer(newer={"a": 1}, status="better", shards=[shard])))
    assert (plan.status, plan.raw["newer"], plan.shards[0].sharding_type) == ("better", {"a": 1}, "row_wise")
