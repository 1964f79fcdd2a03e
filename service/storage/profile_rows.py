"""Tables of the worker pool: workers, and profiles and who asked for them."""

from datetime import datetime

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, Index, func
from sqlalchemy.orm import Mapped, mapped_column

from service.storage.rows import Json, Row, positive


class WorkerRow(Row):
    """A process that measures; live while the queue's worker of this id sends heartbeats, kept for a while after."""

    __tablename__ = "workers"
    __table_args__ = (positive("pid"),)

    id: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    supervisor: Mapped[str]
    host: Mapped[str]
    pid: Mapped[int]
    hardware: Mapped[str] = mapped_column(index=True)
    device: Mapped[str]
    started_at: Mapped[datetime] = mapped_column(server_default=func.now())
    ended_at: Mapped[datetime | None]


class ProfileRow(Row):
    """A table's configuration that is measured once; ``claim`` is the id of the queue's job that alone may do it."""

    __tablename__ = "profiles"
    __table_args__ = (
        CheckConstraint("state IN ('queued', 'running', 'measured', 'parked', 'expired')", name="state_known"),
        CheckConstraint("state NOT IN ('queued', 'running') OR claim IS NOT NULL", name="open_has_job"),
        CheckConstraint("attempts >= 0", name="attempts_not_negative"),
        CheckConstraint("failures >= 0", name="failures_not_negative"),
        CheckConstraint("rounds >= 0", name="rounds_not_negative"),
        positive("batch_size"),
        positive("rows_measured"),
        Index("ix_profiles_hardware_state", "hardware", "state"),
        Index("ix_profiles_requested_by_queued_at", "requested_by", "queued_at"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    hardware: Mapped[str]
    configuration: Mapped[Json]
    batch_size: Mapped[int]
    optimizer: Mapped[str]
    state: Mapped[str]
    claim: Mapped[int | None] = mapped_column(BigInteger)
    worker_id: Mapped[int | None] = mapped_column(BigInteger)
    attempts: Mapped[int] = mapped_column(server_default="0")
    failures: Mapped[int] = mapped_column(server_default="0")
    rounds: Mapped[int] = mapped_column(server_default="0")
    error: Mapped[str | None]
    rows_measured: Mapped[int | None] = mapped_column(BigInteger)
    requested_by: Mapped[str]
    queued_at: Mapped[datetime] = mapped_column(server_default=func.now())
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    expires_at: Mapped[datetime] = mapped_column(server_default=func.now())


class ProfileRequestRow(Row):
    """A caller's request for profiles; its tables are ``RequestedProfileRow``s."""

    __tablename__ = "profile_requests"

    id: Mapped[str] = mapped_column(primary_key=True)
    requested_by: Mapped[str]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    last_asked_at: Mapped[datetime] = mapped_column(server_default=func.now())


class PrunedProfilesRow(Row):
    """What profiles of a hardware that were pruned had come to: counters must not fall."""

    __tablename__ = "pruned_profiles"

    hardware: Mapped[str] = mapped_column(primary_key=True)
    measured: Mapped[int] = mapped_column(BigInteger)
    failures: Mapped[int] = mapped_column(BigInteger)


class RequestedProfileRow(Row):
    """One table of a request for profiles."""

    __tablename__ = "requested_profiles"

    request_id: Mapped[str] = mapped_column(ForeignKey("profile_requests.id", ondelete="CASCADE"), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]
    profile_id: Mapped[str] = mapped_column(ForeignKey("profiles.id"), index=True)
