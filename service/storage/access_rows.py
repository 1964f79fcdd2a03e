"""Tables of API keys, of plans' owners, and of calls on record."""

from datetime import datetime

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, Identity, func
from sqlalchemy.orm import Mapped, mapped_column

from service.storage.rows import Row, positive


class ApiKeyRow(Row):
    """An API key; ``hash`` is all that is kept of its secret. Rows stay when they are revoked."""

    __tablename__ = "api_keys"
    __table_args__ = (
        CheckConstraint("scopes <@ ARRAY['plan', 'observe', 'admin'] AND cardinality(scopes) > 0", name="scopes_known"),
        CheckConstraint("name <> 'anonymous'", name="name_not_anonymous"),
        positive("requests_per_minute"),
        positive("burst"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    hash: Mapped[str] = mapped_column(unique=True)
    scopes: Mapped[list[str]]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    # To the hour, so that using a key seldom writes.
    last_used_at: Mapped[datetime | None]
    requests_per_minute: Mapped[int | None]
    burst: Mapped[int | None]


class PlanOwnerRow(Row):
    """Whom a plan is there for: the names of callers' keys, or ``anonymous``."""

    __tablename__ = "plan_owners"

    plan_id: Mapped[str] = mapped_column(ForeignKey("plans.plan_id", ondelete="CASCADE"), primary_key=True)
    owner: Mapped[str] = mapped_column(primary_key=True, index=True)
    owned_since: Mapped[datetime] = mapped_column(server_default=func.now())


class AuditRow(Row):
    """A call that changes the service, on record; rows are added, never changed."""

    __tablename__ = "audit_log"

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())
    actor: Mapped[str]
    action: Mapped[str]
    subject: Mapped[str]
    outcome: Mapped[str]
    request_id: Mapped[str]
