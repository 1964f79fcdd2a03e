"""Answers that launches were given or that were observed."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from service.domain.plan import content_hash
from service.storage.rows import GivenAnswerRow


def keep_given(session: Session, plan_id: str, answer: Mapping[str, Any]) -> str:
    """Keeps an answer of a stored plan, once however often it was given; returns its digest.

    It is not pruned before the transaction ends, so that rows can refer to it.
    """
    digest = content_hash(answer)
    fresh = insert(GivenAnswerRow).values(plan_id=plan_id, digest=digest, answer=dict(answer)).on_conflict_do_nothing()
    while True:
        session.execute(fresh)
        if is_given(session, plan_id, digest):
            return digest


def is_given(session: Session, plan_id: str, digest: str) -> bool:
    """Whether an answer is kept; it is then not pruned before the transaction ends."""
    key = GivenAnswerRow.plan_id == plan_id, GivenAnswerRow.digest == digest
    held = select(GivenAnswerRow.digest).where(*key).with_for_update(read=True, key_share=True)
    return session.scalar(held) is not None
