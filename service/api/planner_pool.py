"""A bounded pool of planning processes.

Each process has a pipe of its own. That is all that a pool needs here, and it holds where the standard library's
executor may not: one that dies ends its own request only, and none can die unnoticed or with a lock that others need.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from service.api import planner_worker
from service.api.idle_processes import IdleProcesses, NoneInTime
from service.api.planner_process import Died, PlannerProcess, Stuck, seconds_left
from service.api.planner_worker import Crash, Refusal, SourceSpec
from service.api.readiness import Check
from service.domain.deadline import Deadline
from service.domain.errors import NoPlanInTime, PlannerBusy, ShardwrightError
from service.domain.plan import Algorithm, Problem, Running, Shard
from service.domain.waiting import PATIENT, Waiting
from service.usecases.estimate import Estimate
from service.usecases.make_plan import PlanResult

Result = TypeVar("Result")

_RETRY_AFTER_S = 1
_ATTEMPTS = 2

_log = logging.getLogger(__name__)


class Planner(Protocol):
    """Plans and estimates, somewhere, with cost models of given versions."""

    def plan(
        self,
        problem: Problem,
        versions: Mapping[str, str],
        algorithm: Algorithm,
        seed: int,
        deadline: Deadline,
        running: Running | None,
        waiting: Waiting,
    ) -> PlanResult:
        """``make_plan`` for those who wait, who are told that they are admitted.

        Raises:
            PlannerBusy: there is no room for the request.
            PlanCancelled: all who waited have left.
            ShardwrightError: whatever ``make_plan`` raises.
        """

    def estimate(
        self, problem: Problem, versions: Mapping[str, str], shards: Sequence[Shard], deadline: Deadline
    ) -> Estimate:
        """``usecases.estimate``; also raises PlannerBusy where there is no room for the request."""

    def refuse_if_full(self) -> None:
        """Raises PlannerBusy where there is no room for a request now; never blocks."""
        return None


class Tally(Protocol):
    """Something that goes up."""

    def inc(self) -> None:
        """Adds one."""


class Gauge(Tally, Protocol):
    """Something that goes up and down."""

    def dec(self) -> None:
        """Takes one away."""


class PlanningProcessFailed(ShardwrightError):
    """A planning process did not start, or raised what is no error of the domain; the detail has its traceback."""

    kind = "internal_error"


class PlannerPool:
    """Spawned processes that plan, and a short queue before them; calls block their thread.

    A deadline holds across processes: Linux's CLOCK_MONOTONIC, the clock of ``Deadline``, is one for the machine.
    """

    def __init__(
        self,
        source: SourceSpec,
        processes: int,
        waiting_room: int,
        running: Gauge,
        waiting: Gauge,
        deaths: Tally,
        grace_s: float = 10.0,
    ) -> None:
        """Prepares a pool; entering it starts it.

        Args:
            source: of the cost models, for each process.
            processes: plans made at the same time.
            waiting_room: requests that may wait beyond those.
            running: follows the number of requests in a process.
            waiting: follows the number of requests that wait.
            deaths: counts processes that ended on their own or were stuck.
            grace_s: seconds after which a process that ought to have seen its deadline pass is taken for stuck.
        """
        self._processes = [PlannerProcess(source) for _ in range(processes)]
        self._admission = threading.BoundedSemaphore(processes + waiting_room)
        self._running, self._waiting, self._deaths = running, waiting, deaths
        self._grace_s = grace_s
        self._idle = IdleProcesses()
        self._changing = threading.Lock()
        self._closed = False

    def __enter__(self) -> Self:
        """Starts the processes and waits until each has loaded the models.

        Raises:
            PlanningProcessFailed: one ended instead; standard error says why.
        """
        try:
            for process in self._processes:
                process.start()
            for process in self._processes:
                process.call(planner_worker.ready, (), None, PATIENT)
                self._idle.put(process)
        except (Died, OSError) as error:
            self.stop()
            raise PlanningProcessFailed("a planning process did not start") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stops the pool."""
        self.stop()

    def stop(self) -> None:
        """Ends the processes at once; requests that they were at or that wait are answered PlannerBusy."""
        with self._changing:
            self._closed = True
            for process in self._processes:
                process.end()

    def pids(self) -> list[int]:
        """Ids of the processes that there are."""
        return [process.pid for process in self._processes if process.pid is not None]

    def check(self) -> Check:
        """How many processes there are; those that died while they were idle are started again."""
        for _ in self._processes:
            process = self._idle.take()
            if process is not None:
                with suppress(PlannerBusy):
                    self._give_back(process)
        alive, wanted = sum(process.alive() for process in self._processes), len(self._processes)
        return Check(True) if alive == wanted else Check(alive > 0, f"{alive} of {wanted} planning processes")

    def refuse_if_full(self) -> None:
        """Has a request refused before anything was done for it.

        Raises:
            PlannerBusy: processes and waiting room are full.
        """
        with self._admitted():
            pass

    def plan(
        self,
        problem: Problem,
        versions: Mapping[str, str],
        algorithm: Algorithm,
        seed: int,
        deadline: Deadline,
        running: Running | None,
        waiting: Waiting,
    ) -> PlanResult:
        """``make_plan`` in a planning process; the wait for one counts against the deadline, unless none is in a hurry.

        Once all who wait have left, the process, or the place before it, is soon free: as a rule within a fifth of a
        second, and after little more than one it is given up on, and another is started. One that was only just started
        loads the models first.

        Raises:
            PlannerBusy: processes and waiting room are full, none came free by the deadline, two processes died of
                this request, or the pool stops.
            NoPlanInTime: the process was stuck.
            PlanCancelled: all who waited have left.
            ShardwrightError: whatever ``make_plan`` raises.
        """
        return self._run(
            deadline,
            waiting,
            planner_worker.plan,
            lambda due: (problem, versions, algorithm, seed, due, running),
        )

    def estimate(
        self, problem: Problem, versions: Mapping[str, str], shards: Sequence[Shard], deadline: Deadline
    ) -> Estimate:
        """``usecases.estimate`` in a planning process.

        Raises:
            PlannerBusy: processes and waiting room are full, none came free by the deadline, two processes died of
                this request, or the pool stops.
            NoPlanInTime: the process was stuck.
            ShardwrightError: whatever ``estimate`` raises.
        """
        return self._run(deadline, PATIENT, planner_worker.estimate, lambda _: (problem, versions, shards))

    def _run(
        self,
        deadline: Deadline,
        waiting: Waiting,
        call: Callable[..., Result | Refusal | Crash],
        arguments: Callable[[Deadline], Sequence[Any]],
    ) -> Result:
        with self._admitted():
            waiting.admitted()
            queued_s = 0.0
            for _ in range(_ATTEMPTS):
                began = deadline.clock()
                try:
                    with self._idle_process(deadline, waiting) as process:
                        queued_s += deadline.clock() - began
                        due = deadline.later(queued_s) if waiting.unhurried() else deadline
                        outcome: Result | Refusal | Crash = process.call(
                            call, arguments(due), seconds_left(due, self._grace_s), waiting
                        )
                except Died:
                    continue
                except Stuck:
                    _log.warning("a planning process was stuck and was ended")
                    raise NoPlanInTime("the planning process did not answer by the time limit") from None
                if isinstance(outcome, Refusal):
                    raise outcome.error()
                if isinstance(outcome, Crash):
                    raise PlanningProcessFailed(outcome.traceback)
                return outcome
        raise _busy("planning processes died while they handled this request")

    @contextmanager
    def _admitted(self) -> Iterator[None]:
        if not self._admission.acquire(blocking=False):
            raise _busy("all planning processes are taken and others wait")
        try:
            yield
        finally:
            self._admission.release()

    @contextmanager
    def _idle_process(self, deadline: Deadline, waiting: Waiting) -> Iterator[PlannerProcess]:
        """A process that is free and runs, after a wait that the deadline limits."""
        self._waiting.inc()
        try:
            process = self._idle.wait(seconds_left(deadline), waiting)
        except NoneInTime:
            raise _busy("all planning processes were taken until the time limit passed") from None
        finally:
            self._waiting.dec()
        self._running.inc()
        try:
            yield self._revived(process)
        finally:
            self._running.dec()
            # A successor for one that died has the models loaded by the time the next request comes.
            with suppress(PlannerBusy):
                self._give_back(process)

    def _give_back(self, process: PlannerProcess) -> None:
        try:
            self._revived(process)
        finally:
            self._idle.put(process)

    def _revived(self, process: PlannerProcess) -> PlannerProcess:
        """A process that runs, started anew where it has ended; raises PlannerBusy where that cannot be."""
        with self._changing:
            if self._closed:
                raise _busy("the service is stopping")
            if process.alive():
                return process
            code = process.clear()
            if code is not None:
                self._deaths.inc()
                _log.warning("a planning process died", extra={"fields": {"exit_code": code}})
            try:
                process.start()
            except OSError as error:
                _log.error("a planning process cannot be started", extra={"fields": {"cause": str(error)}})
                raise _busy("a planning process is missing and cannot be started now") from error
            return process


def _busy(detail: str) -> PlannerBusy:
    return PlannerBusy(detail, retry_after_s=_RETRY_AFTER_S)
