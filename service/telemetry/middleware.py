"""One pass around every request: its id, its count and latency, its access line."""

import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from service.telemetry.logging import begin_request
from service.telemetry.metrics import Metrics

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_HEADER = b"x-request-id"
_PROBLEM = "problem"
_CALLER, _KEY = "caller", "key"

_log = logging.getLogger("service.access")


def note_problem(scope: Scope, kind: str) -> None:
    """Has the request of a scope logged and counted as answered with a problem of a kind, one of a closed set."""
    scope[_PROBLEM] = kind


def note_caller(scope: Scope, name: str, key_id: str | None) -> None:
    """Has the request of a scope logged with who makes it, and the id, which is no secret, of the key that was sent."""
    scope[_CALLER], scope[_KEY] = name, key_id


class RequestTelemetry:
    """ASGI middleware: takes or makes X-Request-ID, returns it, counts the request and logs one line."""

    def __init__(self, app: App, metrics: Metrics) -> None:
        """Wraps an ASGI application."""
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.perf_counter(), 500
        request_id = begin_request(_given(scope)).encode()

        async def tagged(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message.get("headers", []), (_HEADER, request_id)]}
            await send(message)

        try:
            await self._app(scope, receive, tagged)
        finally:
            self._done(scope, status, time.perf_counter() - began)

    def _done(self, scope: Scope, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", None)
        self._metrics.request_done(scope["method"], route, status, seconds)
        problem = scope.get(_PROBLEM)
        if problem:
            self._metrics.problem_answered(problem)
        fields = {
            "method": scope["method"],
            "path": scope["path"],
            "route": route,
            "status": status,
            "duration_ms": round(seconds * 1000, 3),
            "client": (scope.get("client") or [None])[0],
            "caller": scope.get(_CALLER),
            "key": scope.get(_KEY),
            "problem": problem,
        }
        _log.info("request", extra={"fields": fields})


def _given(scope: Scope) -> str | None:
    values = [value for name, value in scope["headers"] if name == _HEADER]
    return values[0].decode("latin-1") if len(values) == 1 else None
