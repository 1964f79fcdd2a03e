"""Tells of promotions as they are made, on every machine."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self, cast

import psycopg
from sqlalchemy import Connection, Engine, exc, text

from service.domain.errors import StorageUnavailable
from service.domain.versions import Standing
from service.storage.engine import build_unpooled_engine, storage_errors
from service.storage.promotions import CHANNEL, standing_promotions

APPLICATION_NAME = "shardwright-promotions"
"""What ``pg_stat_activity`` shows of the connection that listens."""

_STATEMENT_TIMEOUT_MS = 5_000
_LONGEST_PAUSE_S = 5.0
_ENDS_WITHIN_S = 0.25

_log = logging.getLogger(__name__)


class PromotionWatch:
    """A thread that hands on what stands: at once where it is notified, and every few seconds whether it is or not.

    It listens on a connection of its own, which it opens again, after longer and longer pauses, where it is lost. What
    is handed on is always all that stands, so nothing is missed for good.
    """

    def __init__(self, engine: Engine, follow: Callable[[Standing], None], poll_s: float = 3.0) -> None:
        """Prepares a watch; entering it starts it.

        Args:
            engine: says which database; its pool is not used.
            follow: told what stands, from the thread; must be quick where nothing changed.
            poll_s: seconds after which it is told again without having been notified.
        """
        self._engine = build_unpooled_engine(
            engine.url,
            application_name=APPLICATION_NAME,
            statement_timeout_ms=_STATEMENT_TIMEOUT_MS,
            lock_timeout_ms=_STATEMENT_TIMEOUT_MS,
        )
        self._follow = follow
        self._poll_s = poll_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="promotions", daemon=True)

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
                        self._follow(standing_promotions(connection))
                        pause_s = _ENDS_WITHIN_S
                        self._wait(connection)
            except (StorageUnavailable, exc.SQLAlchemyError, psycopg.Error) as error:
                fields = {"cause": str(error).partition("\n")[0], "again_after_s": pause_s}
                _log.warning("promotions are not followed for now", extra={"fields": fields})
            except Exception:
                _log.exception("promotions are not followed for now")
            self._over.wait(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    @contextmanager
    def _listening(self) -> Iterator[Connection]:
        with (
            storage_errors(),
            self._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection,
        ):
            connection.execute(text(f"LISTEN {CHANNEL}"))
            yield connection

    def _wait(self, connection: Connection) -> None:
        """Until a notification, the next poll or the end."""
        driver = cast("psycopg.Connection[object]", connection.connection.driver_connection)
        for _ in range(max(1, round(self._poll_s / _ENDS_WITHIN_S))):
            if self._over.is_set() or list(driver.notifies(timeout=_ENDS_WITHIN_S, stop_after=1)):
                return
