"""Calls that are made at the same time for the same thing share one."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

Result = TypeVar("Result")


class InFlight(Generic[Result]):
    """All ranks of a launch ask the same at once: the first call works, the others wait for what it comes to."""

    def __init__(self) -> None:
        """Nothing is in flight yet."""
        self._lock = threading.Lock()
        self._calls: dict[str, Future[Result]] = {}

    def run(self, key: str, call: Callable[[], Result]) -> tuple[Result, bool]:
        """The result of ``call``, or of one under the same key that is under way, and whether it was another's.

        An error is shared as well.
        """
        with self._lock:
            under_way = self._calls.get(key)
            own: Future[Result] = under_way or self._calls.setdefault(key, Future())
        if under_way is not None:
            return under_way.result(), True
        try:
            own.set_result(call())
        except BaseException as error:
            own.set_exception(error)
        finally:
            with self._lock:
                del self._calls[key]
        return own.result(), False
