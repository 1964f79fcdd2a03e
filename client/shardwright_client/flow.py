"""The one place for tries, waits and deadlines: generators that say what to do next, for any kind of client.

They yield a ``Try`` to be sent, whose outcome is sent back to them, or a ``Wait`` to be slept through, and return the
result of the call.
"""

import logging
import random
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass

import httpx

from shardwright_client.calls import Call, Result, get_profile_call
from shardwright_client.configuration import Configuration, check_seconds
from shardwright_client.errors import NotFound, ShardwrightError, Timeout
from shardwright_client.outcomes import Failure, Outcome, Received, value_or_failure
from shardwright_client.profiles import Profiles

logger = logging.getLogger(__name__)

FIRST_WAIT_S = 0.25
LONGEST_WAIT_S = 8.0
LONGEST_RETRY_AFTER_S = 30.0
"""A service that says to come back later than this is not waited for."""

PAGE_SIZE = 100
MOST_ON_A_PAGE = 1000
PROFILE_TIMEOUT_S = 3600.0
FIRST_LOOK_S = 1.0
LONGEST_LOOK_S = 15.0
LEAST_TIMEOUT_S = 0.001

Clock = Callable[[], float]

_DELETED = Received(204, httpx.Headers(), b"")
_random = random.SystemRandom()


@dataclass(frozen=True, slots=True)
class Try:
    """One request to be sent.

    Attributes:
        method: of HTTP.
        url: all of it.
        headers: besides those of every request.
        content: the body.
        timeout: of its parts.
        due: when it is given up, by the monotonic clock, though bytes still come.
    """

    method: str
    url: str
    headers: dict[str, str]
    content: bytes | None
    timeout: httpx.Timeout
    due: float

    def check_due(self, received: bytes | bytearray) -> None:
        """Gives up an answer that trickles; one that comes whole is taken, however late.

        Raises:
            httpx.ReadTimeout: some of it was received, and its time is over.
        """
        if received and time.monotonic() >= self.due:
            raise httpx.ReadTimeout("the answer has begun, but does not end")


@dataclass(frozen=True, slots=True)
class Wait:
    """Seconds to sleep."""

    seconds: float


Flow = Generator[Try | Wait, Outcome, Result]


def answered(
    call: Call[Result], configuration: Configuration, clock: Clock = time.monotonic, due: float | None = None
) -> Flow[Result]:
    """A call, tried until it is answered or what is wrong will not pass by ``due``.

    Args:
        call: what is asked.
        configuration: how.
        clock: counts seconds.
        due: when to give up, by the clock; None for the configuration's time.

    Raises:
        ShardwrightError: the last try's.
    """
    began = clock()
    due = began + configuration.timeout_s + call.planning_s if due is None else due
    headers, content = call.headers(), call.content()
    url, tries = configuration.url(call.path), 0
    while True:
        tries += 1
        outcome = yield Try(call.method, url, headers, content, _timeout(call, configuration, due - clock()), due)
        found = value_or_failure(call, url, outcome)
        if tries > 1 and _is_gone(call, found):
            found = value_or_failure(call, url, _DELETED)
        if not isinstance(found, Failure):
            return found
        pause = _pause_s(found, tries)
        if pause is None or clock() + pause >= due:
            late = "" if pause is None else f": the next would come after the {due - began:.1f} s of the call"
            raise _told(found, tries, f"{clock() - began:.1f} s{late}")
        if tries == 1:
            logger.warning("%s: tried again, for %.0f s at most", found.error, due - clock())
        yield Wait(pause)


def profiled(
    request_id: str, timeout_s: float, configuration: Configuration, clock: Clock = time.monotonic
) -> Flow[Profiles]:
    """A request for profiles, looked at until none of its tables waits or is being measured.

    Raises:
        InvalidArgument: ``timeout_s`` is not above 0 and finite.
        Timeout: ``timeout_s`` have passed.
        ShardwrightError: it cannot be looked at.
    """
    check_seconds("timeout_s", timeout_s)
    call, due, pause = get_profile_call(request_id), clock() + timeout_s, FIRST_LOOK_S
    while True:
        profiles = yield from answered(call, configuration, clock, due)
        if profiles.done:
            return profiles
        if clock() + pause >= due:
            progress = ", ".join(f"{count} {state}" for state, count in profiles.raw["progress"].items())
            raise Timeout(f"request {request_id} for profiles is not done after {timeout_s:g} s: {progress}")
        yield Wait(_jittered(pause))
        pause = min(2 * pause, LONGEST_LOOK_S)


def _is_gone(call: Call[Result], found: Result | Failure) -> bool:
    """Whether what is to be deleted is not there: an earlier try whose answer was lost may have deleted it."""
    return call.method == "DELETE" and isinstance(found, Failure) and isinstance(found.error, NotFound)


def _timeout(call: Call[Result], configuration: Configuration, left_s: float) -> httpx.Timeout:
    left_s = max(left_s, LEAST_TIMEOUT_S)
    read_s = min(configuration.read_timeout_s + call.planning_s, left_s)
    return httpx.Timeout(read_s, connect=min(configuration.connect_timeout_s, left_s))


def _pause_s(failure: Failure, tries: int) -> float | None:
    """Seconds to wait before the next try; None where there is to be none."""
    if not failure.momentary or (failure.retry_after_s or 0.0) > LONGEST_RETRY_AFTER_S:
        return None
    return (failure.retry_after_s or 0.0) + _jittered(min(FIRST_WAIT_S * 2.0 ** min(tries - 1, 20), LONGEST_WAIT_S))


def _jittered(seconds: float) -> float:
    """Between half and all of it, so that the ranks of a launch do not come back at once."""
    return _random.uniform(seconds / 2, seconds)


def _told(failure: Failure, tries: int, time_taken: str) -> ShardwrightError:
    """The error, with how long it was tried where it might have passed; others are an answer to the last try."""
    error = failure.error
    if tries > 1 and failure.momentary:
        error.args = (f"{error} (given up after {tries} tries in {time_taken})",)
    return error
