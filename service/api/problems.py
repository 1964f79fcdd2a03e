"""Errors as RFC 9457 problem details; the only place where kinds of errors get HTTP status codes."""

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.domain.access import InsufficientScope, Unauthenticated
from service.domain.errors import (
    DamagedArtifact,
    Fault,
    InvalidRequest,
    ModelsUnavailable,
    PlannerBusy,
    ShardwrightError,
    StorageUnavailable,
)
from service.telemetry.logging import current_request_id
from service.telemetry.middleware import note_problem

MEDIA_TYPE = "application/problem+json"
TYPE_PREFIX = "urn:shardwright:problem:"
CLIENT_CLOSED_REQUEST = "client_closed_request"
MAX_FAULTS = 1_000
"""Most faults in one answer; ``fault_count`` has their number."""

_MAX_TEXT = 1_000

_CLIENT_CLOSED_REQUEST = 499

_STATUS: Final[Mapping[str, int]] = {
    "invalid_request": 422,
    "unsupported_sharding": 422,
    "unsupported_algorithm": 422,
    "unknown_hardware": 422,
    "infeasible": 422,
    "no_plan_in_time": 422,
    "plan_not_found": 404,
    "plan_not_made": 410,
    "cancelled": 410,
    "unknown_model_version": 404,
    "nothing_to_roll_back_to": 409,
    "idempotency_key_reused": 422,
    "idempotent_call_running": 409,
    "idempotent_answer_lost": 409,
    "unauthenticated": 401,
    "insufficient_scope": 403,
    "admin_through_proxy": 403,
    "rate_limited": 429,
    "profile_request_not_found": 404,
    "profile_quota_exceeded": 429,
    "no_worker": 503,
    "planner_busy": 503,
    "launch_pending": 503,
    "storage_unavailable": 503,
    "models_unavailable": 503,
    "damaged_artifact": 503,
    "body_too_large": 413,
    "body_too_slow": 408,
    "unsupported_media_type": 415,
}

_TITLES: Final[Mapping[str, str]] = {
    "invalid_request": "The request is not valid",
    "unsupported_sharding": "No cost model describes this way of sharding",
    "unsupported_algorithm": "No policy of the algorithm was trained for this hardware",
    "unknown_hardware": "No cost models exist for this hardware",
    "infeasible": "No plan meets the request",
    "no_plan_in_time": "No plan was found in time",
    "plan_not_found": "No such plan",
    "plan_not_made": "The plan was begun and not made",
    "cancelled": "The plan was cancelled, since nobody waited for it",
    "unknown_model_version": "No such model or version",
    "nothing_to_roll_back_to": "No version served before",
    "idempotency_key_reused": "The key stands for another request",
    "idempotent_call_running": "The first call under this key runs still",
    "idempotent_answer_lost": "The call took effect, but its answer is lost",
    "unauthenticated": "A valid API key is needed",
    "insufficient_scope": "The key is not for this call",
    "admin_through_proxy": "Calls that change the service need a key here",
    "rate_limited": "The key makes too many requests",
    "profile_request_not_found": "No such request for profiles",
    "profile_quota_exceeded": "The caller's profiles of today are used up",
    "no_worker": "No live worker serves this hardware",
    "planner_busy": "There is no room for the request now",
    "launch_pending": "The launch's plan is being made",
    "storage_unavailable": "The database is away",
    "models_unavailable": "The model store is empty or away",
    "damaged_artifact": "A model version is damaged",
    "body_too_large": "The body is too large",
    "body_too_slow": "The body took too long",
    "unsupported_media_type": "The body must be JSON",
    "not_found": "No such resource",
    "method_not_allowed": "The resource does not take this method",
    "internal_error": "The service failed",
}

_POINTERS: Final[Mapping[str, str]] = {
    "unsupported_algorithm": "/algorithm",
    "unknown_hardware": "/devices/hardware",
    "no_worker": "/hardware",
}

_OTHER_HTTP = "http_error"
_METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")

_HTTP_KINDS: Final[Mapping[int, str]] = {404: "not_found", 405: "method_not_allowed"}

_log = logging.getLogger(__name__)


class BodyTooLarge(ShardwrightError):
    """A body above the limit; ``data['max_body_bytes']`` has the limit."""

    kind = "body_too_large"


class BodyTooSlow(ShardwrightError):
    """A body that did not arrive in time; ``data['body_timeout_s']`` has the limit."""

    kind = "body_too_slow"


class UnsupportedMediaType(ShardwrightError):
    """A body whose Content-Type is not JSON."""

    kind = "unsupported_media_type"


def status_of(kind: str) -> int:
    """The HTTP status of a kind of problem."""
    return _STATUS.get(kind, 500)


def title_of(kind: str) -> str:
    """The title of a kind of problem."""
    return _TITLES.get(kind, _TITLES["internal_error"])


def kinds() -> list[str]:
    """All kinds of problems that an answer can be, which is a closed set."""
    return [*_TITLES, _OTHER_HTTP, CLIENT_CLOSED_REQUEST]


