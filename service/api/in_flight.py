"""Calls that are made at the same time for the same thing share one."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Generic, TypeVar

from service.domain.errors import PlanCancelled
from service.domain.waiting import LOOK_S, PATIENT, Waiting

Result = TypeVar("Result")


class _Flight(Waiting, Generic[Result]):
    """One call, and all who wait for it: it is for nothing only once they have all left."""

    def __init__(self, first: Waiting) -> None:
        self.future: Future[Result] = Future()
        self._lock = threading.Lock()
        self._waiting = [first]
        self._admitted = False

    def joined(self, waiting: Waiting) -> bool:
        """Adds one who waits; False where all have left, so that the call may end any moment without a result."""
        with self._lock:
            if self._all_gone():
                return False
            self._waiting.append(waiting)
            for each in self._waiting:
                each.shared()
            if self._admitted:
                waiting.admitted()
            return True

    def admitted(self) -> None:
        with self._lock:
            self._admitted = True
            for waiting in self._waiting:
                waiting.admitted()

    def gone(self) -> bool:
        with self._lock:
            return self._all_gone()

    def unhurried(self) -> bool:
        with self._lock:
            return all(waiting.unhurried() for waiting in self._waiting)

    def _all_gone(self) -> bool:
        return all(waiting.gone() for waiting in self._waiting)


class InFlight(Generic[Result]):
    """All ranks of a launch ask the same at once: the first call works, the others wait for what it comes to."""

    def __init__(self) -> None:
        """Nothing is in flight yet."""
        self._lock = threading.Lock()
        self._flights: dict[str, _Flight[Result]] = {}

    def run(self, key: str, call: Callable[[Waiting], Result], waiting: Waiting = PATIENT) -> tuple[Result, bool]:
        """The result of ``call``, or of one under the same key that is under way, and whether it was another's.

        An error is shared as well.

        Args:
            key: of what is asked.
            call: makes it; is given all who wait for it, of whom some may come later.
            waiting: who asks here. The call is made here for all others too, also when these have left.

        Raises:
            PlanCancelled: it is another's call, and who asks here has left.
        """
        flight, own = self._flight(key, waiting)
        if not own:
            return _awaited(flight.future, waiting), True
        try:
            flight.future.set_result(call(flight))
        except BaseException as error:
            flight.future.set_exception(error)
        finally:
            with self._lock:
                # Where all had left, another may have taken its place.
                if self._flights.get(key) is flight:
                    del self._flights[key]
        return flight.future.result(), False

    def _flight(self, key: str, waiting: Waiting) -> tuple[_Flight[Result], bool]:
        """The flight that who waits is on, and whether it is their own to make."""
        with self._lock:
            flight = self._flights.get(key)
            if flight is not None and flight.joined(waiting):
                return flight, False
            flight = self._flights[key] = _Flight(waiting)
            return flight, True


def _awaited(future: Future[Result], waiting: Waiting) -> Result:
    while not wait([future], LOOK_S).done:
        if waiting.gone():
            raise PlanCancelled("who asked has left")
    return future.result()
