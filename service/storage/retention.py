"""Deletes what is kept no longer.

What refers to something and what it refers to never lose each other: rows are locked before it is looked whether
anything needs them, and whoever starts to need one locks it too (foreign keys do; see ``used_plan`` and
``keep_given``). Rows that somebody else has locked are passed over.
"""

import re
from collections.abc import Collection, Iterator
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Engine, Select, and_, delete, exists, func, inspect, or_, select, tuple_
from sqlalchemy import Row as SqlRow
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import InstrumentedAttribute, Session, aliased

from service.domain.profiles import ProfileState
from service.domain.retention import Kept, Retention, TrainedBench
from service.storage.engine import storage_errors
from service.storage.idempotency import is_over
from service.storage.idempotency_rows import IdempotencyRow
from service.storage.plan_owners import has_owner
from service.storage.plans_under_way import is_forgotten
from service.storage.profile_rows import ProfileRequestRow, ProfileRow, PrunedProfilesRow, RequestedProfileRow
from service.storage.rows import (
    CommunicationMeasurementRow,
    ComputeMeasurementRow,
    GivenAnswerRow,
    LaunchRow,
    ObservationRow,
    PlanRow,
    Row,
)
from service.storage.under_way_rows import PlanUnderWayRow

_MeasurementRow = type[ComputeMeasurementRow] | type[CommunicationMeasurementRow]

_NUMBER = re.compile("[0-9]{1,9}")

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
            if kind is Kept.PROFILES:
                return _deleted_profiles(session, _done_with(keep) & ~exists().where(_asked_for()), limit)
            if kind is not Kept.MEASUREMENTS:
                return len(_deleted(session, *_prunable(kind, keep), limit))
            for row, old in _superseded(session, keep, trained):
                count = len(_deleted(session, row, old, limit))
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
                Kept.PROFILE_REQUESTS: _count(session, *_prunable(Kept.PROFILE_REQUESTS, keep)),
                Kept.PROFILES: _count(session, ProfileRow, _done_with(keep) & ~_asked_for_by_kept(keep)),
                Kept.MEASUREMENTS: sum(measured),
                Kept.IDEMPOTENCY_KEYS: _count(session, *_prunable(Kept.IDEMPOTENCY_KEYS, keep)),
                Kept.PLANS_UNDER_WAY: _count(session, *_prunable(Kept.PLANS_UNDER_WAY, keep)),
            }


def _deleted(
    session: Session, row: type[Row], condition: ColumnElement[bool], limit: int, *told: InstrumentedAttribute[Any]
) -> list[SqlRow[Any]]:
    """Deletes rows that meet a condition, which is looked at again once they are locked; what is told of each."""
    key = inspect(row).primary_key
    locked = select(*key).where(condition).limit(limit).with_for_update(of=row, skip_locked=True)
    found = [tuple(each) for each in session.execute(locked)]
    gone = delete(row).where(tuple_(*key).in_(found), condition)
    return list(session.execute(gone.returning(*(told or key))).all())


def _deleted_profiles(session: Session, condition: ColumnElement[bool], limit: int) -> int:
    """Deletes profiles, and adds what they came to to the sums that metrics go on from."""
    told = (ProfileRow.hardware, ProfileRow.rounds, ProfileRow.failures)
    gone = _deleted(session, ProfileRow, condition, limit, *told)
    for hardware in sorted({row.hardware for row in gone}):
        own = [row for row in gone if row.hardware == hardware]
        values = {"measured": sum(row.rounds for row in own), "failures": sum(row.failures for row in own)}
        added = insert(PrunedProfilesRow).values(hardware=hardware, **values)
        sums = {name: getattr(PrunedProfilesRow, name) + value for name, value in values.items()}
        session.execute(added.on_conflict_do_update(index_elements=["hardware"], set_=sums))
    return len(gone)


def _count(session: Session, row: type[Row], condition: ColumnElement[bool]) -> int:
    return session.scalars(select(func.count()).select_from(row).where(condition)).one()


def _prunable(kind: Kept, keep: Retention) -> tuple[type[Row], ColumnElement[bool]]:
    """Which rows of which table may go now; plans from the last one that moved from another backwards."""
    next_plan = aliased(PlanRow)
    conditions: dict[Kept, tuple[type[Row], ColumnElement[bool]]] = {
        Kept.OBSERVATIONS: (ObservationRow, _older(ObservationRow.observed_at, keep.observations)),
        Kept.IDEMPOTENCY_KEYS: (IdempotencyRow, is_over()),
        Kept.PLANS_UNDER_WAY: (PlanUnderWayRow, is_forgotten()),
        Kept.LAUNCHES: (LaunchRow, _older(LaunchRow.last_used_at, keep.plans)),
        Kept.ANSWERS: (GivenAnswerRow, ~exists().where(_gave(LaunchRow)) & ~exists().where(_gave(ObservationRow))),
        Kept.PLANS: (
            PlanRow,
            (_older(PlanRow.last_used_at, keep.plans) | ~has_owner())
            & ~exists().where(GivenAnswerRow.plan_id == PlanRow.plan_id)
            & ~exists().where(next_plan.previous_plan_id == PlanRow.plan_id),
        ),
        Kept.PROFILE_REQUESTS: (
            ProfileRequestRow,
            _older(ProfileRequestRow.last_asked_at, keep.profiles) & ~exists().where(_waits_for()),
        ),
    }
    return conditions[kind]


def _done_with(keep: Retention) -> ColumnElement[bool]:
    """Of a profile: nobody measures it or will, and it has been so for long."""
    ended = func.coalesce(ProfileRow.finished_at, ProfileRow.expires_at)
    return and_(
        ProfileRow.state.not_in([ProfileState.QUEUED.value, ProfileState.RUNNING.value]),
        ProfileRow.expires_at < func.now(),
        ended < func.now() - keep.profiles,
    )


def _asked_for() -> ColumnElement[bool]:
    return RequestedProfileRow.profile_id == ProfileRow.id


def _waits_for() -> ColumnElement[bool]:
    """Of a request: one of its profiles waits or is being measured."""
    waiting = aliased(ProfileRow)
    return and_(
        RequestedProfileRow.request_id == ProfileRequestRow.id,
        RequestedProfileRow.profile_id == waiting.id,
        waiting.state.in_([ProfileState.QUEUED.value, ProfileState.RUNNING.value]),
    )


def _asked_for_by_kept(keep: Retention) -> ColumnElement[bool]:
    """Of a profile: a request that stays names it."""
    _, goes = _prunable(Kept.PROFILE_REQUESTS, keep)
    going = select(ProfileRequestRow.id).where(goes)
    return exists().where(_asked_for(), RequestedProfileRow.request_id.not_in(going))


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
        found = [
            (hardware, bench)
            for hardware, bench in session.execute(select(row.hardware, said).distinct())
            # One that is no number is nobody's that we know of: neither older nor newer.
            if _NUMBER.fullmatch(bench)
        ]
        newest: dict[str, int] = {}
        for hardware, bench in found:
            newest[hardware] = max(int(bench), newest.get(hardware, 0))
        for hardware, bench in found:
            if int(bench) < newest[hardware] and TrainedBench(hardware, model, int(bench)) not in trained:
                yield row, and_(row.hardware == hardware, said == bench, _older(row.measured_at, keep.measurements))


def _older(column: InstrumentedAttribute[datetime], age: timedelta) -> ColumnElement[bool]:
    return column < func.now() - age
