"""Profiles that callers ask for, and those that plans and estimates give rise to."""

import logging
import queue
import re
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from service.api.conversion import posed_profiles
from service.api.parsing import ONE_AT_A_TIME, Limits, parse_profiles
from service.api.profile_answers import ProfilesAnswer, profiles_answer
from service.api.schemas import PLAN_ID_PATTERN
from service.domain.callers import Caller
from service.domain.errors import StorageUnavailable
from service.domain.plan import Problem
from service.domain.ports import ProfileStore
from service.domain.profiles import NoWorker, ProfileRequestNotFound, ProfileTerms, TableProfile
from service.telemetry.metrics import Metrics
from service.usecases.request_profile import new_profiles, queue_profiles, request_profiles

_WAITING = 256
_LAST_WORDS_S = 5.0

_QUIET_S = 5.0
"""Seconds for which a table that was handed over is not handed over again, however often it is asked for."""

_MOST_QUIET = 2_048

_log = logging.getLogger(__name__)


class ProfileDesk:
    """The answers to /profiles; blocks the calling thread."""

    def __init__(self, store: ProfileStore, terms: ProfileTerms, limits: Limits) -> None:
        """Ties the parts together."""
        self._store = store
        self._terms = terms
        self._limits = limits

    def request(self, body: bytes, caller: Caller) -> ProfilesAnswer:
        """Queues what is new of a body of POST /profiles; all of it, or nothing.

        Raises:
            ShardwrightError: the request is not valid, cannot be met, or not now.
        """
        with ONE_AT_A_TIME:
            request = parse_profiles(body, self._limits)
        return profiles_answer(request_profiles(posed_profiles(request), self._store, caller.name, self._terms))

    def progress(self, request_id: str, caller: Caller) -> ProfilesAnswer:
        """Where the profiles of a request stand.

        Raises:
            ProfileRequestNotFound: there is none under this id for this caller.
            StorageUnavailable: the database cannot be reached.
        """
        found = self._store.get_request(request_id, caller) if re.match(PLAN_ID_PATTERN, request_id) else None
        if found is None:
            raise ProfileRequestNotFound(f"no request for profiles is stored under {request_id!r}")
        return profiles_answer(found)


class NoveltySink(Protocol):
    """Takes note of tables that plans and estimates met."""

    def met(self, problem: Problem, novelty: Sequence[float], caller: Caller) -> None:
        """Notes a problem's tables and how far each is from what was measured; returns at once, never fails."""


class NovelTables:
    """Has the tables that are new measured, in a thread of its own: no answer waits for it or fails with it.

    What is lost here (a full queue, the database away) comes again with the next new plan of the same tables.
    """

    def __init__(self, store: ProfileStore, terms: ProfileTerms, threshold: float, metrics: Metrics) -> None:
        """Prepares the thread; entering starts it."""
        self._store = store
        self._terms = terms
        self._threshold = threshold
        self._metrics = metrics
        self._found: queue.Queue[tuple[list[TableProfile], str] | _Over] = queue.Queue(_WAITING)
        self._quiet_until: dict[tuple[str, TableProfile], float] = {}
        self._thread = threading.Thread(target=self._run, name="novel tables", daemon=True)

    def __enter__(self) -> Self:
        """Starts the thread."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends the thread once what was found is queued, or a few seconds have passed."""
        with suppress(queue.Full):
            self._found.put(_Over(), timeout=_LAST_WORDS_S)
        self._thread.join(_LAST_WORDS_S)

    def met(self, problem: Problem, novelty: Sequence[float], caller: Caller) -> None:
        """Notes the tables whose novelty is above the threshold."""
        now = time.monotonic()
        found = new_profiles(problem, novelty, self._threshold)
        profiles = [profile for profile in found if now >= self._quiet_until.get((caller.name, profile), now)]
        if len(profiles) < len(found):
            self._metrics.novel_tables("left_out", len(found) - len(profiles))
        if not profiles:
            return
        try:
            self._found.put_nowait((profiles, caller.name))
        except queue.Full:
            self._metrics.novel_tables("dropped", len(profiles))
            return
        if len(self._quiet_until) > _MOST_QUIET:
            self._quiet_until.clear()
        self._quiet_until.update(((caller.name, profile), now + _QUIET_S) for profile in profiles)

    def _run(self) -> None:
        while not isinstance(found := self._found.get(), _Over):
            profiles, caller = found
            outcome, queued = self._queued(profiles, caller)
            self._metrics.novel_tables("queued", queued)
            self._metrics.novel_tables(outcome, len(profiles) - queued)

    def _queued(self, profiles: list[TableProfile], caller: str) -> tuple[str, int]:
        """What became of the profiles that were not queued, and how many were."""
        try:
            # Those that are left out are known, beyond the quota, or nothing that the operator does there.
            return "left_out", queue_profiles(profiles, self._store, caller, self._terms)
        except NoWorker:
            return "no_worker", 0
        except StorageUnavailable as error:
            _log.warning("new tables were not queued", extra={"fields": {"cause": error.detail}})
        except Exception:
            _log.exception("new tables were not queued")
        return "failed", 0


@dataclass(frozen=True, slots=True)
class _Over:
    """Nothing comes any more."""


class NoSink:
    """Measures nothing: for planning without a service."""

    def met(self, problem: Problem, novelty: Sequence[float], caller: Caller) -> None:
        """Does nothing."""
