"""The parent of a machine's workers: starts them, starts them again, stops them, and sweeps the queue."""

import logging
import signal
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing import get_context
from multiprocessing.context import SpawnProcess

from service.domain.errors import StorageUnavailable
from service.jobs import worker
from service.jobs.children import start_deaf
from service.jobs.worker import WorkerSpec
from service.storage.claims import ClaimRepository
from service.storage.nights import NightRepository
from service.storage.workers import WorkerRepository

GRACE_S = 10.0
"""Seconds that a worker has to give its job back and end, after those that the job had to finish; then it is killed."""

_LOOK_S = 0.2
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 15.0
_STEADY_S = 5.0
_HUNG = 4

_log = logging.getLogger(__name__)


class Supervisor:
    """Keeps one worker a device running until it is stopped.

    Any number of supervisors, on any number of machines, serve one database: all they share is the queue.
    """

    def __init__(
        self,
        specs: Sequence[WorkerSpec],
        claims: ClaimRepository,
        nights: NightRepository,
        workers: WorkerRepository,
        sweep_s: float,
    ) -> None:
        """Starts nothing yet.

        Args:
            specs: of the workers, one a device, all with this supervisor's name.
            claims: swept every ``sweep_s`` seconds.
            nights: swept as well.
            workers: where a worker that ended is noted.
            sweep_s: seconds between sweeps.
        """
        self._places = [_Place(spec) for spec in specs]
        self._claims = claims
        self._nights = nights
        self._workers = workers
        self._sweep_s = sweep_s
        self._name = specs[0].supervisor
        self._stalled_s = specs[0].retries.stalled_s
        self._next_sweep = time.monotonic()

    def run(self, stop: threading.Event) -> None:
        """Works until ``stop`` is set, then stops the workers, which takes ``shutdown_s`` and ``GRACE_S`` at most."""
        try:
            while not stop.wait(_LOOK_S):
                for place in self._places:
                    ended = place.look()
                    if ended is not None:
                        self._reached(partial(self._note_end, ended))
                if time.monotonic() >= self._next_sweep:
                    self._next_sweep = time.monotonic() + self._sweep_s
                    self._reached(self._sweep)
        finally:
            self._stop()

    def _reached(self, call: Callable[[], None]) -> None:
        """Calls, unless the database is away; what is at the queue's edge must not end the supervisor."""
        try:
            call()
        except StorageUnavailable as error:
            _log.warning("the queue cannot be reached", extra={"fields": {"cause": error.detail}})
            # Heartbeats were lost with the database: who is alive shows in a while.
            self._next_sweep = time.monotonic() + self._stalled_s
            for place in self._places:
                place.heard = self._next_sweep
        except Exception:
            _log.exception("looking after the queue failed")

    def _note_end(self, pid: int) -> None:
        """Has the next sweep find what a process held that is known to be gone."""
        self._workers.end(self._name, pid)
        self._next_sweep = time.monotonic()

    def _sweep(self) -> None:
        self._workers.prune()
        swept = self._claims.sweep()
        if swept.queued or swept.parked or swept.expired:
            fields = {"queued": swept.queued, "parked": swept.parked, "expired": swept.expired}
            _log.warning("profiles were found without a live worker, or too old", extra={"fields": fields})
        for hardware in self._nights.sweep():
            _log.warning("a nightly training was left by its worker", extra={"fields": {"hardware": hardware}})
        for place in self._places:
            self._end_if_it_hangs(place)

    def _end_if_it_hangs(self, place: "_Place") -> None:
        """Ends a process that runs and was not heard of for long: its device would serve nobody."""
        if place.pid and self._workers.heartbeat_age_s(self._name, place.pid) is not None:
            place.heard = time.monotonic()
        elif place.pid and time.monotonic() - place.heard > _HUNG * self._stalled_s:
            _log.error("a worker hangs and is ended", extra={"fields": {"pid": place.pid}})
            place.kill()

    def _stop(self) -> None:
        for place in self._places:
            place.terminate()
        seconds = max(place.spec.shutdown_s for place in self._places) + GRACE_S
        deadline = time.monotonic() + seconds
        for place in self._places:
            place.wait(max(0.0, deadline - time.monotonic()))


class _Place:
    """A place for one worker's process; it stays empty for a while after each end, longer where that came soon.

    Attributes:
        spec: of the worker.
        heard: when the process was last known to send heartbeats, on the monotonic clock.
    """

    def __init__(self, spec: WorkerSpec) -> None:
        self.spec = spec
        self.heard = 0.0
        self._process: SpawnProcess | None = None
        self._began = 0.0
        self._pause = _FIRST_PAUSE_S / 2
        self._start_at = 0.0

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def look(self) -> int | None:
        """Starts a process where there is none and it is time; the id of one that was found to have ended."""
        now = time.monotonic()
        if self._process is None:
            if now >= self._start_at:
                self._try_to_start(now)
            return None
        if self._process.is_alive():
            return None
        ended, self._process = self._process, None
        lasted = now - self._began
        self._rest(now, lasted)
        fields = {"pid": ended.pid, "exit_status": ended.exitcode, "lasted_s": round(lasted, 1), "pause_s": self._pause}
        _log.warning("a worker ended and is started again", extra={"fields": fields})
        return ended.pid

    def terminate(self) -> None:
        if self._process is not None:
            self._process.terminate()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def wait(self, seconds: float) -> None:
        if self._process is not None:
            self._process.join(seconds)
            self._process.kill()
            self._process.join()

    def _rest(self, now: float, lasted: float) -> None:
        self._pause = _FIRST_PAUSE_S if lasted > _STEADY_S else min(2 * self._pause, _LONGEST_PAUSE_S)
        self._start_at = now + self._pause

    def _try_to_start(self, now: float) -> None:
        try:
            self._start(now)
        except OSError as error:
            # No memory or no process ids just now: other workers go on, and so does what looks after them.
            self._rest(now, lasted=0.0)
            fields = {"cause": str(error), "pause_s": self._pause}
            _log.error("a worker cannot be started", extra={"fields": fields})

    def _start(self, now: float) -> None:
        process = get_context("spawn").Process(target=worker.main, args=(self.spec,))
        # Until it handles signals itself, a Ctrl-C to the whole group must not end it half made.
        start_deaf(process, signal.SIGINT)
        self._process, self._began, self.heard = process, now, now
