"""What came of one try: a value, or an error and whether another try may help."""

import email.utils
import json
import re
import time
from dataclasses import dataclass, fields, replace

import httpx

from shardwright_client.calls import Call, Result
from shardwright_client.errors import (
    TYPE_PREFIX,
    ConnectionFailed,
    Problem,
    ProblemError,
    SentRequest,
    ShardwrightError,
    Timeout,
    UnexpectedAnswer,
    problem_class,
)
from shardwright_client.json_values import Unreadable, decoded
from shardwright_client.plans import Plan

_MOMENTARY = frozenset({429, 502, 503, 504})
"""Statuses after which another try may succeed."""

_RUNNING = "idempotent_call_running"
"""Kind of the problem of a call whose first try, under the same idempotency key, is still being answered."""

_GATEWAY = frozenset({502, 503, 504})
_BEING_MADE = 202
_NO_CONTENT = 204
_SHOWN = 200
"""Characters of a foreign answer that an error shows."""

_SHOWN_FAULTS = 5
_FURTHER = re.compile(r" \(and (\d+) more\)$")
"""How a detail counts the faults after the first one."""

_TAGS = re.compile(r"<(script|style)\b.*?</\1>|<[^>]*>", re.DOTALL | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Received:
    """An answer with all of its body."""

    status: int
    headers: httpx.Headers
    content: bytes


Outcome = Received | httpx.HTTPError


@dataclass(frozen=True, slots=True)
class Failure:
    """A try that failed.

    Attributes:
        error: what to raise, should there be no other try.
        momentary: whether another may succeed.
        retry_after_s: when, where the service said so.
    """

    error: ShardwrightError
    momentary: bool
    retry_after_s: float | None = None


def value_or_failure(call: Call[Result], url: str, outcome: Outcome) -> Result | Failure:
    """What a call has come to, asked at ``url``."""
    asked = SentRequest(call.method, url, call.body)
    if isinstance(outcome, httpx.HTTPError):
        return _unanswered(asked, outcome)
    if outcome.status == _BEING_MADE and call.answer is Plan:
        # Somebody asked for it in the background: it is worth another look.
        told = f"{asked.method} {asked.url}: the plan is being made still"
        return Failure(
            Timeout(told, asked), momentary=True, retry_after_s=_retry_after_s(outcome.headers.get("retry-after"))
        )
    if 200 <= outcome.status < 300:
        return _value(call.answer, asked, outcome)
    return _refused(asked, outcome)


def _unanswered(asked: SentRequest, error: httpx.HTTPError) -> Failure:
    told, reason = f"{asked.method} {asked.url}", f"{type(error).__name__}: {error}".rstrip(": ")
    momentary = isinstance(error, httpx.TimeoutException | httpx.NetworkError | httpx.RemoteProtocolError)
    if isinstance(error, httpx.TimeoutException) and not isinstance(error, httpx.ConnectTimeout):
        return Failure(Timeout(f"{told}: no answer in time ({reason})", asked), momentary)
    if isinstance(error, httpx.DecodingError):
        return Failure(UnexpectedAnswer(f"{told}: an answer that cannot be read ({reason})", asked), momentary)
    return Failure(ConnectionFailed(f"{told}: the service cannot be reached ({reason})", asked), momentary)


def _value(kind: type[Result], asked: SentRequest, received: Received) -> Result | Failure:
    try:
        return decoded(kind, json.loads(received.content) if received.status != _NO_CONTENT else {})
    except Unreadable as error:
        found = f"not a {kind.__name__} that this client knows ({error}); is one of them of another release?"
    except ValueError:
        found = f"not JSON, but {_glimpse(received)}"
    message = f"{asked.method} {asked.url}: the answer ({received.status}) is {found}"
    return Failure(UnexpectedAnswer(message, asked, received.status), momentary=False)


def _refused(asked: SentRequest, received: Received) -> Failure:
    retry_after_s = _retry_after_s(received.headers.get("retry-after"))
    error = _refusal(asked, received, retry_after_s)
    running = isinstance(error, ProblemError) and error.kind == _RUNNING
    return Failure(error, received.status in _MOMENTARY or running, retry_after_s)


def _refusal(asked: SentRequest, received: Received, retry_after_s: float | None) -> ShardwrightError:
    told, problem = f"{asked.method} {asked.url}", _problem(received)
    if problem is not None:
        return problem_class(problem)(f"{told}: {_sentence(problem)}", asked, problem, retry_after_s)
    found = f"what is no Shardwright service: {_glimpse(received)}"
    if "location" in received.headers:
        found = f"what redirects to {received.headers['location']}: is that the service's address?"
    message = f"{told}: {received.status} from {found}"
    if received.status in _GATEWAY:
        return ConnectionFailed(message, asked)
    return UnexpectedAnswer(message, asked, received.status)


def _problem(received: Received) -> Problem | None:
    """The problem details of an answer; None where it has none."""
    if "json" not in received.headers.get("content-type", ""):
        return None
    try:
        members = json.loads(received.content)
    except ValueError:
        return None
    if not isinstance(members, dict) or not isinstance(members.get("type"), str):
        return None
    known = {each.name for each in fields(Problem)} - {"extra"}
    told = {name: value for name, value in members.items() if name in known} | {"status": received.status}
    told.setdefault("instance", received.headers.get("x-request-id", ""))
    # Null is what a service says of a member that it does not tell.
    told = {name: value for name, value in told.items() if value is not None}
    try:
        problem = decoded(Problem, told | {"extra": {}})
    except Unreadable:
        return None
    return replace(problem, extra={name: value for name, value in members.items() if name not in known})


def _sentence(problem: Problem) -> str:
    """A problem for people, in one line: its kind, what is wrong and what would help."""
    parts = _wrong(problem)
    remedies = problem.extra.get("remedies")
    if isinstance(remedies, list) and remedies:
        parts.append("what would help: " + " | ".join(str(remedy) for remedy in remedies))
    told = " ".join(f"{problem.status} {problem.type.removeprefix(TYPE_PREFIX)}: {'; '.join(parts)}".splitlines())
    return told + (f" (request {problem.instance})" if problem.instance else "")


def _wrong(problem: Problem) -> list[str]:
    """The detail, which is the first fault where there are any, and further ones; many are counted."""
    detail, others = problem.detail or problem.title, problem.faults[1:_SHOWN_FAULTS]
    further = _FURTHER.search(detail) if others else None
    if further:
        detail = detail[: further.start()]
    parts = [_with_table(detail, problem.faults[0].table if problem.faults else None)]
    parts += [f"{fault.pointer or 'request'}: {_with_table(fault.message, fault.table)}" for fault in others]
    if further and int(further[1]) > len(others):
        parts.append(f"and {int(further[1]) - len(others)} more")
    return parts


def _with_table(message: str, table: str | None) -> str:
    """A message that names its table: a pointer has a number, which says little to who wrote no list of tables."""
    return message if table is None or repr(table) in message else f"{message} (table {table!r})"


def _retry_after_s(header: str | None) -> float | None:
    """Seconds to wait by a Retry-After header (RFC 9110, 10.2.3): a number, or a date."""
    if header is None:
        return None
    if header.strip().isdecimal():
        return float(header)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(header).timestamp() - time.time())
    except ValueError:
        return None


def _glimpse(received: Received) -> str:
    """The beginning of a foreign answer, without markup."""
    text = " ".join(_TAGS.sub(" ", received.content[:20_000].decode("utf-8", "replace")).split())
    return repr(text[:_SHOWN]) if text else "nothing"
