"""Receiving a request's body within limits of size and time."""

import asyncio
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from fastapi import Request

from service.api.problems import BodyTooLarge, BodyTooSlow, UnsupportedMediaType
from service.domain.errors import PlannerBusy

_JSON = re.compile(r"application/([^/]+\+)?json")


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """The largest body, and how long a client has for sending one."""

    max_bytes: int
    timeout_s: float


@dataclass(frozen=True, slots=True)
class ReceivedBody:
    """A whole body, and when its last byte came, by the monotonic clock; planning's time limit starts then."""

    content: bytes
    arrived: float


class BodyAdmission:
    """Bounds how many bodies are in memory at the same time; for one event loop."""

    def __init__(self, room: int) -> None:
        """Room for a number of bodies."""
        self._free = room

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """Room for one body.

        Raises:
            PlannerBusy: there is none.
        """
        if not self._free:
            raise PlannerBusy("too many requests are being received or worked on", retry_after_s=1)
        self._free -= 1
        try:
            yield
        finally:
            self._free += 1


async def receive_body(request: Request, limits: BodyLimits) -> ReceivedBody:
    """The body, also where its length was not announced.

    Raises:
        UnsupportedMediaType: it is not announced as JSON.
        BodyTooLarge: as soon as the count passes the limit.
        BodyTooSlow: it is not there in time.
    """
    media_type = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if not _JSON.fullmatch(media_type):
        raise UnsupportedMediaType("Content-Type must be application/json, also where the body is only {}")
    announced = request.headers.get("content-length", "0")
    if announced.isdecimal() and int(announced[:20]) > limits.max_bytes:
        raise _too_large(limits)
    try:
        async with asyncio.timeout(limits.timeout_s):
            content = await _counted(request, limits)
    except TimeoutError as error:
        raise BodyTooSlow(
            f"the body did not arrive within {limits.timeout_s:g} s (SHARDWRIGHT_BODY_TIMEOUT_S)",
            body_timeout_s=limits.timeout_s,
        ) from error
    return ReceivedBody(content, time.monotonic())


async def _counted(request: Request, limits: BodyLimits) -> bytes:
    content = bytearray()
    async for chunk in request.stream():
        content += chunk
        if len(content) > limits.max_bytes:
            raise _too_large(limits)
    return bytes(content)


def _too_large(limits: BodyLimits) -> BodyTooLarge:
    detail = f"at most {limits.max_bytes} bytes are taken (SHARDWRIGHT_MAX_BODY_BYTES)"
    return BodyTooLarge(detail, max_body_bytes=limits.max_bytes)
