"""The repository of promotions: which version of a model serves."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, Row, Select, func, insert, select, text

from service.domain.access import AdminCall
from service.domain.versions import ModelName, Promotion, Standing, Version
from service.storage.audit import DONE, UNCHANGED, AuditTrail
from service.storage.engine import short_transaction, storage_errors
from service.storage.rows import PromotionRow

CHANNEL = "shardwright_promotions"
"""Where every change is notified of, without a payload: whoever listens reads what stands."""

_DEPTH = 8
"""Promotions of a model that are read: those that serve, one for the other, where versions cannot be loaded."""


class PromotionRepository:
    """Keeps promotions in Postgres; the ``PromotionStore`` of the domain."""

    def __init__(self, engine: Engine, trail: AuditTrail | None = None) -> None:
        """Uses the engine's pool; opens no connection yet.

        Args:
            engine: on the database.
            trail: puts calls on record.
        """
        self._engine = engine
        self._trail = trail or AuditTrail(engine)

    def standing(self) -> Standing:
        """The promotions that stand.

        Raises:
            StorageUnavailable: the database cannot be reached.
        """
        with storage_errors(), self._engine.connect() as connection:
            return standing_promotions(connection)

    def history(self, hardware: str, model: str, limit: int) -> list[Promotion]:
        """Promotions of a model, rollbacks among them, the last first.

        Raises:
            StorageUnavailable: the database cannot be reached.
        """
        query = (
            select(*PromotionRow.__table__.columns)
            .where(PromotionRow.hardware == hardware, PromotionRow.model == model)
            .order_by(PromotionRow.id.desc())
            .limit(limit)
        )
        with storage_errors(), self._engine.connect() as connection:
            return [_promotion(row) for row in connection.execute(query)]

    @contextmanager
    def changing(
        self, call: AdminCall | None = None, prepare: Callable[[], None] = lambda: None
    ) -> Iterator["PromotionTransaction"]:
        """One change at a time, durable at its end or, where an error ends it, not made at all.

        The server ends it where nothing is asked of it for ten seconds: a frozen process must not keep others out.

        Args:
            call: that makes the change, to be put on record with it.
            prepare: what takes its time and may refuse, done before others are kept out; on record where it fails.

        Raises:
            StorageUnavailable: the database cannot be reached, another change takes too long, or this one did.
        """
        if call is None:
            prepare()
            with short_transaction(self._engine) as connection:
                yield _alone(connection)
            return
        with self._trail.recorded(call, prepare) as change:
            changes = _alone(change.connection)
            yield changes
            change.outcome = DONE if changes.made else UNCHANGED


class PromotionTransaction:
    """Promotions while nobody else changes them; the ``PromotionChange`` of the domain.

    Attributes:
        made: whether anything was changed.
    """

    def __init__(self, connection: Connection) -> None:
        """Works on a connection that has the lock, in its transaction."""
        self._connection = connection
        self.made = False

    def standing(self) -> Standing:
        """The promotions that stand."""
        return standing_promotions(self._connection)

    def add(
        self,
        version: Version,
        by: str,
        reason: str,
        comparison: Mapping[str, Any] | None = None,
        undoes: int | None = None,
    ) -> Promotion:
        """Writes down that a version serves; who listens is notified when the transaction is committed."""
        values = {
            "hardware": version.hardware,
            "model": version.model,
            "version_number": version.promoted_as,
            "promoted_by": by,
            "reason": reason,
            "undoes": undoes,
            **({} if comparison is None else {"comparison": dict(comparison)}),
        }
        made = insert(PromotionRow).values(values).returning(*PromotionRow.__table__.columns)
        row = self._connection.execute(made).one()
        self._connection.execute(select(func.pg_notify(CHANNEL, "")))
        self.made = True
        return _promotion(row)


def _alone(connection: Connection) -> PromotionTransaction:
    """Keeps out others that change, and nobody who reads."""
    connection.execute(text(f"LOCK TABLE {PromotionRow.__tablename__} IN SHARE ROW EXCLUSIVE MODE"))
    return PromotionTransaction(connection)


def standing_promotions(connection: Connection) -> Standing:
    """The promotions that stand, over a given connection."""
    found: dict[ModelName, list[Promotion]] = {}
    for row in connection.execute(_standing()):
        promotion = _promotion(row)
        found.setdefault((promotion.hardware, promotion.model), []).append(promotion)
    return found


def _standing() -> Select[Any]:
    columns, undoing = PromotionRow.__table__.columns, PromotionRow.__table__.alias()
    depth = func.row_number().over(partition_by=[columns.hardware, columns.model], order_by=columns.id.desc())
    undone = select(undoing.c.undoes).where(undoing.c.undoes == columns.id).exists()
    ranked = select(*columns, depth.label("depth")).where(columns.undoes.is_(None), ~undone).subquery()
    kept = [ranked.c[column.name] for column in columns]
    return select(*kept).where(ranked.c.depth <= _DEPTH).order_by(ranked.c.id.desc())


def _promotion(row: Row[Any]) -> Promotion:
    return Promotion(
        id=row.id,
        hardware=row.hardware,
        model=row.model,
        number=row.version_number,
        promoted_at=row.promoted_at,
        promoted_by=row.promoted_by,
        reason=row.reason,
        comparison=row.comparison,
        undoes=row.undoes,
    )
