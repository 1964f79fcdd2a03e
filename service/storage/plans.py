"""The plan repository."""

from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, Connection, Engine, Select, false, func, or_, select, true, tuple_, union, update
from sqlalchemy.dialects.postgresql import Insert, insert
from sqlalchemy.orm import InstrumentedAttribute, Session

from service.domain.access import Action, AdminCall
from service.domain.callers import Caller
from service.domain.errors import PlanNotFound
from service.domain.ports import ListedPlan, PlanPlace, StoredPlan
from service.storage.audit import AuditTrail
from service.storage.engine import storage_errors
from service.storage.plan_owners import give, hold, owned_by, take, there_for
from service.storage.rows import GivenAnswerRow, PlanRow

_GRAIN = timedelta(hours=1)


class PlanRepository:
    """Keeps plans in Postgres; the ``PlanStore`` of the domain."""

    def __init__(self, engine: Engine, trail: AuditTrail | None = None) -> None:
        """Uses the engine's pool; opens no connection yet.

        Args:
            engine: on the database.
            trail: puts deletions by admins on record.
        """
        self._engine = engine
        self._trail = trail or AuditTrail(engine)

    def get(self, plan_id: str, caller: Caller) -> StoredPlan | None:
        """The plan with this id, or None where there is none for this caller; it counts as used.

        Raises:
            StorageUnavailable: the database cannot be reached.
        """
        with storage_errors(), Session(self._engine) as session, session.begin():
            row, _ = used_plan(session, plan_id, there_for(caller))
            return _stored(row) if row else None

    def ask(self, plan_id: str, caller: Caller) -> StoredPlan | None:
        """The plan with this id, or None; it counts as used, and is the caller's own from now on.

        Its id is the hash of the whole question, so who knows it from asking may have the answer.

        Raises:
            StorageUnavailable: the database cannot be reached.
        """
        with storage_errors(), Session(self._engine) as session, session.begin():
            row, owned = used_plan(session, plan_id, true(), owned_by(caller))
            if row and not owned:
                if not hold(session, plan_id):
                    return None
                give(session, plan_id, caller)
            return _stored(row) if row else None

    def put(self, plan: StoredPlan, caller: Caller) -> StoredPlan:
        """Stores a plan of a caller durably and returns the one stored under its id, which is the caller's own too.

        That is the first that was put there; but one whose answer's ``status`` is ``cut_short`` gives way to one that
        is ``complete`` or costs less.

        Raises:
            StorageUnavailable: the database cannot be reached.
        """
        with storage_errors(), Session(self._engine) as session, session.begin():
            # Where its owner deleted the plan that it moved from meanwhile, nothing is to be kept of that.
            previous = plan.request.get("previous_plan_id")
            session.execute(_put(plan, previous if previous and hold(session, previous) else None))
            give(session, plan.plan_id, caller)
            row = session.scalars(select(PlanRow).where(PlanRow.plan_id == plan.plan_id)).one()
            return _stored(row)

    def delete(self, plan_id: str, caller: Caller) -> None:
        """Takes a plan from a caller, or from everyone where the caller sees all, which is put on record.

        Raises:
            PlanNotFound: there is none under this id for this caller.
            StorageUnavailable: the database cannot be reached; nothing changed.
        """
        if caller.sees_all:
            with self._trail.recorded(AdminCall(str(caller), Action.DELETE_PLAN, plan_id)) as change:
                _take(change.connection, plan_id, caller)
            return
        with storage_errors(), self._engine.begin() as connection:
            _take(connection, plan_id, caller)

    def listed(self, caller: Caller, after: PlanPlace | None, most: int) -> list[ListedPlan]:
        """The ``PlanIndex`` of the domain.

        Raises:
            StorageUnavailable: the database cannot be reached.
        """
        status = PlanRow.answer["status"].astext
        columns = PlanRow.created_at, PlanRow.plan_id, PlanRow.hardware, PlanRow.algorithm, status, PlanRow.max_cost_ms
        place = tuple_(PlanRow.created_at, PlanRow.plan_id)
        found = select(*columns).where(there_for(caller)).order_by(PlanRow.created_at.desc(), PlanRow.plan_id.desc())
        if after is not None:
            found = found.where(place < (after.created_at, after.plan_id))
        with storage_errors(), Session(self._engine) as session:
            return [
                ListedPlan(PlanPlace(at, plan_id), *rest) for at, plan_id, *rest in session.execute(found.limit(most))
            ]

    def models_named(self, days: float) -> set[str]:
        """Names of the versions of plans asked for in the last days, and of all answers kept for launches and observed.

        Raises:
            StorageUnavailable: the database cannot be reached.
        """
        used = _models_of(PlanRow).where(PlanRow.last_used_at > func.now() - timedelta(days=days))
        with storage_errors(), Session(self._engine) as session:
            return set(session.scalars(union(used, _models_of(GivenAnswerRow))))


def used_plan(
    session: Session, plan_id: str, condition: ColumnElement[bool], told: ColumnElement[bool] | None = None
) -> tuple[PlanRow | None, bool]:
    """The plan with this id that meets a condition, or None, and what else is told of it (no, where nothing is).

    What is returned is not pruned for as long as plans are kept. Whoever prunes it at this moment has it first: a use
    that could not be noted finds no plan.
    """
    more = false() if told is None else told
    row, stale, known = session.execute(
        select(PlanRow, not_noted(PlanRow.last_used_at), more).where(PlanRow.plan_id == plan_id, condition)
    ).one_or_none() or (None, False, False)
    if stale:
        noted = update(PlanRow).where(PlanRow.plan_id == plan_id).values(last_used_at=func.now())
        if session.scalar(noted.returning(PlanRow.plan_id)) is None:
            return None, False
    return row, known


def _take(connection: Connection, plan_id: str, caller: Caller) -> None:
    if not take(connection, plan_id, caller):
        raise PlanNotFound.under(plan_id)


def _models_of(row: type[PlanRow] | type[GivenAnswerRow]) -> Select[str]:
    """Names of the versions that answers were made with."""
    named = func.json_each_text(row.answer["models"]).table_valued("key", "value")
    return select(named.c.value).select_from(row).join(named, true())


def not_noted(last_used_at: InstrumentedAttribute[datetime]) -> ColumnElement[bool]:
    """Whether a use is to be noted: once an hour, so that reading seldom writes."""
    return last_used_at < func.now() - _GRAIN


def _put(plan: StoredPlan, previous_plan_id: str | None) -> Insert:
    values = _values(plan) | {"previous_plan_id": previous_plan_id}
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
    }


def _stored(row: PlanRow) -> StoredPlan:
    return StoredPlan(row.plan_id, row.hardware, row.algorithm, row.max_cost_ms, row.request, row.answer)
