"""A bounded pool of planning processes.

Each process has a pipe of its own. That is all that a pool needs here, and it holds where the standard library's
executor may not: one that dies ends its own request only, and none can die unnoticed or with a lock that others need.
"""

import math
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from types import TracebackType
from typing import Any, ParamSpec, Protocol, TypeVar

from service.api import planner_worker
from service.api.planner_worker import Crash, Refusal, SourceSpec
from service.domain.deadline import Deadline
from service.domain.errors import NoPlanInTime, PlannerBusy
from service.domain.plan import Algorithm, Problem, Shard
from service.usecases.estimate import Estimate
from service.usecases.make_plan import PlanResult

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_RETRY_AFTER_S = 1
_ATTEMPTS = 2
_GRACE_S = 10.0
"""After which a process that ought to have seen its deadline pass is taken for stuck."""


class Planner(Protocol):
    """Plans and estimates, somewhere."""

    def plan(self, problem: Problem, algorithm: Algorithm, seed: int, deadline: Deadline) -> PlanResult:
        """``make_plan``; also raises PlannerBusy where there is no room for the request."""

    def estimate(self, problem: Problem, shards: Sequence[Shard]) -> Estimate:
        """``usecases.estimate``; also raises PlannerBusy where there is no room for the request."""


class Gauge(Protocol):
    """Something that goes up and down."""

    def inc(self) -> None:
        """Adds one."""

    def dec(self) -> None:
        """Takes one away."""


class PlanningProcessFailed(Exception):
    """A planning process did not start, or raised what is no error of the domain; the message has its traceback."""


class _Died(Exception):
    """The process of a worker has ended, or was ended because it was stuck."""


class _Worker:
    """One planning process."""

    def __init__(self, source: SourceSpec) -> None:
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=planner_worker.main, args=(theirs, source), daemon=True)
        self._process.start()
        theirs.close()
        self.usable = True

    def call(self, call: Callable[..., Any], args: Sequence[Any], timeout: float | None) -> Any:
        """What a function returns in the process; raises _Died where it does not within seconds of ``timeout``."""
        self.usable = False
        try:
            self._pipe.send((call, args))
            if not self._pipe.poll(timeout):
                raise _Died
            outcome = self._pipe.recv()
        except (EOFError, OSError) as error:
            raise _Died from error
        self.usable = True
        return outcome

    def stop(self) -> None:
        """Ends the process, whatever it is at: it holds nothing that needs an orderly end."""
        self._process.kill()
        self._process.join()


class PlannerPool:
    """Spawned processes that plan, and a short queue before them; calls block their thread.

    A deadline holds across processes: Linux's CLOCK_MONOTONIC, the clock of ``Deadline``, is one for the machine.
    """

    def __init__(self, source: SourceSpec, processes: int, waiting_room: int, running: Gauge, waiting: Gauge) -> None:
        """Prepares a pool; entering it starts it.

        Args:
            source: of the cost models, for each process.
            processes: plans made at the same time.
            waiting_room: requests that may wait beyond those.
            running: follows the number of requests in a process.
            waiting: follows the number of requests that wait.
        """
        self._source = source
        self._processes = processes
        self._admission = threading.BoundedSemaphore(processes + waiting_room)
        self._running, self._waiting = running, waiting
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        self._workers: set[_Worker] = set()
        self._changing = threading.Lock()
        self._closed = False

    def __enter__(self) -> "PlannerPool":
        """Starts the processes and waits until each has loaded the models.

        Raises:
            PlanningProcessFailed: one ended instead; standard error says why.
        """
        for _ in range(self._processes):
            self._start_worker()
        for worker in list(self._workers):
            try:
                worker.call(planner_worker.ready, (), None)
            except _Died as error:
                self._stop_workers()
                raise PlanningProcessFailed("a planning process did not start") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends the processes at once; requests that they were at are answered PlannerBusy."""
        self._stop_workers()

    def plan(self, problem: Problem, algorithm: Algorithm, seed: int, deadline: Deadline) -> PlanResult:
        """``make_plan`` in a planning process; the wait for one counts against the deadline.

        Raises:
            PlannerBusy: processes and waiting room are full, or two processes died of this request.
            NoPlanInTime: the deadline passed during the wait.
            ShardwrightError: whatever ``make_plan`` raises.
        """
        return self._run(deadline, planner_worker.plan, problem, algorithm, seed, deadline)

    def estimate(self, problem: Problem, shards: Sequence[Shard]) -> Estimate:
        """``usecases.estimate`` in a planning process.

        Raises:
            PlannerBusy: processes and waiting room are full, or two processes died of this request.
            ShardwrightError: whatever ``estimate`` raises.
        """
        return self._run(Deadline(), planner_worker.estimate, problem, shards)

    def _run(
        self,
        deadline: Deadline,
        call: Callable[Arguments, Result | Refusal | Crash],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Result:
        with self._admitted():
            for _ in range(_ATTEMPTS):
                try:
                    with self._idle_worker(deadline) as worker:
                        outcome: Result | Refusal | Crash = worker.call(call, args, _seconds_left(deadline, _GRACE_S))
                except _Died:
                    continue
                if isinstance(outcome, Refusal):
                    raise outcome.error()
                if isinstance(outcome, Crash):
                    raise PlanningProcessFailed(outcome.traceback)
                return outcome
        raise PlannerBusy("planning processes died while they handled this request", retry_after_s=_RETRY_AFTER_S)

    @contextmanager
    def _admitted(self) -> Iterator[None]:
        if not self._admission.acquire(blocking=False):
            raise PlannerBusy("all planning processes are taken and others wait", retry_after_s=_RETRY_AFTER_S)
        try:
            yield
        finally:
            self._admission.release()

    @contextmanager
    def _idle_worker(self, deadline: Deadline) -> Iterator[_Worker]:
        """A worker that is free, after a wait that the deadline limits; replaced afterwards where it has died."""
        self._waiting.inc()
        try:
            worker = self._idle.get(timeout=_seconds_left(deadline))
        except queue.Empty:
            raise NoPlanInTime("the time limit passed while the request waited for a planning process") from None
        finally:
            self._waiting.dec()
        self._running.inc()
        try:
            yield worker
        finally:
            self._running.dec()
            if worker.usable:
                self._idle.put(worker)
            else:
                self._replace(worker)

    def _replace(self, worker: _Worker) -> None:
        worker.stop()
        self._workers.discard(worker)
        self._start_worker()

    def _start_worker(self) -> None:
        with self._changing:
            if self._closed:
                raise PlannerBusy("the service is stopping", retry_after_s=_RETRY_AFTER_S)
            worker = _Worker(self._source)
            self._workers.add(worker)
        self._idle.put(worker)

    def _stop_workers(self) -> None:
        with self._changing:
            self._closed = True
            for worker in list(self._workers):
                worker.stop()


def _seconds_left(deadline: Deadline, grace: float = 0.0) -> float | None:
    if math.isinf(deadline.at):
        return None
    return max(0.0, min(deadline.at + grace - deadline.clock(), threading.TIMEOUT_MAX))
