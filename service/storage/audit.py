"""The record of calls that change the service."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from sqlalchemy import Connection, Engine, insert, select

from service.domain.access import Action, AdminCall, RecordedCall
from service.domain.errors import ShardwrightError, StorageUnavailable
from service.storage.access_rows import AuditRow
from service.storage.engine import short_transaction, storage_errors

DONE, UNCHANGED = "done", "unchanged"

_log = logging.getLogger(__name__)


class Change:
    """What a call on record does, in its transaction.

    Attributes:
        connection: of the transaction.
        subject: to what; may be told better once it is known.
        outcome: to be set where nothing was to be changed.
    """

    def __init__(self, connection: Connection, subject: str) -> None:
        """Nothing is done yet."""
        self.connection = connection
        self.subject = subject
        self.outcome = DONE


class AuditTrail:
    """Puts calls on record in Postgres."""

    def __init__(
        self, engine: Engine, request_id: Callable[[], str] = str, note: Callable[[Connection], None] = lambda _: None
    ) -> None:
        """Uses the engine's pool; opens no connection yet.

        Args:
            engine: on the database.
            request_id: tells the id of the HTTP request that is handled, or the empty string.
            note: notes beside, in the transaction of a call, that it took effect.
        """
        self._engine = engine
        self._request_id = request_id
        self._note = note

    @contextmanager
    def recorded(self, call: AdminCall, prepare: Callable[[], None] = lambda: None) -> Iterator[Change]:
        """A transaction with what a call does and its record: both are durable at its end, or neither is.

        Where an error ends it, the error's kind is put on record by itself.

        Args:
            call: what is done.
            prepare: what takes its time and may refuse, done before the transaction begins.

        Raises:
            StorageUnavailable: the database cannot be reached; then there is no record either, but for the log.
        """
        try:
            prepare()
            with short_transaction(self._engine) as connection:
                change = Change(connection, call.subject)
                yield change
                self._add(connection, AdminCall(call.actor, call.action, change.subject), change.outcome)
                self._note(connection)
        except ShardwrightError as error:
            self._failed(call, error)
            raise

    def newest(self, limit: int) -> list[RecordedCall]:
        """What was put on record, the last first.

        Raises:
            StorageUnavailable: the database cannot be reached.
        """
        query = select(*AuditRow.__table__.columns).order_by(AuditRow.id.desc()).limit(limit)
        with storage_errors(), self._engine.connect() as connection:
            return [
                RecordedCall(row.id, row.at, _call(row.actor, row.action, row.subject), row.outcome, row.request_id)
                for row in connection.execute(query)
            ]

    def _failed(self, call: AdminCall, error: ShardwrightError) -> None:
        fields = {"actor": call.actor, "action": call.action, "subject": call.subject, "kind": error.kind}
        _log.warning("an admin call failed", extra={"fields": fields})
        if not isinstance(error, StorageUnavailable):
            with suppress(StorageUnavailable), storage_errors(), self._engine.begin() as connection:
                self._add(connection, call, error.kind)

    def _add(self, connection: Connection, call: AdminCall, outcome: str) -> None:
        values = {"actor": call.actor, "action": call.action.value, "subject": call.subject}
        values |= {"outcome": outcome, "request_id": self._request_id()}
        connection.execute(insert(AuditRow).values(values))


def _call(actor: str, action: str, subject: str) -> AdminCall:
    return AdminCall(actor, Action(action), subject)
