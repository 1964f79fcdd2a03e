"""Calls for the same thing at the same time share one."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from service.api.in_flight import InFlight
from service.domain.errors import NoPlanInTime


def test_calls_under_one_key_share_the_first_and_later_ones_begin_anew() -> None:
    flights: InFlight[int] = InFlight()
    made: list[int] = []
    go_on = threading.Event()

    def work() -> int:
        made.append(1)
        go_on.wait(10)
        return len(made)

    with ThreadPoolExecutor(8) as threads:
        answers = [threads.submit(flights.run, "key", work) for _ in range(8)]
        deadline = time.monotonic() + 10
        while not made and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.1)
        go_on.set()
        results = [answer.result(10) for answer in answers]
    assert [value for value, _ in results] == [1] * 8
    assert sorted(shared for _, shared in results) == [False] + [True] * 7
    assert flights.run("key", work) == (2, False)


def test_other_keys_do_not_wait() -> None:
    flights: InFlight[str] = InFlight()
    assert flights.run("a", lambda: flights.run("b", lambda: "inner")[0]) == ("inner", False)


def test_an_error_is_shared_and_forgotten() -> None:
    flights: InFlight[int] = InFlight()

    def fail() -> int:
        raise NoPlanInTime("too late")

    with pytest.raises(NoPlanInTime):
        flights.run("key", fail)
    assert flights.run("key", lambda: 7) == (7, False)
