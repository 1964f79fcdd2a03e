"""Planning processes that are free, and those who wait for one."""

import math
import threading
import time
from collections import deque
from concurrent.futures import Future

from service.api.planner_process import PlannerProcess
from service.domain.errors import PlanCancelled
from service.domain.waiting import LOOK_S, Waiting


class NoneInTime(Exception):
    """No process came free in time."""


class IdleProcesses:
    """Who came first gets the first process that comes free, and loses no place by looking whether to wait still."""

    def __init__(self) -> None:
        """No process is free yet, and nobody waits."""
        self._changing = threading.Lock()
        self._idle: deque[PlannerProcess] = deque()
        self._places: deque[Future[PlannerProcess]] = deque()

    def put(self, process: PlannerProcess) -> None:
        """Hands a process to who waits longest, or keeps it."""
        with self._changing:
            if self._places:
                self._places.popleft().set_result(process)
            else:
                self._idle.append(process)

    def take(self) -> PlannerProcess | None:
        """The process that is free the longest, or None."""
        with self._changing:
            return self._idle.popleft() if self._idle else None

    def wait(self, timeout: float | None, waiting: Waiting) -> PlannerProcess:
        """A process that is free, when it is one's turn.

        Raises:
            NoneInTime: ``timeout`` seconds have passed, and somebody is in a hurry.
            PlanCancelled: all who waited have left.
        """
        place: Future[PlannerProcess] = Future()
        with self._changing:
            if self._idle:
                return self._idle.popleft()
            self._places.append(place)
        try:
            return _awaited(place, timeout, waiting)
        except (NoneInTime, PlanCancelled):
            self._give_up(place)
            raise

    def _give_up(self, place: "Future[PlannerProcess]") -> None:
        with self._changing:
            given = place.done()
            if not given:
                self._places.remove(place)
        if given:
            self.put(place.result())


def _awaited(place: "Future[PlannerProcess]", timeout: float | None, waiting: Waiting) -> PlannerProcess:
    due = math.inf if timeout is None else time.monotonic() + timeout
    while True:
        look_s = LOOK_S if waiting.unhurried() else max(0.0, min(LOOK_S, due - time.monotonic()))
        try:
            return place.result(look_s)
        except TimeoutError:
            if waiting.gone():
                raise PlanCancelled("nobody waits for the plan any more") from None
            if look_s == 0.0:
                raise NoneInTime from None
