"""Deletes what is kept no longer.

What refers to something and what it refers to never lose each other: rows are locked before it is looked whether
anything needs them, and whoever starts to need one locks it too (foreign keys do; see ``used_plan`` and
``keep_given``). Rows that somebody else has locked are passed over.
"""

from collections.abc import Collection, Iterator
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, Engine, Select, and_, delete, exists, func, inspect, or_, select, tuple_
from sqlalchemy.orm import InstrumentedAttribute, Session, aliased

from service.domain.retention import Kept, Retention, TrainedBench
from service.storage.engine import storage_errors
from service.storage.plan_owners import has_owner
from service.storage.rows import (
    CommunicationMeasurementRow,
    ComputeMeasurementRow,
    GivenAnswerRow,
    LaunchRow,
    ObservationRow,
    PlanRow,
    Row,
)

_MeasurementRow = type[ComputeMeasurementRow] | type[CommunicationMeasurementRow]

_MEASURED: dict[str, _MeasurementRow] = {
    "compute": ComputeMeasurementRow,
    "communication": CommunicationMeasurementRow,
}


class RetentionRepository:
    """Prunes Postgres; the ``RetentionStore`` of the domain."""

    def __init__(self, engine: Engine) -> None:
        """Uses the engine's pool; opens no connection yet."""
        self._engine = engine

    def prune(self, kind: Kept, keep: Retention, trained: Collection[TrainedBench], limit: int) -> int:
        """Deletes so many rows at most, in a short transaction; says how many. 0 where nothing is left to delete.

        Raises:
            StorageUnavailable: the database cannot be reached.
        """
        with storage_errors(), Session(self._engine) as session, session.begin():
            if kind is not Kept.MEASUREMENTS:
                return _deleted(session, *_prunable(kind, keep), limit)
            for row, old in _superseded(session, keep, trained):
                count = _deleted(session, row, old, limit)
                if count:
                    return count
            return 0

    def prunable(self, keep: Retention, trained: Collection[TrainedBench]) -> dict[Kept, int]:
        """How many rows of each kind would be deleted; locks nothing.

        Raises:
            StorageUnavailable: the database cannot be reached.
        """
        with storage_errors(), Session(self._engine) as session:
            measured = [_count(session, row, old) for row, old in _superseded(session, keep, trained)]
            return {
                Kept.OBSERVATIONS: _count(session, *_prunable(Kept.OBSERVATIONS, keep)),
                Kept.LAUNCHES: _count(session, *_prunable(Kept.LAUNCHES, keep)),
                Kept.ANSWERS: _count(session, GivenAnswerRow, _not_needed_by_kept(keep)),
                Kept.PLANS: _count(session, PlanRow, PlanRow.plan_id.not_in(_plans_that_stay(keep))),
                Kept.MEASUREMENTS: sum(measured),
            }


def _deleted(session: Session, row: type[Row], condition: ColumnElement[bool], limit: int) -> int:
    """Deletes rows that meet a condition, which is looked at again once they are locked."""
    key = inspect(row).primary_key
    locked = select(*key).where(condition).limit(limit).with_for_update(of=row, skip_locked=True)
    found = [tuple(each) for each in session.execute(locked)]
    return len(session.execute(delete(row).where(tuple_(*key).in_(found), condition).returning(*key)).all())


def _count(session: Session, row: type[Row], condition: ColumnElement[bool]) -> int:
    return session.scalars(select(func.count()).select_from(row).where(condition)).one()


def _prunable(kind: Kept, keep: Retention) -> tuple[type[Row], ColumnElement[bool]]:
    """Which rows of which table may go now; plans from the last one that moved from another backwards."""
    next_plan = aliased(PlanRow)
    conditions: dict[Kept, tuple[type[Row], ColumnElement[bool]]] = {
        Kept.OBSERVATIONS: (ObservationRow, _older(ObservationRow.observed_at, keep.observations)),
        Kept.LAUNCHES: (LaunchRow, _older(LaunchRow.last_used_at, keep.plans)),
        Kept.ANSWERS: (GivenAnswerRow, ~exists().where(_gave(LaunchRow)) & ~exists().where(_gave(ObservationRow))),
        Kept.PLANS: (
            PlanRow,
            (_older(PlanRow.last_used_at, keep.plans) | ~has_owner())
            & ~exists().where(GivenAnswerRow.plan_id == PlanRow.plan_id)
            & ~exists().where(next_plan.previous_plan_id == PlanRow.plan_id),
        ),
    }
    return conditions[kind]


def _gave(row: type[LaunchRow] | type[ObservationRow]) -> ColumnElement[bool]:
    return and_(row.plan_id == GivenAnswerRow.plan_id, row.digest == GivenAnswerRow.digest)


def _not_needed_by_kept(keep: Retention) -> ColumnElement[bool]:
    """Of an answer: no launch and no observation that stays needs it."""
    return ~exists().where(_gave(LaunchRow), ~_older(LaunchRow.last_used_at, keep.plans)) & ~exists().where(
        _gave(ObservationRow), ~_older(ObservationRow.observed_at, keep.observations)
    )


def _plans_that_stay(keep: Retention) -> Select[str]:
    """Ids of plans that somebody has and asks for or that something that stays needs, and of all those before."""
    launch = exists().where(LaunchRow.plan_id == PlanRow.plan_id, ~_older(LaunchRow.last_used_at, keep.plans))
    observed = exists().where(
        ObservationRow.plan_id == PlanRow.plan_id, ~_older(ObservationRow.observed_at, keep.observations)
    )
    used = ~_older(PlanRow.last_used_at, keep.plans) & has_owner()
    stays = select(PlanRow.plan_id, PlanRow.previous_plan_id).where(or_(used, launch, observed)).cte(recursive=True)
    before = aliased(PlanRow)
    earlier = select(before.plan_id, before.previous_plan_id).join(stays, before.plan_id == stays.c.previous_plan_id)
    return select(stays.union(earlier).c.plan_id)


def _superseded(
    session: Session, keep: Retention, trained: Collection[TrainedBench]
) -> Iterator[tuple[type[Row], ColumnElement[bool]]]:
    """Old measurements of each bench that has a newer one on its hardware, and that no version was trained on."""
    for model, row in _MEASURED.items():
        # The first measurements were stored without their bench.
        said = func.coalesce(row.environment["bench"].astext, "1")
        found = session.execute(select(row.hardware, said).distinct()).all()
        newest: dict[str, int] = {}
        for hardware, bench in found:
            newest[hardware] = max(int(bench), newest.get(hardware, 0))
        for hardware, bench in found:
            if int(bench) < newest[hardware] and TrainedBench(hardware, model, int(bench)) not in trained:
                yield row, and_(row.hardware == hardware, said == bench, _older(row.measured_at, keep.measurements))


def _older(column: InstrumentedAttribute[datetime], age: timedelta) -> ColumnElement[bool]:
    return column < func.now() - age
