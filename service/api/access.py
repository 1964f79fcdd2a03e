"""Who calls, and whether they may: API keys, looked up by their hash in a copy of all that there are."""

import asyncio
import logging
import math
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NoReturn

from anyio import to_thread

from service.api.rate_limits import RateLimits
from service.domain.access import (
    AdminThroughProxy,
    Allowance,
    ApiKey,
    InsufficientScope,
    Keys,
    KeyStore,
    RateLimited,
    Unauthenticated,
    secret_hash,
)
from service.domain.callers import THROUGH_PROXY, WITHOUT_KEY, Caller, Scope
from service.domain.errors import StorageUnavailable
from service.telemetry.metrics import Metrics

Headers = Iterable[tuple[bytes, bytes]]

_BEARER = re.compile(rb"bearer +([!-~]+)", re.IGNORECASE)
_BARE = re.compile(rb"[!-~]+")
_FORMS: Mapping[bytes, tuple[re.Pattern[bytes], int]] = {b"authorization": (_BEARER, 1), b"x-api-key": (_BARE, 0)}
"""What a header with a key looks like, and which group is the key."""

_PROXY_HEADERS = frozenset({b"forwarded", b"via", b"x-real-ip"})
_PROXY_PREFIX = b"x-forwarded-"

_LOCAL_PAGE = re.compile(rb"https?://(localhost|127(\.[0-9]{1,3}){3}|\[::1\])(:[0-9]+)?")
"""Origin (RFC 6454) of pages that this machine serves; browsers send it with whatever a page has them change."""

_RELOAD_S = 0.2
"""Seconds between two looks into the database for keys that are not in the copy."""

_AWAY_S = 2.0
"""The same once the database was found away."""

_NOTED_S = 3600.0

_log = logging.getLogger(__name__)


class Refusal(StrEnum):
    """Why a call was not let in."""

    MISSING = "missing"
    MALFORMED = "malformed"
    UNKNOWN = "unknown"
    REVOKED = "revoked"
    EXPIRED = "expired"
    SCOPE = "scope"
    PROXY = "proxy"
    RATE = "rate"


@dataclass(frozen=True, slots=True)
class _Known:
    """A key, and until when it is valid by the monotonic clock, which no correction of the time of day moves."""

    key: ApiKey
    caller: Caller
    until: float


