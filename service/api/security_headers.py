"""Headers that every answer has, after OWASP's REST Security Cheat Sheet."""

from collections.abc import Mapping
from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_DOCS: Final = "/docs"

_HEADERS: Final[Mapping[str, str]] = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
}

# The page loads Swagger UI, which asks the service itself for the document.
_OF_DOCS: Final = (
    "default-src 'none'; frame-ancestors 'none'; connect-src 'self'; img-src https://fastapi.tiangolo.com data:; "
    "script-src https://cdn.jsdelivr.net 'unsafe-inline'; style-src https://cdn.jsdelivr.net 'unsafe-inline'"
)


class SecurityHeaders:
    """ASGI middleware: adds what an answer does not say otherwise.

    Strict-Transport-Security is left to what ends TLS: over plain HTTP it means nothing.
    """

    def __init__(self, app: ASGIApp) -> None:
        """Wraps an ASGI application."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one connection."""

        async def secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                if scope["path"] == _DOCS:
                    headers.setdefault("Content-Security-Policy", _OF_DOCS)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, secured)
