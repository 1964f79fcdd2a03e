"""The repository of calls that callers named by a key."""

from contextvars import ContextVar
from datetime import timedelta

from sqlalchemy import ColumnElement, Connection, Engine, and_, delete, false, func, null, or_, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.sql.dml import ReturningInsert

from service.domain.idempotency import (
    KEPT_FOR,
    IdempotencyKeyReused,
    IdempotentAnswerLost,
    IdempotentCallRunning,
    KeptAnswer,
    KeyedCall,
)
from service.storage.engine import storage_errors
from service.storage.idempotency_rows import IdempotencyRow

_current: ContextVar[KeyedCall | None] = ContextVar("keyed_call", default=None)

_RETRY_AFTER_S = 1


class IdempotencyRepository:
    """Keeps calls in Postgres; the ``IdempotencyStore`` of the domain.

    A try claims its key for longer than any call takes. Where its process dies another may follow it then, unless the
    call had taken effect: that is noted in the transaction of the effect itself, see ``note_effect``.
    """

    def __init__(self, engine: Engine, lease_s: float) -> None:
        """Uses the engine's pool; opens no connection yet.

        Args:
            engine: on the database.
            lease_s: seconds after which a try that is not answered is taken for dead.
        """
        self._engine = engine
        self._lease = timedelta(seconds=lease_s)

    def begin(self, call: KeyedCall) -> KeptAnswer | None:
        """See ``IdempotencyStore``; what the calling thread does until the call is kept or released belongs to it."""
        with storage_errors(), self._engine.begin() as connection:
            if connection.scalar(self._claimed(call)) == call.claim:
                _current.set(call)
                return None
            row = IdempotencyRow
            lapsed = row.claimed_until < func.now()
            columns = row.request_hash, row.status, row.location, row.body, row.took_effect, lapsed
            found = connection.execute(select(*columns).where(_is(call))).one_or_none()
        if found is None:
            raise _running()
        request_hash, status, location, body, took_effect, is_dead = found
        if request_hash != call.request_hash:
            raise IdempotencyKeyReused(
                "this Idempotency-Key was sent with another request: a new request needs a new key"
            )
        if status is not None and body is not None:
            return KeptAnswer(status, location, body)
        if took_effect and is_dead:
            raise IdempotentAnswerLost(
                "the call took effect, but its answer was lost with the process that made it: look at the resource"
            )
        raise _running()

    def keep(self, call: KeyedCall, answer: KeptAnswer) -> None:
        """See ``IdempotencyStore``."""
        _current.set(None)
        kept = {"status": answer.status, "location": answer.location, "body": answer.body}
        with storage_errors(), self._engine.begin() as connection:
            connection.execute(update(IdempotencyRow).where(_is(call), IdempotencyRow.claim == call.claim).values(kept))

    def release(self, call: KeyedCall) -> None:
        """See ``IdempotencyStore``; what took effect stays claimed."""
        _current.set(None)
        row = IdempotencyRow
        with storage_errors(), self._engine.begin() as connection:
            connection.execute(delete(row).where(_is(call), row.claim == call.claim, ~row.took_effect))

    def _claimed(self, call: KeyedCall) -> ReturningInsert[str]:
        row = IdempotencyRow
        fresh = {
            "request_hash": call.request_hash,
            "claim": call.claim,
            "claimed_until": func.now() + self._lease,
            "took_effect": false(),
            "created_at": func.now(),
            **dict.fromkeys(("status", "location", "body"), null()),
        }
        dead = and_(row.status.is_(None), ~row.took_effect, row.claimed_until < func.now())
        free = or_(is_over(), dead & (row.request_hash == call.request_hash))
        made = insert(row).values({"caller": call.caller, "key": call.key, **fresh})
        return made.on_conflict_do_update(index_elements=("caller", "key"), set_=fresh, where=free).returning(row.claim)


def note_effect(connection: Connection) -> None:
    """Notes, in the transaction of an effect, that the call under a key which this thread makes has taken effect."""
    call = _current.get()
    if call is not None:
        mine = _is(call), IdempotencyRow.claim == call.claim
        connection.execute(update(IdempotencyRow).where(*mine).values(took_effect=True))


def is_over() -> ColumnElement[bool]:
    """Whether a key is good no longer."""
    return IdempotencyRow.created_at < func.now() - KEPT_FOR


def _is(call: KeyedCall) -> ColumnElement[bool]:
    return and_(IdempotencyRow.caller == call.caller, IdempotencyRow.key == call.key)


def _running() -> IdempotentCallRunning:
    return IdempotentCallRunning("the first call under this Idempotency-Key runs still", retry_after_s=_RETRY_AFTER_S)
