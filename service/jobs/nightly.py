"""What is done once a night: the models of a hardware are retrained, and what was kept long enough is deleted.

Each in a process of its own, which may crash, take too much memory or too long: the worker lives on and its heartbeats
go on. Nothing is tried again before the next night.
"""

import asyncio
import contextlib
import importlib
import logging
import os
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import Pipe, connection
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

from service.domain.errors import ShardwrightError, StorageUnavailable
from service.jobs import children
from service.storage.nights import NightRepository

_LONGEST_ERROR = 4_000
_NICE = 10
"""Whatever serves or measures on the same cores goes first."""

_log = logging.getLogger(__name__)


class NightFailed(ShardwrightError):
    """What was done at night failed; the detail says why."""

    kind = "night_failed"


@dataclass(frozen=True, slots=True)
class Nightly:
    """What is done at night, and when.

    Attributes:
        cron: when, in UTC; empty for never.
        timeout_s: most seconds that either may take.
        settings: of the service, the first argument of both.
        retrain: ``module:callable`` that retrains the models of a hardware, its second argument.
        prune: ``module:callable`` that deletes what was kept long enough.
    """

    cron: str
    timeout_s: float
    settings: object
    retrain: str
    prune: str


class NightJob:
    """Does what is done at night for one hardware; nothing that takes time runs in the event loop."""

    def __init__(self, nightly: Nightly, hardware: str, cpus: Sequence[int], nights: NightRepository) -> None:
        """Ties the parts together.

        Args:
            nightly: what is done.
            hardware: whose models are retrained.
            cpus: cores that it is bound to, those of the worker; any where there are none.
            nights: where failures are stored.
        """
        self.nightly = nightly
        self.hardware = hardware
        self._cpus = tuple(cpus)
        self._nights = nights

    async def retrain(self, job: int) -> None:
        """Retrains; a failure, or a cancellation, ends it and is stored as the training's."""
        try:
            await self._in_own_process(self.nightly.retrain, self.nightly.settings, self.hardware)
        except NightFailed as error:
            await self._note(job, error.detail)
        except asyncio.CancelledError:
            await self._note(job, "the worker was stopped while it trained")
            raise

    async def prune(self) -> None:
        """Deletes what was kept long enough; what a failure leaves is deleted the next night."""
        try:
            await self._in_own_process(self.nightly.prune, self.nightly.settings)
        except NightFailed as error:
            _log.error("pruning failed", extra={"fields": {"cause": error.detail}})

    async def _in_own_process(self, name: str, *arguments: object) -> None:
        try:
            running = _Running(name, arguments, self._cpus)
        except OSError as error:
            raise NightFailed(f"its process did not start: {error}") from error
        try:
            await asyncio.to_thread(running.wait, self.nightly.timeout_s)
        finally:
            # Ending the process ends the thread that waits for it, too.
            running.end()

    async def _note(self, job: int, reason: str) -> None:
        fields = {"hardware": self.hardware, "cause": reason}
        _log.error("a nightly training ended before its end", extra={"fields": fields})
        try:
            await asyncio.to_thread(self._nights.fail, job, self.hardware, reason[:_LONGEST_ERROR])
        except StorageUnavailable as error:
            _log.warning("the failure could not be stored", extra={"fields": {"cause": error.detail}})


class _Running:
    """A call that runs in a process of its own."""

    def __init__(self, name: str, arguments: Sequence[object], cpus: Sequence[int]) -> None:
        self._pipe, theirs = Pipe(duplex=False)
        with theirs:
            self._process: SpawnProcess = children.start(main, theirs, name, arguments, cpus)

    def wait(self, timeout_s: float) -> None:
        """Blocks until it is through.

        Raises:
            NightFailed: it failed, its process ended, or it takes too long.
        """
        if not connection.wait([self._pipe], timeout_s):
            raise NightFailed(f"it took longer than {timeout_s / 3600:g} hours and was ended")
        try:
            said: str | None = self._pipe.recv()
        except (EOFError, OSError) as error:
            raise NightFailed(f"its process ended: {children.how_it_ended(self._process)}") from error
        if said is not None:
            raise NightFailed(said)

    def end(self) -> None:
        self._process.kill()
        self._process.join()


def main(pipe: "Connection[Any, Any]", name: str, arguments: Sequence[object], cpus: Sequence[int]) -> None:
    """The process: calls ``module:callable`` and says what went wrong, None for nothing."""
    children.prepare(cpus)
    os.nice(_NICE)
    said: str | None = None
    try:
        module, _, function = name.partition(":")
        getattr(importlib.import_module(module), function)(*arguments)
    except ShardwrightError as error:
        said = error.detail
    except MemoryError:
        said = "memory ran out"
    except Exception:
        said = traceback.format_exc()
    # Where the worker is gone nobody is told: a sweep finds its job.
    with contextlib.suppress(BrokenPipeError):
        pipe.send(said)
