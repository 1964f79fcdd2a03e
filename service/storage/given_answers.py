"""Answers that launches were given or that were observed."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from service.domain.plan import content_hash
from service.storage.rows import GivenAnswerRow


def keep_given(session: Session, plan_id: str, answer: Mapping[str, Any]) -> str:
    """Keeps an answer of a stored plan, once however often it was given; returns its digest."""
    digest = content_hash(answer)
    values = {"plan_id": plan_id, "digest": digest, "answer": dict(answer)}
    session.execute(insert(GivenAnswerRow).values(values).on_conflict_do_nothing())
    return digest
