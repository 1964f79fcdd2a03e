"""The repository of launches."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from sqlalchemy import ColumnElement, Engine, Select, and_, delete, func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from service.domain.errors import StorageUnavailable
from service.domain.launches import LEASE_S, Launch
from service.storage.engine import RETRY_AFTER_S, storage_errors
from service.storage.given_answers import keep_given
from service.storage.plan_owners import hold
from service.storage.plans import not_noted
from service.storage.rows import GivenAnswerRow, LaunchRow

_KEY = ("key", "launch_id", "request_hash")

_LEASE = timedelta(seconds=LEASE_S)


class LaunchRepository:
    """Keeps launches in Postgres; the ``LaunchStore`` of the domain.

    A claim is a row with an end, not a lock: it needs no connection while a plan is made, and passes on also where
    the process that has it is frozen or cut off. What makes answers one is the row itself, of which the first stays.
    """

    def __init__(self, engine: Engine) -> None:
        """Uses the engine's pool; opens no connection yet."""
        self._engine = engine

    def get(self, launch: Launch) -> Mapping[str, Any] | None:
        """What the launch was answered, or None; it counts as used.

        Raises:
            StorageUnavailable: the database cannot be reached.
        """
        with storage_errors(), Session(self._engine) as session, session.begin():
            answer, stale = session.execute(_given(launch)).one_or_none() or (None, False)
            if stale:
                noted = update(LaunchRow).where(_is(launch)).values(last_used_at=func.now())
                # None where it is pruned at this moment.
                answer = answer if session.scalar(noted.returning(LaunchRow.launch_id)) else None
            return answer

    def claim(self, launch: Launch, claimant: str) -> bool:
        """Whether the claimant is the one to make the answer, for ``LEASE_S``: there is none and nobody else makes it.

        Raises:
            StorageUnavailable: the database cannot be reached.
        """
        held = {"claimed_by": claimant, "claimed_until": func.now() + _LEASE, "last_used_at": func.now()}
        over = and_(LaunchRow.digest.is_(None), LaunchRow.claimed_until < func.now())
        with storage_errors(), Session(self._engine) as session, session.begin():
            claimed = session.scalar(
                insert(LaunchRow)
                .values(_key(launch) | held)
                .on_conflict_do_update(index_elements=_KEY, set_=held, where=over)
                .returning(LaunchRow.claimed_by)
            )
            return claimed == claimant

    def renew(self, launch: Launch, claimant: str) -> None:
        """A claim that has not passed to another holds for another ``LEASE_S``.

        Raises:
            StorageUnavailable: the database cannot be reached.
        """
        with storage_errors(), Session(self._engine) as session, session.begin():
            session.execute(update(LaunchRow).where(_claim(launch, claimant)).values(claimed_until=func.now() + _LEASE))

    def release(self, launch: Launch, claimant: str) -> None:
        """Gives up a claim without an answer.

        Raises:
            StorageUnavailable: the database cannot be reached.
        """
        with storage_errors(), Session(self._engine) as session, session.begin():
            session.execute(delete(LaunchRow).where(_claim(launch, claimant)))

    def keep(self, launch: Launch, claimant: str, plan_id: str, answer: Mapping[str, Any]) -> Mapping[str, Any]:
        """Keeps an answer durably, of a plan that is stored, and returns the first that was kept for the launch.

        Also one whose claim has passed to another may be first.

        Raises:
            StorageUnavailable: the database cannot be reached, or the plan was deleted meanwhile.
        """
        with storage_errors(), Session(self._engine) as session, session.begin():
            if not hold(session, plan_id):
                raise StorageUnavailable("the launch's plan was deleted as it was given", retry_after_s=RETRY_AFTER_S)
            kept = {"plan_id": plan_id, "digest": keep_given(session, plan_id, answer), "claimed_by": claimant}
            session.execute(
                insert(LaunchRow)
                .values(_key(launch) | kept | {"claimed_until": func.now()})
                .on_conflict_do_update(index_elements=_KEY, set_=kept, where=LaunchRow.digest.is_(None))
            )
            first: Mapping[str, Any] = session.execute(_given(launch)).one().answer
            return first


def _key(launch: Launch) -> dict[str, Any]:
    return {name: getattr(launch, name) for name in _KEY}


def _is(launch: Launch) -> ColumnElement[bool]:
    return and_(*(getattr(LaunchRow, name) == value for name, value in _key(launch).items()))


def _claim(launch: Launch, claimant: str) -> ColumnElement[bool]:
    return _is(launch) & LaunchRow.digest.is_(None) & (LaunchRow.claimed_by == claimant)


def _given(launch: Launch) -> Select[dict[str, Any], bool]:
    """What a launch was answered, and whether its use is to be noted."""
    given = and_(GivenAnswerRow.plan_id == LaunchRow.plan_id, GivenAnswerRow.digest == LaunchRow.digest)
    query = select(GivenAnswerRow.answer, not_noted(LaunchRow.last_used_at)).join(LaunchRow, given)
    return query.where(_is(launch))
