"""Reads for /metrics that end in time, whatever the database does: a scrape must not hang with it."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Result = TypeVar("Result")


class ReadTooSlow(Exception):
    """The read has not ended in time, or an earlier one has not."""


class PromptReads:
    """Bounds what several reads of one scrape wait, all together.

    A connection whose packets are dropped holds a read for longer than any timeout of the server's can say. Such a read
    goes on in its thread; until it has ended all others are refused at once, so that no threads pile up.
    """

    def __init__(self, seconds: float = 2.0) -> None:
        """Reads nothing yet; ``seconds`` is what one read may take."""
        self._seconds = seconds
        self._lock = threading.Lock()
        self._began: dict[int, float] = {}

    def of(self, read: Callable[[], Result]) -> Callable[[], Result]:
        """The read, bounded; it raises ReadTooSlow, or what the read itself raises."""

        def bounded() -> Result:
            self._refuse_when_one_hangs()
            found: Future[Result] = Future()
            with self._lock:
                self._began[id(found)] = time.monotonic()
            threading.Thread(target=self._run, args=(read, found), name="figures", daemon=True).start()
            try:
                return found.result(self._seconds)
            except TimeoutError as error:
                raise ReadTooSlow(f"no answer within {self._seconds:g} s") from error

        return bounded

    def _refuse_when_one_hangs(self) -> None:
        with self._lock:
            oldest = min(self._began.values(), default=None)
        if oldest is not None and time.monotonic() - oldest >= self._seconds:
            raise ReadTooSlow("an earlier read has not ended")

    def _run(self, read: Callable[[], Result], found: "Future[Result]") -> None:
        try:
            found.set_result(read())
        except Exception as error:
            found.set_exception(error)
        finally:
            with self._lock:
                del self._began[id(found)]
