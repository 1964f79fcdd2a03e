"""Plans and measurements."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0001"
down_revision: str | None = None
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None


def upgrade() -> None:
    """Makes every table."""
    _create_plans()
    _create_table_configurations()
    _create_compute_measurements()
    _create_measured_tables()
    _create_communication_measurements()


def downgrade() -> None:
    """Drops every table."""
    op.drop_table("communication_measurements")
    op.drop_table("measured_tables")
    op.drop_table("compute_measurements")
    op.drop_table("table_configurations")
    op.drop_table("plans")


def _create_plans() -> None:
    op.create_table(
        "plans",
        sa.Column("plan_id", sa.Text(), nullable=False),
        sa.Column("hardware", sa.Text(), nullable=False),
        sa.Column("algorithm", sa.Text(), nullable=False),
        sa.Column("max_cost_ms", sa.Double(), nullable=False),
        sa.Column("request", postgresql.JSONB(), nullable=False),
        sa.Column("answer", postgresql.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("plan_id", name=op.f("pk_plans")),
    )


def _create_table_configurations() -> None:
    op.create_table(
        "table_configurations",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("num_embeddings", sa.BigInteger(), nullable=False),
        sa.Column("pooling_factor", sa.Double(), nullable=False),
        sa.Column("num_features", sa.Integer(), nullable=False),
        sa.Column("pooling_mode", sa.Text(), nullable=False),
        sa.Column("data_type", sa.Text(), nullable=False),
        sa.Column("distinct_rows", sa.Double(), nullable=True),
        sa.Column("histogram_batch_size", sa.Integer(), nullable=True),
        sa.Column("fractions", postgresql.ARRAY(sa.Double()), nullable=True),
        sa.CheckConstraint(
            "pooling_factor >= 0 AND pooling_factor < 'Infinity'",
            name=op.f("ck_table_configurations_pooling_factor_finite"),
        ),
        sa.CheckConstraint(
            "(histogram_batch_size IS NULL) = (fractions IS NULL)", name=op.f("ck_table_configurations_histogram_whole")
        ),
        sa.CheckConstraint(
            "histogram_batch_size > 0", name=op.f("ck_table_configurations_histogram_batch_size_positive")
        ),
        sa.CheckConstraint("num_embeddings > 0", name=op.f("ck_table_configurations_num_embeddings_positive")),
        sa.CheckConstraint("num_features > 0", name=op.f("ck_table_configurations_num_features_positive")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_table_configurations")),
        sa.UniqueConstraint("fingerprint", name=op.f("uq_table_configurations_fingerprint")),
    )


def _create_compute_measurements() -> None:
    op.create_table(
        "compute_measurements",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("campaign", sa.Text(), nullable=False),
        sa.Column("index", sa.Integer(), nullable=False),
        sa.Column("hardware", sa.Text(), nullable=False),
        sa.Column("batch_size", sa.Integer(), nullable=False),
        sa.Column("optimizer", sa.Text(), nullable=False),
        sa.Column("forward_ms", sa.Double(), nullable=False),
        sa.Column("backward_ms", sa.Double(), nullable=False),
        sa.Column("forward_spread", sa.Double(), nullable=False),
        sa.Column("backward_spread", sa.Double(), nullable=False),
        sa.Column("repeats", sa.Integer(), nullable=False),
        sa.Column("environment", postgresql.JSONB(), nullable=False),
        sa.Column("measured_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("combination", sa.Text(), nullable=False),
        sa.CheckConstraint(
            "backward_ms >= 0 AND backward_ms < 'Infinity'", name=op.f("ck_compute_measurements_backward_ms_finite")
        ),
        sa.CheckConstraint(
            "backward_spread >= 0 AND backward_spread < 'Infinity'",
            name=op.f("ck_compute_measurements_backward_spread_finite"),
        ),
        sa.CheckConstraint(
            "forward_ms >= 0 AND forward_ms < 'Infinity'", name=op.f("ck_compute_measurements_forward_ms_finite")
        ),
        sa.CheckConstraint(
            "forward_spread >= 0 AND forward_spread < 'Infinity'",
            name=op.f("ck_compute_measurements_forward_spread_finite"),
        ),
        sa.CheckConstraint("batch_size > 0", name=op.f("ck_compute_measurements_batch_size_positive")),
        sa.CheckConstraint("index >= 0", name=op.f("ck_compute_measurements_index_not_negative")),
        sa.CheckConstraint("repeats > 0", name=op.f("ck_compute_measurements_repeats_positive")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_compute_measurements")),
        sa.UniqueConstraint("campaign", "index", name=op.f("uq_compute_measurements_campaign_index")),
    )
    op.create_index(op.f("ix_compute_measurements_combination"), "compute_measurements", ["combination"])
    op.create_index(op.f("ix_compute_measurements_hardware"), "compute_measurements", ["hardware"])


def _create_measured_tables() -> None:
    op.create_table(
        "measured_tables",
        sa.Column("measurement_id", sa.BigInteger(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("configuration_id", sa.BigInteger(), nullable=False),
        sa.Column("embedding_dim", sa.Integer(), nullable=False),
        sa.CheckConstraint("embedding_dim > 0", name=op.f("ck_measured_tables_embedding_dim_positive")),
        sa.ForeignKeyConstraint(
            ["configuration_id"], ["table_configurations.id"], name=op.f("fk_measured_tables_configuration_id")
        ),
        sa.ForeignKeyConstraint(
            ["measurement_id"],
            ["compute_measurements.id"],
            name=op.f("fk_measured_tables_measurement_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("measurement_id", "position", name=op.f("pk_measured_tables")),
    )
    op.create_index(op.f("ix_measured_tables_configuration_id"), "measured_tables", ["configuration_id"])


def _create_communication_measurements() -> None:
    op.create_table(
        "communication_measurements",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("campaign", sa.Text(), nullable=False),
        sa.Column("index", sa.Integer(), nullable=False),
        sa.Column("hardware", sa.Text(), nullable=False),
        sa.Column("widths", postgresql.ARRAY(sa.Integer()), nullable=False),
        sa.Column("batch_size", sa.Integer(), nullable=False),
        sa.Column("forward_ms", postgresql.ARRAY(sa.Double()), nullable=False),
        sa.Column("backward_ms", postgresql.ARRAY(sa.Double()), nullable=False),
        sa.Column("repeats", sa.Integer(), nullable=False),
        sa.Column("environment", postgresql.JSONB(), nullable=False),
        sa.Column("measured_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint(
            "0 <= ALL (backward_ms) AND 'Infinity' > ALL (backward_ms)",
            name=op.f("ck_communication_measurements_backward_ms_finite"),
        ),
        sa.CheckConstraint(
            "0 <= ALL (forward_ms) AND 'Infinity' > ALL (forward_ms)",
            name=op.f("ck_communication_measurements_forward_ms_finite"),
        ),
        sa.CheckConstraint("0 <= ALL (widths)", name=op.f("ck_communication_measurements_widths_not_negative")),
        sa.CheckConstraint("batch_size > 0", name=op.f("ck_communication_measurements_batch_size_positive")),
        sa.CheckConstraint(
            "cardinality(widths) = cardinality(forward_ms) AND cardinality(widths) = cardinality(backward_ms)",
            name=op.f("ck_communication_measurements_one_entry_a_rank"),
        ),
        sa.CheckConstraint("index >= 0", name=op.f("ck_communication_measurements_index_not_negative")),
        sa.CheckConstraint("repeats > 0", name=op.f("ck_communication_measurements_repeats_positive")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_communication_measurements")),
        sa.UniqueConstraint("campaign", "index", name=op.f("uq_communication_measurements_campaign_index")),
    )
    op.create_index(op.f("ix_communication_measurements_hardware"), "communication_measurements", ["hardware"])
