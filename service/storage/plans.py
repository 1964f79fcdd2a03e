"""The plan repository."""

from datetime import timedelta

from sqlalchemy import Engine, func, or_, select, true
from sqlalchemy.dialects.postgresql import Insert, insert
from sqlalchemy.orm import Session

from service.domain.ports import StoredPlan
from service.storage.engine import storage_errors
from service.storage.rows import PlanRow


class PlanRepository:
    """Keeps plans in Postgres; the ``PlanStore`` of the domain."""

    def __init__(self, engine: Engine) -> None:
        """Uses the engine's pool; opens no connection yet."""
        self._engine = engine

    def get(self, plan_id: str) -> StoredPlan | None:
        """The plan with this id, or None.

        Raises:
            StorageUnavailable: the database cannot be reached.
        """
        with storage_errors(), Session(self._engine) as session:
            row = session.get(PlanRow, plan_id)
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
        """Names of the versions that plans of the last days were made with.

        Raises:
            StorageUnavailable: the database cannot be reached.
        """
        named = func.json_each_text(PlanRow.answer["models"]).table_valued("key", "value")
        recent = PlanRow.created_at > func.now() - timedelta(days=days)
        query = select(named.c.value).select_from(PlanRow).join(named, true()).where(recent).distinct()
        with storage_errors(), Session(self._engine) as session:
            return set(session.scalars(query))


def _put(plan: StoredPlan) -> Insert:
    values = _values(plan)
    fresh = insert(PlanRow).values(values)
    better = or_(fresh.excluded.answer["status"].astext == "complete", fresh.excluded.max_cost_ms < PlanRow.max_cost_ms)
    return fresh.on_conflict_do_update(
        index_elements=[PlanRow.plan_id],
        set_={name: fresh.excluded[name] for name in values} | {"created_at": func.now()},
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
