"""Connections whose calls end though the server is frozen.

Of a server whose processes are stopped, or whose disk is, the kernel goes on acknowledging what it is sent, so neither
TCP's timeouts end a wait for it, nor those of statements, which it would have to look after itself.
"""

from functools import partial
from typing import Any, cast

import psycopg
from psycopg import errors
from psycopg.abc import RV, PQGen
from sqlalchemy import Engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection


class ImpatientConnection(psycopg.Connection[Any]):
    """A connection that closes itself where a statement, commit or rollback is not answered in time."""

    answer_timeout_s: float | None = None
    """Seconds; None for no limit."""

    def wait(self, gen: PQGen[RV], interval: float = 0.1, timeout: float | None = None) -> RV:
        """Waits as psycopg does, for a call that states no time of its own no longer than ``answer_timeout_s``.

        Raises:
            OperationalError: there was no answer; what was asked for may happen yet.
        """
        if timeout is not None:
            return super().wait(gen, interval, timeout)
        try:
            return super().wait(gen, interval, self.answer_timeout_s)
        except errors._WaitTimeout:
            self.close()
            raise errors.OperationalError(f"the server did not answer within {self.answer_timeout_s:g} s") from None


def limit_waits(engine: Engine, answer_timeout_s: float) -> None:
    """Makes all connections that an engine opens impatient ones."""
    event.listen(engine, "do_connect", partial(_connect, answer_timeout_s))


def _connect(
    answer_timeout_s: float, dialect: object, record: object, arguments: list[Any], named: dict[str, Any]
) -> DBAPIConnection:
    connection = ImpatientConnection.connect(*arguments, **named)
    connection.answer_timeout_s = answer_timeout_s
    return cast(DBAPIConnection, connection)
