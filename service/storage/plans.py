"""The plan repository."""

from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, Engine, Select, func, or_, select, true, union, update
from sqlalchemy.dialects.postgresql import Insert, insert
from sqlalchemy.orm import InstrumentedAttribute, Session

from service.domain.ports import StoredPlan
from service.storage.engine import storage_errors
from service.storage.rows import GivenAnswerRow, PlanRow

_GRAIN = timedelta(hours=1)


class PlanRepository:
    """Keeps plans in Postgres; the ``PlanStore`` of the domain."""

    def __init__(self, engine: Engine) -> None:
        """Uses the engine's pool; opens no connection yet."""
        self._engine = engine

    def get(self, plan_id: str) -> StoredPlan | None:
        """The plan with this id, or None; it counts as used.

        Raises:
            StorageUnavailable: the database cannot be reached.
        """
        with storage_errors(), Session(self._engine) as session, session.begin():
            row = used_plan(session, plan_id)
            return _stored(row) if row else None

    def put(self, plan: StoredPlan) -> StoredPlan:
        """Stores a plan durably and returns the one stored under its id.

        That is the first that was put there; but one whose answer's ``status`` is ``cut_short`` gives way to one that
        is ``complete`` or costs less.

        Raises:
            StorageUnavailable: the database cannot be reached.
        """
        with storage_errors(), Session(self._engine) as session, session.begin():
            session.execute(_put(plan))
            row = session.scalars(select(PlanRow).where(PlanRow.plan_id == plan.plan_id)).one()
            return _stored(row)

    def models_named(self, days: float) -> set[str]:
        """Names of the versions of plans asked for in the last days, and of all answers kept for launches and observed.

        Raises:
            StorageUnavailable: the database cannot be reached.
        """
        used = _models_of(PlanRow).where(PlanRow.last_used_at > func.now() - timedelta(days=days))
        with storage_errors(), Session(self._engine) as session:
            return set(session.scalars(union(used, _models_of(GivenAnswerRow))))


def used_plan(session: Session, plan_id: str) -> PlanRow | None:
    """The plan with this id, or None. What is returned is not pruned for as long as plans are kept.

    Whoever prunes it at this moment has it first: a use that could not be noted finds no plan.
    """
    row, stale = session.execute(
        select(PlanRow, not_noted(PlanRow.last_used_at)).where(PlanRow.plan_id == plan_id)
    ).one_or_none() or (None, False)
    if stale:
        noted = update(PlanRow).where(PlanRow.plan_id == plan_id).values(last_used_at=func.now())
        if session.scalar(noted.returning(PlanRow.plan_id)) is None:
            return None
    return row


def _models_of(row: type[PlanRow] | type[GivenAnswerRow]) -> Select[str]:
    """Names of the versions that answers were made with."""
    named = func.json_each_text(row.answer["models"]).table_valued("key", "value")
    return select(named.c.value).select_from(row).join(named, true())


def not_noted(last_used_at: InstrumentedAttribute[datetime]) -> ColumnElement[bool]:
    """Whether a use is to be noted: once an hour, so that reading seldom writes."""
    return last_used_at < func.now() - _GRAIN


def _put(plan: StoredPlan) -> Insert:
    values = _values(plan)
    fresh = insert(PlanRow).values(values)
    better = or_(fresh.excluded.answer["status"].astext == "complete", fresh.excluded.max_cost_ms < PlanRow.max_cost_ms)
    return fresh.on_conflict_do_update(
        index_elements=[PlanRow.plan_id],
        set_={name: fresh.excluded[name] for name in values} | {"created_at": func.now(), "last_used_at": func.now()},
        where=(PlanRow.answer["status"].astext == "cut_short") & better,
    )


def _values(plan: StoredPlan) -> dict[str, object]:
    return {
        "plan_id": plan.plan_id,
        "hardware": plan.hardware,
        "algorithm": plan.algorithm,
        "max_cost_ms": plan.max_cost_ms,
        "request": dict(plan.request),
        "answer": dict(plan.answer),
        "previous_plan_id": plan.request.get("previous_plan_id"),
    }


def _stored(row: PlanRow) -> StoredPlan:
    return StoredPlan(row.plan_id, row.hardware, row.algorithm, row.max_cost_ms, row.request, row.answer)
