"""Profiles, workers and the tables of the job queue."""

import hashlib
from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from procrastinate.schema import SchemaManager
from sqlalchemy.dialects import postgresql

revision: str = "0003"
down_revision: str | None = "0002"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None

_QUEUE_SCHEMA = "c70ec4b400a60ad9592787653aae5ae77ae41bf801d56b5bd2712751a07f2009"
"""SHA-256 of the queue's schema that this revision stands for, procrastinate 3.10.0's."""

_DROP_QUEUE = """
DO $$
DECLARE found record;
BEGIN
    FOR found IN SELECT oid::regclass AS name FROM pg_class
        WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' AND relname LIKE 'procrastinate\\_%'
    LOOP EXECUTE format('DROP TABLE %s CASCADE', found.name); END LOOP;
    FOR found IN SELECT oid::regprocedure AS name FROM pg_proc
        WHERE pronamespace = 'public'::regnamespace AND proname LIKE 'procrastinate\\_%'
    LOOP EXECUTE format('DROP FUNCTION %s CASCADE', found.name); END LOOP;
    FOR found IN SELECT oid::regtype AS name FROM pg_type
        WHERE typnamespace = 'public'::regnamespace AND typname LIKE 'procrastinate\\_%'
    LOOP EXECUTE format('DROP TYPE %s CASCADE', found.name); END LOOP;
END $$
"""


def upgrade() -> None:
    """Makes every table."""
    _create_queue()
    _create_workers()
    _create_profiles()
    _create_requests()


def downgrade() -> None:
    """Drops every table, and with the queue's tables its types and functions."""
    op.drop_table("requested_profiles")
    op.drop_table("profile_requests")
    op.drop_table("profiles")
    op.drop_table("workers")
    _driver_execute(_DROP_QUEUE)


def _create_queue() -> None:
    schema = SchemaManager.get_schema()
    if hashlib.sha256(schema.encode()).hexdigest() != _QUEUE_SCHEMA:
        raise RuntimeError(
            "the installed procrastinate has another schema than 3.10.0, which this revision makes: install that "
            "version, or add a revision for the newer schema and have this one make the older"
        )
    _driver_execute(schema)


def _driver_execute(statements: str) -> None:
    # Without parameters the driver sends any number of statements as they are, per cent signs included.
    cursor = op.get_bind().connection.cursor()
    cursor.execute(statements)
    cursor.close()


def _create_workers() -> None:
    op.create_table(
        "workers",
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("supervisor", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("hardware", sa.Text(), nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("pid > 0", name=op.f("ck_workers_pid_positive")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_workers")),
    )
    op.create_index(op.f("ix_workers_hardware"), "workers", ["hardware"])


def _create_profiles() -> None:
    op.create_table(
        "profiles",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("hardware", sa.Text(), nullable=False),
        sa.Column("configuration", postgresql.JSONB(), nullable=False),
        sa.Column("batch_size", sa.Integer(), nullable=False),
        sa.Column("optimizer", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("claim", sa.BigInteger(), nullable=True),
        sa.Column("worker_id", sa.BigInteger(), nullable=True),
        sa.Column("attempts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("failures", sa.Integer(), server_default="0", nullable=False),
        sa.Column("rounds", sa.Integer(), server_default="0", nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("rows_measured", sa.BigInteger(), nullable=True),
        sa.Column("requested_by", sa.Text(), nullable=False),
        sa.Column("queued_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("expires_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint(
            "state IN ('queued', 'running', 'measured', 'parked', 'expired')", name=op.f("ck_profiles_state_known")
        ),
        sa.CheckConstraint(
            "state NOT IN ('queued', 'running') OR claim IS NOT NULL", name=op.f("ck_profiles_open_has_job")
        ),
        sa.CheckConstraint("attempts >= 0", name=op.f("ck_profiles_attempts_not_negative")),
        sa.CheckConstraint("failures >= 0", name=op.f("ck_profiles_failures_not_negative")),
        sa.CheckConstraint("rounds >= 0", name=op.f("ck_profiles_rounds_not_negative")),
        sa.CheckConstraint("batch_size > 0", name=op.f("ck_profiles_batch_size_positive")),
        sa.CheckConstraint("rows_measured > 0", name=op.f("ck_profiles_rows_measured_positive")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_profiles")),
    )
    op.create_index("ix_profiles_hardware_state", "profiles", ["hardware", "state"])
    op.create_index("ix_profiles_requested_by_queued_at", "profiles", ["requested_by", "queued_at"])


def _create_requests() -> None:
    op.create_table(
        "profile_requests",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("requested_by", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_profile_requests")),
    )
    op.create_table(
        "requested_profiles",
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("profile_id", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["profile_id"], ["profiles.id"], name=op.f("fk_requested_profiles_profile_id")),
        sa.ForeignKeyConstraint(
            ["request_id"], ["profile_requests.id"], name=op.f("fk_requested_profiles_request_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("request_id", "position", name=op.f("pk_requested_profiles")),
    )
    op.create_index(op.f("ix_requested_profiles_profile_id"), "requested_profiles", ["profile_id"])
