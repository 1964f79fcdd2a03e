"""The repository of trainings: what they came to, and that there is one at a time."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from sqlalchemy import Engine, Row, Select, func, insert, select, text
from sqlalchemy.dialects.postgresql import distinct_on

from service.domain.errors import RetrainingUnderWay
from service.domain.trainings import Ended, Outcome
from service.storage.engine import build_unpooled_engine, storage_errors
from service.storage.rows import TrainingRow

_LOCK = "shardwright retraining of {}"
"""What the key of a hardware's advisory lock is the hash of."""

_TIMEOUT_MS = 10_000


class TrainingRepository:
    """Keeps outcomes of trainings in Postgres; the ``TrainingStore`` of the domain."""

    def __init__(self, engine: Engine) -> None:
        """Uses the engine's pool, and for ``alone`` a connection of its own; opens none yet."""
        self._engine = engine

    @contextmanager
    def alone(self, hardware: str) -> Iterator[Callable[[], None]]:
        """Keeps all others from retraining models of a hardware until its end, or that of the process.

        An advisory lock of a connection of its own, which the server frees when that ends. What it gives is called to
        make sure that the connection is still there.

        Raises:
            RetrainingUnderWay: another process does.
            StorageUnavailable: the database cannot be reached.
        """
        own = build_unpooled_engine(
            self._engine.url,
            application_name="shardwright retraining",
            statement_timeout_ms=_TIMEOUT_MS,
            lock_timeout_ms=_TIMEOUT_MS,
        )
        with storage_errors():
            connection = own.connect().execution_options(isolation_level="AUTOCOMMIT")
        with connection:
            key = func.hashtextextended(_LOCK.format(hardware), 0)
            with storage_errors():
                # It idles while models are trained, which must not cost it the lock; a machine that is gone must.
                connection.execute(text("SET idle_session_timeout = 0"))
                connection.execute(text("SET tcp_keepalives_idle = 30"))
                locked = connection.scalar(select(func.pg_try_advisory_lock(key)))
            if not locked:
                raise RetrainingUnderWay(
                    f"another process retrains models of {hardware} on this database: wait until it is through"
                )

            def make_sure() -> None:
                with storage_errors():
                    connection.execute(text("SELECT 1"))

            yield make_sure

    def now(self) -> datetime:
        """The time, by the database's clock.

        Raises:
            StorageUnavailable: the database cannot be reached.
        """
        with storage_errors(), self._engine.connect() as connection:
            found: datetime = connection.execute(select(func.clock_timestamp())).scalar_one()
            return found

    def add(self, outcome: Outcome) -> None:
        """Stores an outcome durably.

        Raises:
            StorageUnavailable: the database cannot be reached.
        """
        values = {
            "hardware": outcome.hardware,
            "model": outcome.model,
            "outcome": outcome.ended.value,
            "reason": outcome.reason,
            "started_at": outcome.started_at,
            "finished_at": outcome.finished_at,
            "trained": outcome.trained,
            "serving": outcome.serving,
            "basis": outcome.basis,
            **({} if outcome.comparison is None else {"comparison": dict(outcome.comparison)}),
        }
        with storage_errors(), self._engine.begin() as connection:
            connection.execute(insert(TrainingRow).values(values))

    def of_model(self, hardware: str, model: str, limit: int) -> list[Outcome]:
        """Outcomes of a model, the last first.

        Raises:
            StorageUnavailable: the database cannot be reached.
        """
        of = TrainingRow.hardware == hardware, TrainingRow.model == model
        return self._found(_outcomes().where(*of).limit(limit))

    def all(self, hardware: str | None, limit: int) -> list[Outcome]:
        """Outcomes of all models, or of those of a hardware, the last first.

        Raises:
            StorageUnavailable: the database cannot be reached.
        """
        found = _outcomes() if hardware is None else _outcomes().where(TrainingRow.hardware == hardware)
        return self._found(found.limit(limit))

    def last_of_each(self) -> list[tuple[Outcome, float]]:
        """The last outcome of each model, and how many seconds ago that was by the database's clock.

        Raises:
            StorageUnavailable: the database cannot be reached.
        """
        age = func.extract("epoch", func.clock_timestamp() - TrainingRow.finished_at).label("age")
        each = TrainingRow.hardware, TrainingRow.model
        query: Select[Any] = select(*TrainingRow.__table__.columns, age).ext(distinct_on(*each))
        query = query.order_by(*each, TrainingRow.id.desc())
        with storage_errors(), self._engine.connect() as connection:
            return [(_outcome(row), float(row.age)) for row in connection.execute(query)]

    def _found(self, query: Select[Any]) -> list[Outcome]:
        with storage_errors(), self._engine.connect() as connection:
            return [_outcome(row) for row in connection.execute(query)]


def _outcomes() -> Select[Any]:
    return select(*TrainingRow.__table__.columns).order_by(TrainingRow.id.desc())


def _outcome(row: Row[Any]) -> Outcome:
    return Outcome(
        hardware=row.hardware,
        model=row.model,
        ended=Ended(row.outcome),
        reason=row.reason,
        started_at=row.started_at,
        finished_at=row.finished_at,
        trained=row.trained,
        serving=row.serving,
        comparison=row.comparison,
        basis=row.basis,
    )