class Access:
    """Lets callers in; for one event loop, while ``follow`` may be called from any thread."""

    def __init__(
        self,
        store: KeyStore,
        metrics: Metrics,
        *,
        required: bool,
        default: Allowance,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Knows no key yet.

        Args:
            store: of keys.
            metrics: count calls that are not let in.
            required: whether callers need a key.
            default: of keys without an allowance of their own.
            clock: counts seconds.
        """
        self._store = store
        self._metrics = metrics
        self._required = required
        self._default = default
        self._clock = clock
        self._limits = RateLimits(clock)
        self._known: Mapping[str, _Known] = {}
        self._reloading = asyncio.Lock()
        self._reload_from = -math.inf
        self._noted: dict[str, float] = {}
        self._unwritten: set[str] = set()
        # Keys are followed in other threads than the loop's.
        self._noting = threading.Lock()
        metrics.refusals(map(str, Refusal))

    @property
    def locked_out(self) -> bool:
        """Whether keys are required and none is valid."""
        return self._required and not any(found.key.state == "valid" for found in self._known.values())

    def follow(self, keys: Keys) -> None:
        """Takes the keys as they are now in place of those that were known, and notes in the store which are used.

        Raises:
            StorageUnavailable: the use could not be noted, and will be later.
        """
        now = self._clock()
        self._known = {digest: _known(key, now) for digest, key in keys.items()}
        with self._noting:
            used, self._unwritten = self._unwritten, set()
        if used:
            try:
                self._store.used(used)
            except StorageUnavailable:
                with self._noting:
                    self._unwritten |= used
                raise

    async def admitted(self, headers: Headers, needed: Scope) -> Caller:
        """Who calls, where they may.

        Args:
            headers: of the request, names in lower case, values whatever they are.
            needed: scope of the call.

        Raises:
            Unauthenticated: there is no key, or none that is valid.
            InsufficientScope: the key is not for this.
            AdminThroughProxy: without a key, where none is required, but from who may be anyone.
            RateLimited: the key was used too often.
        """
        headers = list(headers)
        sent = [(name, value) for name, value in headers if name in _FORMS]
        if not sent and not self._required:
            return self._without_key(headers, needed)
        found = await self._found(sent)
        # First, so that a key for something else runs no wilder.
        self._count(found.key)
        if not found.caller.may(needed):
            fields = {"key": found.key.id, "name": found.key.name, "scope": needed.value}
            _log.warning("a key lacks the scope of a call", extra={"fields": fields})
            self._metrics.refused(Refusal.SCOPE)
            raise InsufficientScope(needed)
        return found.caller

    def _without_key(self, headers: Headers, needed: Scope) -> Caller:
        if not any(_hides_who_calls(name, value) for name, value in headers):
            return WITHOUT_KEY
        if THROUGH_PROXY.may(needed):
            return THROUGH_PROXY
        self._metrics.refused(Refusal.PROXY)
        raise AdminThroughProxy

    async def _found(self, sent: list[tuple[bytes, bytes]]) -> _Known:
        if not sent:
            self._refuse(Refusal.MISSING)
        secret = _secret(*sent[0]) if len(sent) == 1 else None
        if secret is None:
            self._refuse(Refusal.MALFORMED)
        digest, known = secret_hash(secret), self._known
        found = known.get(digest) or await self._looked_up_again(digest, known)
        if found is None:
            self._refuse(Refusal.UNKNOWN)
        if found.key.revoked_at is not None:
            self._refuse(Refusal.REVOKED, found.key)
        if found.until <= self._clock():
            self._refuse(Refusal.EXPIRED, found.key)
        return found

    async def _looked_up_again(self, digest: str, known: Mapping[str, _Known]) -> _Known | None:
        """A key may have been made a moment ago; however many wrong ones come, the store is asked a few times a second.

        Args:
            digest: of the key.
            known: the copy that it is not in.
        """
        if self._clock() >= self._reload_from:
            # Who waits for another's look takes what came of it.
            async with self._reloading:
                if self._known is known and self._clock() >= self._reload_from:
                    await to_thread.run_sync(self._reload)
        return self._known.get(digest)

    def _reload(self) -> None:
        pause_s = _RELOAD_S
        try:
            self.follow(self._store.all())
        except StorageUnavailable as error:
            pause_s = _AWAY_S
            _log.warning("keys cannot be looked up: the last copy serves", extra={"fields": {"cause": error.detail}})
        finally:
            self._reload_from = self._clock() + pause_s

    def _count(self, key: ApiKey) -> None:
        allowance = Allowance(
            key.requests_per_minute or self._default.requests_per_minute, key.burst or self._default.burst
        )
        try:
            self._limits.take(key.id, allowance)
        except RateLimited:
            self._metrics.refused(Refusal.RATE)
            raise
        now = self._clock()
        if now - self._noted.get(key.id, -math.inf) > _NOTED_S:
            self._noted[key.id] = now
            with self._noting:
                self._unwritten.add(key.id)

    def _refuse(self, why: Refusal, key: ApiKey | None = None) -> NoReturn:
        """Every caller without a valid key is told the same; the log says whose key it was, where it was one."""
        self._metrics.refused(why)
        if key is not None:
            _log.warning("a key that is not valid", extra={"fields": {"key": key.id, "name": key.name, "why": why}})
        raise Unauthenticated


def _known(key: ApiKey, now: float) -> _Known:
    until = math.inf if key.expires_in_s is None else now + key.expires_in_s
    return _Known(key, Caller(key.name, key.scopes, key.id), until)


def _hides_who_calls(header: bytes, value: bytes) -> bool:
    """Whether a header tells that the call came through a proxy, or from a page of another host in a local browser.

    Such a page's host may lead to this machine (DNS rebinding): then the browser takes the service for the page's own.
    """
    if header == b"origin":
        return not _LOCAL_PAGE.fullmatch(value)
    return header in _PROXY_HEADERS or header.startswith(_PROXY_PREFIX)


def _secret(header: bytes, value: bytes) -> bytes | None:
    """The key in a header; None where there is none in it."""
    form, group = _FORMS[header]
    match = form.fullmatch(value)
    return match[group] if match else None
