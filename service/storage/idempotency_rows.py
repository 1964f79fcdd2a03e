"""The table of calls that callers named by a key."""

from datetime import datetime

from sqlalchemy import CheckConstraint, func
from sqlalchemy.orm import Mapped, mapped_column

from service.storage.rows import Row


class IdempotencyRow(Row):
    """A call under an ``Idempotency-Key``, claimed by one try until it is answered."""

    __tablename__ = "idempotency_keys"
    __table_args__ = (CheckConstraint("(status IS NULL) = (body IS NULL)", name="answer_whole"),)

    caller: Mapped[str] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(primary_key=True)
    request_hash: Mapped[str]
    claim: Mapped[str]
    claimed_until: Mapped[datetime]
    took_effect: Mapped[bool] = mapped_column(server_default="false")
    status: Mapped[int | None]
    location: Mapped[str | None]
    # Text, not JSON: the answer is given again byte by byte.
    body: Mapped[str | None]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now(), index=True)