def problem_of(error: ShardwrightError, instance: str) -> dict[str, Any]:
    """The problem details of an error.

    Args:
        error: what was raised.
        instance: the request's id.
    """
    status = status_of(error.kind)
    problem = _details(error.kind, status, error.detail, instance)
    if error.kind in _POINTERS:
        problem["pointer"] = _POINTERS[error.kind]
    return problem | facts_of(error)


def facts_of(error: ShardwrightError) -> dict[str, Any]:
    """What the problem details of an error say besides its kind and its sentence."""
    if isinstance(error, InvalidRequest):
        return {"faults": _listed(error.faults), "fault_count": len(error.faults)}
    return dict(error.data)


def public_detail(error: ShardwrightError) -> str:
    """An error's sentence for callers over the network, without causes that name hosts, users or paths."""
    if isinstance(error, StorageUnavailable):
        return "the database is not available"
    said, colon, _ = error.detail.partition(":")
    if isinstance(error, ModelsUnavailable):
        return said
    if isinstance(error, DamagedArtifact) and colon:
        return f"{said} is incomplete or altered; the service's log says more"
    return error.detail


def _details(kind: str, status: int, detail: str, instance: str) -> dict[str, Any]:
    title = title_of(kind)
    short = {"detail": _short(detail), "instance": instance}
    return {"type": TYPE_PREFIX + kind, "title": title, "status": status} | short


def _listed(faults: Sequence[Fault]) -> list[dict[str, Any]]:
    return [asdict(fault) | {"pointer": _short(fault.pointer)} for fault in faults[:MAX_FAULTS]]


def _short(text: str) -> str:
    """A text that may hold what a caller sent, at a length that is worth an answer."""
    return text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 1] + "…"


def problem_json(problem: Mapping[str, Any]) -> bytes:
    """A problem as UTF-8; what UTF-8 cannot say (lone surrogates from a hostile body) becomes ``?``."""
    return json.dumps(problem, ensure_ascii=False, allow_nan=False, default=str).encode("utf-8", "replace")


def _response(problem: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Response:
    headers = dict(headers or {})
    if "retry_after_s" in problem:
        headers["Retry-After"] = str(problem["retry_after_s"])
    return Response(problem_json(problem), problem["status"], headers, MEDIA_TYPE)


def install(app: FastAPI) -> None:
    """Makes every error of an application a problem response."""
    app.add_exception_handler(ShardwrightError, _on_error)
    app.add_exception_handler(HTTPException, _on_http_error)


async def _on_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, ShardwrightError):
        raise error
    if error.kind not in _STATUS:
        note_problem(request.scope, "internal_error")
        _log.error("unmapped error", extra={"fields": {"kind": error.kind, "exception": error.detail}})
        return _response(_internal())
    note_problem(request.scope, error.kind)
    detail = public_detail(error)
    if detail != error.detail:
        _log.warning("refused: %s", detail, extra={"fields": {"kind": error.kind, "cause": error.detail}})
    return _response(problem_of(error, current_request_id()) | {"detail": _short(detail)}, _challenge(error))


def _challenge(error: ShardwrightError) -> dict[str, str]:
    """What RFC 6750 has a service say to who may not call it."""
    if isinstance(error, InsufficientScope):
        return {"WWW-Authenticate": f'Bearer error="insufficient_scope", scope="{error.data["scope"]}"'}
    return {"WWW-Authenticate": "Bearer"} if isinstance(error, Unauthenticated) else {}


async def _on_http_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    kind = _HTTP_KINDS.get(error.status_code, _OTHER_HTTP)
    note_problem(request.scope, kind)
    detail = f"{request.method} {request.url.path}: {error.detail}"
    headers = {"Allow": ", ".join(_methods(request))} if error.status_code == 405 else error.headers
    return _response(_details(kind, error.status_code, detail, current_request_id()), headers)


def _methods(request: Request) -> list[str]:
    """The methods of all routes of a path; the router tells those of the first one."""
    scopes = {method: dict(request.scope) | {"method": method} for method in _METHODS}
    return [
        m for m, scope in scopes.items() if any(route.matches(scope)[0] is Match.FULL for route in request.app.routes)
    ]


def _internal() -> dict[str, Any]:
    detail = "an unexpected error, logged under this request's id"
    return _details("internal_error", 500, detail, current_request_id())


class UnexpectedErrors:
    """The process's edge for requests: logs what nothing else caught and answers 500 without internals."""

    def __init__(self, app: ASGIApp) -> None:
        """Wraps an ASGI application."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one connection."""
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except ClientDisconnect:
            note_problem(scope, CLIENT_CLOSED_REQUEST)
            problem = _details(CLIENT_CLOSED_REQUEST, _CLIENT_CLOSED_REQUEST, "", current_request_id())
            await _response(problem)(scope, receive, send)
        except asyncio.CancelledError:
            # The server does this to requests that run still when the time that they have after SIGTERM is over.
            if started:
                raise
            stopped = PlannerBusy("the service stopped before the answer was there", retry_after_s=1)
            note_problem(scope, stopped.kind)
            await _response(problem_of(stopped, current_request_id()))(scope, receive, send)
        except Exception:
            note_problem(scope, "internal_error")
            _log.exception("unexpected error")
            if started:
                raise
            await _response(_internal())(scope, receive, send)
