"""One planning process, as the API's process sees it."""

import math
import signal
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

from service.api import planner_worker
from service.api.planner_worker import Cancel, SourceSpec
from service.domain.deadline import Deadline
from service.domain.errors import PlanCancelled
from service.domain.waiting import LOOK_S, Waiting
from service.telemetry.tracing import current_span

_CANCEL_S = 1.0
"""Seconds that a process has to end a call that was cancelled; then it is ended itself."""

_START_S = 30.0
"""The same for one that may be loading the models still: clients that hang up early must not keep it from that."""


class Died(Exception):
    """The process ended before it had answered."""


class Stuck(Exception):
    """The process did not answer in time and was ended."""


class PlannerProcess:
    """A place for one planning process, which may be missing; one call at a time."""

    def __init__(self, source: SourceSpec) -> None:
        """An empty place; ``source`` is of the cost models."""
        self._source = source
        self._process: SpawnProcess | None = None
        self._pipe: Connection[Any, Any] | None = None
        self._has_answered = False

    def start(self) -> None:
        """Starts a process, which then loads the models.

        Raises:
            OSError: the system does not give what a process needs.
        """
        context = get_context("spawn")
        pipe, theirs = context.Pipe()
        with theirs:
            process = context.Process(target=planner_worker.main, args=(theirs, self._source), daemon=True)
            # Starting this helper would end the block on signals below.
            resource_tracker.ensure_running()
            # Ctrl-C goes to the whole group: a new process is deaf to it from its first instruction.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                process.start()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._process, self._pipe, self._has_answered = process, pipe, False

    @property
    def pid(self) -> int | None:
        """Its id; None where the place is empty."""
        return self._process.pid if self._process else None

    def alive(self) -> bool:
        """Whether there is a process and it runs."""
        return self._process is not None and self._process.is_alive()

    def call(self, call: Callable[..., Any], args: Sequence[Any], timeout: float | None, waiting: Waiting) -> Any:
        """What a function returns in the process.

        Raises:
            Died: there is no process, or it ended.
            Stuck: it did not answer within ``timeout`` seconds.
            PlanCancelled: all who waited have left, and it did not come to an end by itself soon enough.
        """
        if self._pipe is None:
            raise Died
        try:
            self._pipe.send((call, args, current_span()))
            if not self._answered(self._pipe, timeout, waiting):
                self.end()
                raise Stuck
            self._has_answered = True
            return self._pipe.recv()
        except (EOFError, OSError) as error:
            self.end()
            raise Died from error

    def _answered(self, pipe: "Connection[Any, Any]", timeout: float | None, waiting: Waiting) -> bool:
        """Whether there is an answer in time; where all have left meanwhile, there is one soon or the process ends."""
        due = math.inf if timeout is None else time.monotonic() + timeout
        while not pipe.poll(max(0.0, min(LOOK_S, due - time.monotonic()))):
            if waiting.gone():
                pipe.send(Cancel())
                if pipe.poll(_CANCEL_S if self._has_answered else _START_S):
                    return True
                self.end()
                # It ended as it should: the place is empty, and nothing died.
                self.clear()
                raise PlanCancelled("nobody waits for the plan any more")
            if time.monotonic() >= due:
                return False
        return True

    def end(self) -> None:
        """Ends the process, whatever it is at: it holds nothing that needs an orderly end."""
        process = self._process
        if process is not None:
            process.kill()
            process.join()

    def clear(self) -> int | None:
        """Empties the place of a process that has ended; its exit code, or None where there was none."""
        process, self._process, self._pipe = self._process, None, None
        return process.exitcode if process else None


def seconds_left(deadline: Deadline, grace: float = 0.0) -> float | None:
    """Seconds until a deadline, at least 0, or None where there is no end; by the deadline's clock."""
    if math.isinf(deadline.at):
        return None
    return max(0.0, min(deadline.at + grace - deadline.clock(), threading.TIMEOUT_MAX))
