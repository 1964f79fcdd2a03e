"""The repository of plans that are made while no connection waits for them."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from sqlalchemy import ColumnElement, Engine, and_, delete, func, null, or_, true, update
from sqlalchemy.dialects.postgresql import insert

from service.domain.launches import LEASE_S
from service.domain.plans_under_way import TOLD_FOR, Making, PlanUnderWay
from service.storage.engine import storage_errors
from service.storage.under_way_rows import PlanUnderWayRow as UnderWayRow

_KEY = ("caller", "plan_id")

_LEASE = timedelta(seconds=LEASE_S)


class UnderWayRepository:
    """Keeps plans under way in Postgres; the ``UnderWayStore`` of the domain.

    A claim is a row with an end, as those of launches. All methods raise StorageUnavailable where the database cannot
    be reached.
    """

    def __init__(self, engine: Engine) -> None:
        """Uses the engine's pool; opens no connection yet."""
        self._engine = engine

    def claim(self, plan: PlanUnderWay, claimant: str) -> bool:
        """See ``UnderWayStore``."""
        row = UnderWayRow
        fresh = {
            "claimed_by": claimant,
            "claimed_until": func.now() + _LEASE,
            "looked_for_at": func.now(),
            "given_up": False,
            "error": null(),
        }
        free = or_(row.error.is_not(None), row.given_up, row.claimed_until < func.now())
        made = insert(row).values(_key(plan) | fresh)
        claimed = made.on_conflict_do_update(index_elements=_KEY, set_=fresh, where=free).returning(row.claimed_by)
        with storage_errors(), self._engine.begin() as connection:
            return connection.scalar(claimed) == claimant

    def renew(self, plan: PlanUnderWay, claimant: str, patience_s: float) -> bool:
        """See ``UnderWayStore``."""
        wanted = ~UnderWayRow.given_up & (UnderWayRow.looked_for_at > func.now() - timedelta(seconds=patience_s))
        renewed = update(UnderWayRow).where(_claim(plan, claimant), wanted).values(claimed_until=func.now() + _LEASE)
        with storage_errors(), self._engine.begin() as connection:
            return connection.scalar(renewed.returning(true())) is True

    def fail(self, plan: PlanUnderWay, claimant: str, error: Mapping[str, Any]) -> None:
        """See ``UnderWayStore``."""
        mine = _claim(plan, claimant)
        failed = update(UnderWayRow).where(mine).values(error=dict(error), claimed_until=func.now())
        with storage_errors(), self._engine.begin() as connection:
            connection.execute(delete(UnderWayRow).where(mine, UnderWayRow.given_up))
            connection.execute(failed)

    def finish(self, plan: PlanUnderWay, claimant: str) -> bool:
        """See ``UnderWayStore``."""
        finished = delete(UnderWayRow).where(_claim(plan, claimant)).returning(UnderWayRow.given_up)
        with storage_errors(), self._engine.begin() as connection:
            return connection.scalar(finished) is True

    def look(self, plan: PlanUnderWay) -> Making | None:
        """See ``UnderWayStore``."""
        told = _is(plan), ~UnderWayRow.given_up, ~is_forgotten()
        looked = update(UnderWayRow).where(*told).values(looked_for_at=func.now())
        standing = looked.returning(UnderWayRow.claimed_until < func.now(), UnderWayRow.error)
        with storage_errors(), self._engine.begin() as connection:
            found = connection.execute(standing).one_or_none()
        return Making(*found) if found else None

    def give_up(self, plan: PlanUnderWay) -> bool:
        """See ``UnderWayStore``."""
        there = _is(plan), ~UnderWayRow.given_up, ~is_forgotten()
        given_up = update(UnderWayRow).where(*there).values(given_up=True)
        with storage_errors(), self._engine.begin() as connection:
            return connection.scalar(given_up.returning(true())) is True


def is_forgotten() -> ColumnElement[bool]:
    """Whether nothing is told of a row any more."""
    return UnderWayRow.claimed_until < func.now() - TOLD_FOR


def _key(plan: PlanUnderWay) -> dict[str, Any]:
    return {name: getattr(plan, name) for name in _KEY}


def _is(plan: PlanUnderWay) -> ColumnElement[bool]:
    return and_(UnderWayRow.caller == plan.caller, UnderWayRow.plan_id == plan.plan_id)


def _claim(plan: PlanUnderWay, claimant: str) -> ColumnElement[bool]:
    return _is(plan) & UnderWayRow.error.is_(None) & (UnderWayRow.claimed_by == claimant)
