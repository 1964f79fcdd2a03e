"""Tells what a table holds as it is changed, on every machine."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Generic, Self, TypeVar, cast

import psycopg
from sqlalchemy import Connection, Engine, exc, text

from service.domain.errors import StorageUnavailable
from service.storage.engine import ANSWER_TIMEOUT_S, build_unpooled_engine, storage_errors
from service.storage.impatient_connection import limit_waits

State = TypeVar("State")

_STATEMENT_TIMEOUT_MS = 5_000
_LONGEST_PAUSE_S = 5.0
_ENDS_WITHIN_S = 0.25

_log = logging.getLogger(__name__)


def application_name(name: str) -> str:
    """What ``pg_stat_activity`` shows of the connection that listens for a watch of this name."""
    return f"shardwright-{name.replace(' ', '-')}"


class TableWatch(Generic[State]):
    """A thread that hands on what a table holds: at once where it is notified, and every few seconds in any case.

    It listens on a connection of its own, which it opens again, after longer and longer pauses, where it is lost. What
    is handed on is always all of it, so nothing is missed for good.
    """

    def __init__(
        self,
        engine: Engine,
        name: str,
        channel: str,
        read: Callable[[Connection], State],
        follow: Callable[[State], None],
        poll_s: float = 3.0,
    ) -> None:
        """Prepares a watch; entering it starts it.

        Args:
            engine: says which database; its pool is not used.
            name: of what is watched, for logs, the thread, and ``pg_stat_activity``: see ``application_name``.
            channel: where changes are notified of.
            read: what the table holds, over a given connection.
            follow: told that, from the thread; must be quick where nothing changed.
            poll_s: seconds after which it is told again without having been notified.
        """
        self._engine = build_unpooled_engine(
            engine.url,
            application_name=application_name(name),
            statement_timeout_ms=_STATEMENT_TIMEOUT_MS,
            lock_timeout_ms=_STATEMENT_TIMEOUT_MS,
        )
        # The end waits for the thread; notifications may be waited for as long as ever.
        limit_waits(self._engine, ANSWER_TIMEOUT_S)
        self._name = name
        self._channel = channel
        self._read = read
        self._follow = follow
        self._poll_s = poll_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Self:
        """Starts the thread."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends the thread."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        pause_s = _ENDS_WITHIN_S
        while not self._over.is_set():
            try:
                with self._listening() as connection:
                    while not self._over.is_set():
                        self._follow(self._read(connection))
                        pause_s = _ENDS_WITHIN_S
                        self._wait(connection)
            except (StorageUnavailable, exc.SQLAlchemyError, psycopg.Error) as error:
                fields = {"cause": str(error).partition("\n")[0], "again_after_s": pause_s}
                _log.warning("%s are not followed for now", self._name, extra={"fields": fields})
            except Exception:
                _log.exception("%s are not followed for now", self._name)
            self._over.wait(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    @contextmanager
    def _listening(self) -> Iterator[Connection]:
        with (
            storage_errors(),
            self._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection,
        ):
            connection.execute(text(f"LISTEN {self._channel}"))
            yield connection

    def _wait(self, connection: Connection) -> None:
        """Until a notification, the next poll or the end."""
        driver = cast("psycopg.Connection[object]", connection.connection.driver_connection)
        for _ in range(max(1, round(self._poll_s / _ENDS_WITHIN_S))):
            if self._over.is_set() or list(driver.notifies(timeout=_ENDS_WITHIN_S, stop_after=1)):
                return
