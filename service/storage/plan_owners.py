"""Whom plans are there for."""

from sqlalchemy import ColumnElement, Connection, delete, exists, select, true
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session, aliased

from service.domain.callers import Caller
from service.storage.access_rows import PlanOwnerRow
from service.storage.rows import GivenAnswerRow, LaunchRow, ObservationRow, PlanRow


def there_for(caller: Caller) -> ColumnElement[bool]:
    """Whether a plan is there for a caller: it is their own, or they see all."""
    return true() if caller.sees_all else owned_by(caller)


def owned_by(caller: Caller) -> ColumnElement[bool]:
    """Whether a plan is a caller's own."""
    return exists().where(PlanOwnerRow.plan_id == PlanRow.plan_id, PlanOwnerRow.owner == caller.name)


def has_owner() -> ColumnElement[bool]:
    """Whether a plan is anyone's."""
    return exists().where(PlanOwnerRow.plan_id == PlanRow.plan_id)


def hold(session: Session, plan_id: str) -> bool:
    """Whether a plan is there; it then is not deleted before the transaction ends, so that rows can refer to it."""
    held = select(PlanRow.plan_id).where(PlanRow.plan_id == plan_id).with_for_update(read=True, key_share=True)
    return session.scalar(held) is not None


def give(session: Session, plan_id: str, caller: Caller) -> None:
    """Makes a plan, which is held, a caller's own."""
    session.execute(insert(PlanOwnerRow).values(plan_id=plan_id, owner=caller.name).on_conflict_do_nothing())


def take(connection: Connection, plan_id: str, caller: Caller) -> bool:
    """Takes a plan and the launches that it was given to from a caller, or from everyone where the caller sees all.

    The plan itself goes with its last owner, unless it was observed or another plan moved from it: then nobody but
    who sees all finds it, until pruning finds it needed no more.

    Returns:
        Whether it was there for the caller.
    """
    theirs = select(PlanRow.plan_id).where(PlanRow.plan_id == plan_id, there_for(caller)).with_for_update(of=PlanRow)
    if connection.scalar(theirs) is None:
        return False
    everyone = caller.sees_all
    owner = true() if everyone else PlanOwnerRow.owner == caller.name
    launcher = true() if everyone else LaunchRow.key == caller.name
    connection.execute(delete(PlanOwnerRow).where(PlanOwnerRow.plan_id == plan_id, owner))
    connection.execute(delete(LaunchRow).where(LaunchRow.plan_id == plan_id, launcher))
    _delete_unneeded(connection, plan_id)
    return True


def _delete_unneeded(connection: Connection, plan_id: str) -> None:
    """Deletes a plan, which is locked, where nobody has it and nothing refers to it."""
    given, next_plan = GivenAnswerRow, aliased(PlanRow)
    connection.execute(
        delete(given).where(
            given.plan_id == plan_id,
            ~exists().where(LaunchRow.plan_id == given.plan_id, LaunchRow.digest == given.digest),
            ~exists().where(ObservationRow.plan_id == given.plan_id, ObservationRow.digest == given.digest),
        )
    )
    connection.execute(
        delete(PlanRow).where(
            PlanRow.plan_id == plan_id,
            ~has_owner(),
            ~exists().where(given.plan_id == PlanRow.plan_id),
            ~exists().where(next_plan.previous_plan_id == PlanRow.plan_id),
        )
    )
