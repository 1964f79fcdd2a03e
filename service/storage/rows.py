"""Tables of the database. Migrations make them; ``migrate.drift`` says where the two differ."""

from datetime import datetime
from typing import Any, ClassVar

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    DateTime,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
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

from service.domain.callers import ANONYMOUS

Environment = dict[str, str]
Json = dict[str, Any]


def _duration(column: str) -> CheckConstraint:
    # Postgres sorts NaN above every number, so the upper limit refuses it too.
    return CheckConstraint(f"{column} >= 0 AND {column} < 'Infinity'", name=f"{column}_finite")


def _durations(column: str) -> CheckConstraint:
    return CheckConstraint(f"0 <= ALL ({column}) AND 'Infinity' > ALL ({column})", name=f"{column}_finite")


def positive(column: str) -> CheckConstraint:
    """A constraint on a column of numbers."""
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
        list[str]: ARRAY(Text()),
    }


class PlanRow(Row):
    """A plan with the request that it answers."""

    __tablename__ = "plans"
    __table_args__ = (Index("ix_plans_created_at_plan_id", "created_at", "plan_id"),)

    plan_id: Mapped[str] = mapped_column(primary_key=True)
    hardware: Mapped[str]
    algorithm: Mapped[str]
    max_cost_ms: Mapped[float]
    request: Mapped[Json]
    # JSON, not JSONB: the answer is given again as it was, members in their order.
    answer: Mapped[Json] = mapped_column(JSON)
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    previous_plan_id: Mapped[str | None] = mapped_column(ForeignKey("plans.plan_id"), index=True)
    # To the hour, so that reading a plan seldom writes.
    last_used_at: Mapped[datetime] = mapped_column(server_default=func.now(), index=True)


class TableConfigurationRow(Row):
    """A table apart from its name and dim; ``fingerprint`` is the hash of the other columns."""

    __tablename__ = "table_configurations"
    __table_args__ = (
        positive("num_embeddings"),
        positive("num_features"),
        positive("histogram_batch_size"),
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
        positive("batch_size"),
        positive("repeats"),
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
    __table_args__ = (positive("embedding_dim"),)

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
        positive("batch_size"),
        positive("repeats"),
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


class PromotionRow(Row):
    """The decision that a version serves; rows are added, never changed."""

    __tablename__ = "promotions"
    __table_args__ = (
        positive("version_number"),
        CheckConstraint("undoes < id", name="undoes_an_earlier_one"),
        Index(None, "hardware", "model", "id"),
    )

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    hardware: Mapped[str]
    model: Mapped[str]
    version_number: Mapped[int | None]
    promoted_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())
    promoted_by: Mapped[str]
    reason: Mapped[str]
    comparison: Mapped[Json | None]
    undoes: Mapped[int | None] = mapped_column(ForeignKey("promotions.id"), unique=True)


class GivenAnswerRow(Row):
    """An answer that a launch was given or that was observed: its plan may have given way to a better one since."""

    __tablename__ = "given_answers"

    plan_id: Mapped[str] = mapped_column(ForeignKey("plans.plan_id"), primary_key=True)
    # Hash of the answer.
    digest: Mapped[str] = mapped_column(primary_key=True)
    answer: Mapped[Json] = mapped_column(JSON)
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


def _given_answer() -> ForeignKeyConstraint:
    return ForeignKeyConstraint(["plan_id", "digest"], ["given_answers.plan_id", "given_answers.digest"])


class LaunchRow(Row):
    """What a launch was answered, or who makes the answer."""

    __tablename__ = "launches"
    __table_args__ = (
        _given_answer(),
        CheckConstraint("(plan_id IS NULL) = (digest IS NULL)", name="answer_whole"),
    )

    key: Mapped[str] = mapped_column(primary_key=True)
    launch_id: Mapped[str] = mapped_column(primary_key=True)
    request_hash: Mapped[str] = mapped_column(primary_key=True)
    plan_id: Mapped[str | None] = mapped_column(index=True)
    digest: Mapped[str | None]
    claimed_by: Mapped[str]
    claimed_until: Mapped[datetime]
    # To the hour, as that of plans.
    last_used_at: Mapped[datetime] = mapped_column(server_default=func.now(), index=True)


class ObservationRow(Row):
    """Mean times of some steps of a rank; ``launch_id`` is empty where the launcher named none.

    ``observer`` is the name of the caller who posted it; that of replicas of older releases is ``anonymous``.
    """

    __tablename__ = "observations"
    __table_args__ = (
        UniqueConstraint(
            "plan_id", "observer", "launch_id", "rank", "start_step", "stop_step", name="uq_observations_once"
        ),
        _given_answer(),
        CheckConstraint("rank >= 0", name="rank_not_negative"),
        CheckConstraint("0 <= start_step AND start_step < stop_step", name="steps_ascend"),
        _duration("forward_compute_ms"),
        _duration("backward_compute_ms"),
        _duration("forward_comm_ms"),
        _duration("backward_comm_ms"),
        _duration("total_ms"),
    )

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    plan_id: Mapped[str]
    digest: Mapped[str]
    observer: Mapped[str] = mapped_column(server_default=ANONYMOUS)
    launch_id: Mapped[str]
    rank: Mapped[int]
    start_step: Mapped[int] = mapped_column(BigInteger)
    stop_step: Mapped[int] = mapped_column(BigInteger)
    forward_compute_ms: Mapped[float]
    backward_compute_ms: Mapped[float]
    forward_comm_ms: Mapped[float | None]
    backward_comm_ms: Mapped[float | None]
    total_ms: Mapped[float | None]
    environment: Mapped[Environment]
    observed_at: Mapped[datetime] = mapped_column(server_default=func.now(), index=True)


class TrainingRow(Row):
    """What a training came to; rows are added, never changed."""

    __tablename__ = "trainings"
    __table_args__ = (
        CheckConstraint("outcome IN ('promoted', 'refused', 'failed', 'nothing_new')", name="outcome_known"),
        CheckConstraint("(trained IS NOT NULL) = (outcome = 'promoted')", name="promoted_was_trained"),
        Index(None, "hardware", "model", "id"),
    )

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    hardware: Mapped[str]
    model: Mapped[str]
    outcome: Mapped[str]
    reason: Mapped[str]
    started_at: Mapped[datetime]
    finished_at: Mapped[datetime]
    trained: Mapped[str | None]
    serving: Mapped[str | None]
    comparison: Mapped[Json | None]
    basis: Mapped[str | None]
