"""The repository of observations."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Engine, Select, and_, func, select, true, tuple_, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from service.domain.callers import Caller
from service.domain.observations import Observation, ObservedPlan, StoredObservation
from service.storage.engine import storage_errors
from service.storage.given_answers import is_given, keep_given
from service.storage.plan_owners import hold, there_for
from service.storage.plans import not_noted, used_plan
from service.storage.rows import GivenAnswerRow, LaunchRow, ObservationRow, PlanRow


class ObservationRepository:
    """Keeps observations in Postgres, each with the answer that it is of; the ``ObservationStore`` of the domain."""

    def __init__(self, engine: Engine) -> None:
        """Uses the engine's pool; opens no connection yet."""
        self._engine = engine

    def add(
        self, plan_id: str, observations: Sequence[Observation], caller: Caller
    ) -> tuple[list[StoredObservation], set[int]] | None:
        """Stores observations of one launch of a caller durably; None where there is no such plan for the caller.

        The caller's first under a (plan, launch, rank, steps) stays. Returned are those that are stored under the given
        ones' (plan, launch, rank, steps), in their order, and the ids of the new ones among them.

        Raises:
            StorageUnavailable: the database cannot be reached.
        """
        launch_id, steps = observations[0].launch_id, [(each.rank, each.start, each.stop) for each in observations]
        row = ObservationRow
        given = row.plan_id == plan_id, row.observer == caller.name, row.launch_id == launch_id
        theirs = tuple_(row.rank, row.start_step, row.stop_step).in_(steps)
        with storage_errors(), Session(self._engine) as session, session.begin():
            plan, _ = used_plan(session, plan_id, there_for(caller))
            if plan is None or not hold(session, plan_id):
                return None
            digest = _digest(session, plan, launch_id, caller)
            of = {"plan_id": plan_id, "digest": digest, "observer": caller.name}
            # Sorted, so that no two that store the same wait for each other.
            values = [of | _values(observations[i]) for i in sorted(range(len(steps)), key=steps.__getitem__)]
            statement = insert(row).on_conflict_do_nothing().returning(row.id)
            new = set(session.scalars(statement, values))
            found = _stored(session, select(row).where(*given, theirs))
            stored = {(o.rank, o.start, o.stop): each for each in found for o in [each.observation]}
            return [stored[key] for key in steps], new

    def of_plan(self, plan_id: str, caller: Caller, after: int, limit: int) -> list[StoredObservation]:
        """A plan's observations that are there for a caller, with ids above ``after``, the first of them.

        Raises:
            StorageUnavailable: the database cannot be reached.
        """
        theirs = true() if caller.sees_all else ObservationRow.observer == caller.name
        query = select(ObservationRow).where(ObservationRow.plan_id == plan_id, theirs, ObservationRow.id > after)
        with storage_errors(), Session(self._engine) as session:
            return _stored(session, query.order_by(ObservationRow.id).limit(limit))

    def observed(self, hardware: str) -> Iterator[ObservedPlan]:
        """Every answer of a hardware that was observed, one after the other, with all of its observations.

        Raises:
            StorageUnavailable: the database cannot be reached.
        """
        key = ObservationRow.plan_id, ObservationRow.digest
        of_hardware = select(*key).join(PlanRow, PlanRow.plan_id == key[0]).where(PlanRow.hardware == hardware)
        with storage_errors(), Session(self._engine) as session:
            # By bytes, so that every database gives training the same order.
            keys = of_hardware.group_by(*key).order_by(*(column.collate("C") for column in key))
            found = session.execute(keys).all()
        for plan_id, digest in found:
            query = select(ObservationRow).where(key[0] == plan_id, key[1] == digest).order_by(ObservationRow.id)
            with storage_errors(), Session(self._engine) as session:
                plan, stored = session.get(PlanRow, plan_id), tuple(_stored(session, query))
            # They may have been pruned since.
            if plan and stored:
                yield ObservedPlan(plan_id, hardware, plan.request, stored[0].answer, stored)


def _digest(session: Session, plan: PlanRow, launch_id: str, caller: Caller) -> str:
    """Digest of the answer that ran: the launch's where it asked for one, else the plan as it is now.

    A launch that still runs counts as used.
    """
    launch = and_(LaunchRow.key == caller.name, LaunchRow.launch_id == launch_id, LaunchRow.plan_id == plan.plan_id)
    used = update(LaunchRow).where(launch, not_noted(LaunchRow.last_used_at)).values(last_used_at=func.now())
    session.execute(used)
    digest = session.scalar(select(LaunchRow.digest).where(launch))
    if digest is not None and is_given(session, plan.plan_id, digest):
        return digest
    return keep_given(session, plan.plan_id, plan.answer)


def _values(observation: Observation) -> dict[str, Any]:
    return {
        "launch_id": observation.launch_id,
        "rank": observation.rank,
        "start_step": observation.start,
        "stop_step": observation.stop,
        "forward_compute_ms": observation.forward_compute_ms,
        "backward_compute_ms": observation.backward_compute_ms,
        "forward_comm_ms": observation.forward_comm_ms,
        "backward_comm_ms": observation.backward_comm_ms,
        "total_ms": observation.total_ms,
        "environment": dict(observation.environment),
    }


def _stored(session: Session, query: Select[ObservationRow]) -> list[StoredObservation]:
    """What a query finds, each answer loaded once."""
    rows = session.scalars(query).all()
    key = tuple_(GivenAnswerRow.plan_id, GivenAnswerRow.digest)
    answers: dict[tuple[str, str], Mapping[str, Any]] = {
        (given.plan_id, given.digest): given.answer
        for given in session.scalars(select(GivenAnswerRow).where(key.in_({(row.plan_id, row.digest) for row in rows})))
    }
    return [
        StoredObservation(row.id, _observation(row), answers[row.plan_id, row.digest], row.observed_at) for row in rows
    ]


def _observation(row: ObservationRow) -> Observation:
    return Observation(
        launch_id=row.launch_id,
        rank=row.rank,
        start=row.start_step,
        stop=row.stop_step,
        forward_compute_ms=row.forward_compute_ms,
        backward_compute_ms=row.backward_compute_ms,
        forward_comm_ms=row.forward_comm_ms,
        backward_comm_ms=row.backward_comm_ms,
        total_ms=row.total_ms,
        environment=row.environment,
    )
