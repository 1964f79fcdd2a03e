"""Calls for the same thing at the same time share one."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from service.api.in_flight import InFlight
from service.domain.errors import NoPlanInTime, PlanCancelled
from service.domain.waiting import PATIENT, Asker, Waiting
from tests.api.processes import wait_for
from tests.api.test_time_limits import Unhurried


def test_calls_under_one_key_share_the_first_and_later_ones_begin_anew() -> None:
    flights: InFlight[int] = InFlight()
    made: list[int] = []
    go_on = threading.Event()

    def work(_: Waiting) -> int:
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
    assert flights.run("a", lambda _: flights.run("b", lambda _: "inner")[0]) == ("inner", False)


def test_an_error_is_shared_and_forgotten() -> None:
    flights: InFlight[int] = InFlight()

    def fail(_: Waiting) -> int:
        raise NoPlanInTime("too late")

    with pytest.raises(NoPlanInTime):
        flights.run("key", fail)
    assert flights.run("key", lambda _: 7) == (7, False)


class Flights:
    """Calls of one key that go on until they are told to or all who wait have left; each on a thread of its own."""

    def __init__(self, threads: ThreadPoolExecutor) -> None:
        self._flights: InFlight[int] = InFlight()
        self._threads = threads
        self.go_on = threading.Event()
        self.calls: list[Waiting] = []

    def ask(self, waiting: Waiting) -> Future[tuple[int, bool]]:
        return self._threads.submit(self._flights.run, "key", self._made, waiting)

    def _made(self, waiting: Waiting) -> int:
        self.calls.append(waiting)
        number = len(self.calls)
        while not self.go_on.wait(0.01):
            if waiting.gone():
                raise PlanCancelled("all have left")
        return number


@pytest.fixture
def flights() -> Iterator[Flights]:
    with ThreadPoolExecutor(4) as threads:
        found = Flights(threads)
        yield found
        found.go_on.set()


def test_a_call_ends_once_all_have_left(flights: Flights) -> None:
    first, second = Asker(), Asker()
    made = flights.ask(first)
    wait_for(lambda: len(flights.calls) == 1)
    shared = flights.ask(second)
    first.leave()
    time.sleep(0.1)
    assert not made.done()
    second.leave()
    for each in (made, shared):
        with pytest.raises(PlanCancelled):
            each.result(10)


def test_who_leaves_takes_nothing_from_the_others(flights: Flights) -> None:
    first, second = Asker(), Asker()
    made = flights.ask(first)
    wait_for(lambda: len(flights.calls) == 1)
    shared, patient = flights.ask(second), flights.ask(PATIENT)
    time.sleep(0.1)
    first.leave()
    second.leave()
    # Its thread does not wait for what nobody reads.
    with pytest.raises(PlanCancelled):
        shared.result(10)
    flights.go_on.set()
    assert patient.result(10) == (1, True)
    assert made.result(10) == (1, False)


def test_a_call_is_in_no_hurry_only_while_nobody_is_who_waits_for_it(flights: Flights) -> None:
    first, second = flights.ask(Unhurried()), flights.ask(Unhurried())
    wait_for(lambda: len(flights.calls) == 1)
    assert flights.calls[0].unhurried()
    third = flights.ask(PATIENT)
    wait_for(lambda: not flights.calls[0].unhurried())
    flights.go_on.set()
    assert {each.result(10)[0] for each in (first, second, third)} == {1}


def test_who_comes_after_all_have_left_has_a_call_of_their_own(flights: Flights) -> None:
    first = Asker()
    first.leave()
    release = threading.Event()

    def unaware(_: Waiting) -> int:
        release.wait(10)
        return -1

    with ThreadPoolExecutor(1) as thread:
        lost = thread.submit(flights._flights.run, "key", unaware, first)
        wait_for(lambda: bool(flights._flights._flights))
        made = flights.ask(PATIENT)
        wait_for(lambda: len(flights.calls) == 1)
        release.set()
        assert lost.result(10) == (-1, False)
        # The end of the one did not take the other's place: it is shared.
        shared = flights.ask(PATIENT)
        time.sleep(0.1)
        flights.go_on.set()
        assert made.result(10) == (1, False)
        assert shared.result(10) == (1, True)
