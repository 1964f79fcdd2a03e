"""Tries, waits and deadlines, carried out under a clock that only waits move."""

import re
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import httpx
import pytest

from shardwright_client import Busy, ConnectionFailed, NotFound, ShardwrightError, Timeout
from shardwright_client.calls import delete_plan_call, get_plan_call, plan_call
from shardwright_client.configuration import Configuration
from shardwright_client.flow import Flow, Try, Wait, answered, profiled
from shardwright_client.outcomes import Outcome, Received
from tests.client.asked import QUESTION, plan_answer, problem


class Clock:
    """A clock that only waits move."""

    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


def carried_out(flow: Flow[Any], clock: Clock, *outcomes: Outcome) -> tuple[list[Try], list[float], Any]:
    """The tries and waits of a flow, and what it came to; its last outcome is repeated."""
    tries: list[Try] = []
    waits: list[float] = []
    try:
        step = next(flow)
        while True:
            if isinstance(step, Wait):
                waits.append(step.seconds)
                clock.now += step.seconds
                step = next(flow)
            else:
                tries.append(step)
                step = flow.send(outcomes[min(len(tries), len(outcomes)) - 1])
    except StopIteration as end:
        return tries, waits, end.value
    except ShardwrightError as error:
        return tries, waits, error


def _busy(retry_after: str) -> Received:
    answer = problem(503, "launch_pending", {"Retry-After": retry_after})
    return Received(503, answer.headers, answer.content)


def test_waits_grow_and_end_with_the_time(caplog: pytest.LogCaptureFixture) -> None:
    clock, configuration = Clock(), Configuration("http://x", timeout_s=60)
    flow = answered(get_plan_call("a"), configuration, clock)
    tries, waits, error = carried_out(flow, clock, httpx.ConnectError("refused"))
    assert isinstance(error, ConnectionFailed)
    for i, wait in enumerate(waits):
        longest = min(0.25 * 2**i, 8.0)
        assert longest / 2 <= wait <= longest
    assert sum(waits) < 60
    assert 9 <= len(tries) <= 20
    assert tries[0].due == 110.0
    assert re.search(
        r"given up after \d+ tries in \d+\.\d s: the next would come after the 60\.0 s of the call\)$", str(error)
    )
    (told,) = caplog.messages
    assert "the service cannot be reached (ConnectError: refused): tried again, for 60 s at most" in told


def test_what_is_answered_at_a_later_try_is_not_given_up() -> None:
    clock, infeasible = Clock(), _received(problem(422, "infeasible"))
    flow = answered(get_plan_call("a"), Configuration("http://x"), clock)
    tries, _, error = carried_out(flow, clock, httpx.ConnectError("refused"), infeasible)
    assert (len(tries), str(error)) == (2, "GET http://x/plans/a: 422 infeasible: what is wrong (request id-7)")
    flow = answered(get_plan_call("a"), Configuration("http://x"), clock)
    tries, _, error = carried_out(flow, clock, _busy("1"), _busy("31"))
    assert re.search(r"given up after 2 tries in \d\.\d s\)$", str(error))


def test_retry_after_is_a_number_or_a_date_and_is_waited_for() -> None:
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=20), usegmt=True)
    for header, seconds in (("2", 2.0), (date, 20.0)):
        clock = Clock()
        done = Received(200, httpx.Headers(), plan_answer().content)
        flow = answered(get_plan_call("a"), Configuration("http://x"), clock)
        _, (wait,), _ = carried_out(flow, clock, _busy(header), done)
        assert seconds - 2 <= wait <= seconds + 0.25
    clock = Clock()
    flow = answered(get_plan_call("a"), Configuration("http://x"), clock)
    _, waits, error = carried_out(flow, clock, _busy("31"))
    assert (waits, type(error), error.retry_after_s) == ([], Busy, 31.0)
    assert error.extra == {}


def test_timeouts_follow_the_time_that_a_plan_was_given() -> None:
    clock = Clock()
    call = plan_call({"time_limit_ms": 90_000})
    step = next(answered(call, Configuration("http://x", timeout_s=60, read_timeout_s=30), clock))
    assert isinstance(step, Try)
    assert (step.due, step.timeout.read, step.timeout.connect) == (50 + 150, 120, 5)
    short = next(answered(plan_call(QUESTION), Configuration("http://x", timeout_s=3), clock))
    assert isinstance(short, Try)
    assert (short.timeout.read, short.timeout.write, short.timeout.connect) == (3, 3, 3)


def _received(answer: httpx.Response) -> Received:
    return Received(answer.status_code, answer.headers, answer.content)


def test_what_a_lost_answer_deleted_is_deleted() -> None:
    clock, configuration = Clock(), Configuration("http://x")
    missing = _received(problem(404, "plan_not_found"))
    _, _, error = carried_out(answered(delete_plan_call("a"), configuration, clock), clock, missing)
    assert isinstance(error, NotFound)
    lost = httpx.ReadError("reset by peer")
    tries, _, done = carried_out(answered(delete_plan_call("a"), configuration, clock), clock, lost, missing)
    assert (len(tries), tries[0].method, done.raw) == (2, "DELETE", {})
    flow = answered(get_plan_call("a"), configuration, clock)
    assert isinstance(carried_out(flow, clock, lost, missing)[2], NotFound)


def test_an_idempotency_key_is_sent_with_every_try_and_the_first_is_waited_for() -> None:
    clock, configuration = Clock(), Configuration("http://x")
    running = _received(problem(409, "idempotent_call_running", {"Retry-After": "1"}))
    call = plan_call(QUESTION, "mine")
    outcomes: list[Outcome] = [httpx.ReadTimeout("slow"), running, _received(plan_answer())]
    tries, waits, plan = carried_out(answered(call, configuration, clock), clock, *outcomes)
    assert [each.headers["Idempotency-Key"] for each in tries] == ["mine"] * 3
    assert waits[1] >= 1
    assert plan.plan_id == "0" * 32
    lost = _received(problem(409, "idempotent_answer_lost"))
    tries, _, error = carried_out(answered(call, configuration, clock), clock, lost)
    assert (len(tries), error.kind) == (1, "idempotent_answer_lost")


def _profiles(queued: int) -> Received:
    progress = {"queued": queued, "running": 0, "measured": 1 - queued, "parked": 0, "expired": 0}
    answer = {"request_id": "r", "created_at": "2031-04-01T10:00:00Z", "done": not queued, "profiles": []}
    answer["progress"] = progress
    return Received(200, httpx.Headers(), httpx.Response(200, json=answer).content)


def test_profiles_are_looked_at_less_and_less_often_until_they_are_done() -> None:
    clock, configuration = Clock(), Configuration("http://x")
    waiting = [_profiles(1)] * 7
    tries, waits, done = carried_out(profiled("r", 600, configuration, clock), clock, *waiting, _profiles(0))
    assert (len(tries), done.progress.measured) == (8, 1)
    for wait, longest in zip(waits, [1, 2, 4, 8, 15, 15, 15], strict=True):
        assert longest / 2 <= wait <= longest


def test_waiting_for_profiles_outlasts_an_outage_and_ends_in_time() -> None:
    clock, configuration = Clock(), Configuration("http://x", timeout_s=1)
    away = [httpx.ConnectError("refused")] * 12
    tries, waits, error = carried_out(profiled("r", 600, configuration, clock), clock, *away, _profiles(1))
    assert isinstance(error, Timeout)
    assert "request r for profiles is not done after 600 s: 1 queued, 0 running" in str(error)
    assert len(tries) > 12
    assert 500 < sum(waits) < 600
