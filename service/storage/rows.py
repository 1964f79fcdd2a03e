"""Tables of the database. Migrations make them; ``migrate.drift`` says where the two differ."""

from datetime import datetime
from typing import Any, ClassVar

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    DateTime,
    Double,
    ForeignKey,
    Identity,
    Index,
    Integer,
    MetaData,
    Text,
    UniqueConstraint,
    func,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSON, JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

Environment = dict[str, str]
Json = dict[str, Any]

QUEUE_TABLES = "procrastinate_"
"""Beginning of the names of the job queue's tables, which are not declared here: its own schema makes them."""


def declared_here(name: str | None, kind: str, parents: Any) -> bool:
    """Whether a table that Alembic finds in a database is a matter of these rows; its ``include_name``."""
    return not (kind == "table" and name is not None and name.startswith(QUEUE_TABLES))


def _duration(column: str) -> CheckConstraint:
    # Postgres sorts NaN above every number, so the upper limit refuses it too.
    return CheckConstraint(f"{column} >= 0 AND {column} < 'Infinity'", name=f"{column}_finite")


def _durations(column: str) -> CheckConstraint:
    return CheckConstraint(f"0 <= ALL ({column}) AND 'Infinity' > ALL ({column})", name=f"{column}_finite")


def _positive(column: str) -> CheckConstraint:
    return CheckConstraint(f"{column} > 0", name=f"{column}_positive")


class Row(DeclarativeBase):
    """Base of all rows; names every constraint, so that migrations can speak of it."""

    metadata = MetaData(
        naming_convention={
            "pk": "pk_%(table_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
        }
    )
    type_annotation_map: ClassVar[dict[Any, Any]] = {
        str: Text(),
        float: Double(),
        datetime: DateTime(timezone=True),
        Json: JSONB(),
        Environment: JSONB(),
        list[float]: ARRAY(Double()),
        list[int]: ARRAY(Integer()),
    }


class PlanRow(Row):
    """A plan with the request that it answers."""

    __tablename__ = "plans"

    plan_id: Mapped[str] = mapped_column(primary_key=True)
    hardware: Mapped[str]
    algorithm: Mapped[str]
    max_cost_ms: Mapped[float]
    request: Mapped[Json]
    # JSON, not JSONB: the answer is given again as it was, members in their order.
    answer: Mapped[Json] = mapped_column(JSON)
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class TableConfigurationRow(Row):
    """A table apart from its name and dim; ``fingerprint`` is the hash of the other columns."""

    __tablename__ = "table_configurations"
    __table_args__ = (
        _positive("num_embeddings"),
        _positive("num_features"),
        _positive("histogram_batch_size"),
        _duration("pooling_factor"),
        CheckConstraint("(histogram_batch_size IS NULL) = (fractions IS NULL)", name="histogram_whole"),
    )

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    fingerprint: Mapped[str] = mapped_column(unique=True)
    num_embeddings: Mapped[int] = mapped_column(BigInteger)
    pooling_factor: Mapped[float]
    num_features: Mapped[int]
    pooling_mode: Mapped[str]
    data_type: Mapped[str]
    distinct_rows: Mapped[float | None]
    histogram_batch_size: Mapped[int | None]
    fractions: Mapped[list[float] | None]


class ComputeMeasurementRow(Row):
    """One combination of tables, measured; its tables are ``MeasuredTableRow``s."""

    __tablename__ = "compute_measurements"
    __table_args__ = (
        UniqueConstraint("campaign", "index"),
        CheckConstraint("index >= 0", name="index_not_negative"),
        _positive("batch_size"),
        _positive("repeats"),
        _duration("forward_ms"),
        _duration("backward_ms"),
        _duration("forward_spread"),
        _duration("backward_spread"),
    )

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    campaign: Mapped[str]
    index: Mapped[int]
    hardware: Mapped[str] = mapped_column(index=True)
    batch_size: Mapped[int]
    optimizer: Mapped[str]
    forward_ms: Mapped[float]
    backward_ms: Mapped[float]
    forward_spread: Mapped[float]
    backward_spread: Mapped[float]
    repeats: Mapped[int]
    environment: Mapped[Environment]
    measured_at: Mapped[datetime]
    combination: Mapped[str] = mapped_column(index=True)


class MeasuredTableRow(Row):
    """One table of a measured combination."""

    __tablename__ = "measured_tables"
    __table_args__ = (_positive("embedding_dim"),)

    measurement_id: Mapped[int] = mapped_column(
        ForeignKey("compute_measurements.id", ondelete="CASCADE"), primary_key=True
    )
    position: Mapped[int] = mapped_column(primary_key=True)
    configuration_id: Mapped[int] = mapped_column(ForeignKey("table_configurations.id"), index=True)
    embedding_dim: Mapped[int]


class CommunicationMeasurementRow(Row):
    """One forward and one backward all-to-all; the arrays have an entry for each rank."""

    __tablename__ = "communication_measurements"
    __table_args__ = (
        UniqueConstraint("campaign", "index"),
        CheckConstraint("index >= 0", name="index_not_negative"),
        _positive("batch_size"),
        _positive("repeats"),
        CheckConstraint(
            "cardinality(widths) = cardinality(start_delays_ms) AND cardinality(widths) = cardinality(forward_wait_ms) "
            "AND cardinality(widths) = cardinality(forward_transfer_ms) "
            "AND cardinality(widths) = cardinality(backward_ms)",
            name="one_entry_a_rank",
        ),
        CheckConstraint("0 <= ALL (widths)", name="widths_not_negative"),
        _durations("start_delays_ms"),
        _durations("forward_wait_ms"),
        _durations("forward_transfer_ms"),
        _durations("backward_ms"),
    )

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    campaign: Mapped[str]
    index: Mapped[int]
    hardware: Mapped[str] = mapped_column(index=True)
    widths: Mapped[list[int]]
    batch_size: Mapped[int]
    start_delays_ms: Mapped[list[float]]
    forward_wait_ms: Mapped[list[float]]
    forward_transfer_ms: Mapped[list[float]]
    backward_ms: Mapped[list[float]]
    repeats: Mapped[int]
    environment: Mapped[Environment]
    measured_at: Mapped[datetime]


class WorkerRow(Row):
    """A process that measures; live while the queue's worker of this id sends heartbeats, kept for a while after."""

    __tablename__ = "workers"
    __table_args__ = (_positive("pid"),)

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
        _positive("batch_size"),
        _positive("rows_measured"),
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


class RequestedProfileRow(Row):
    """One table of a request for profiles."""

    __tablename__ = "requested_profiles"

    request_id: Mapped[str] = mapped_column(ForeignKey("profile_requests.id", ondelete="CASCADE"), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]
    profile_id: Mapped[str] = mapped_column(ForeignKey("profiles.id"), index=True)
