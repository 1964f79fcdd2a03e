"""Launches and the answers they got, observations, and when a plan was last asked for."""

from collections.abc import Sequence
from datetime import datetime

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0005"
down_revision: str | None = "0004"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None


def upgrade() -> None:
    """Plans that are stored already count as used now."""
    _extend_plans()
    _create_given_answers()
    _create_launches()
    _create_observations()


def downgrade() -> None:
    """Launches and observations are forgotten."""
    op.drop_table("observations")
    op.drop_table("launches")
    op.drop_table("given_answers")
    op.drop_index(op.f("ix_plans_last_used_at"), "plans")
    op.drop_index(op.f("ix_plans_previous_plan_id"), "plans")
    op.drop_constraint(op.f("fk_plans_previous_plan_id"), "plans", type_="foreignkey")
    op.drop_column("plans", "last_used_at")
    op.drop_column("plans", "previous_plan_id")


def _extend_plans() -> None:
    op.add_column("plans", sa.Column("previous_plan_id", sa.Text(), nullable=True))
    op.add_column("plans", _time("last_used_at"))
    op.execute(
        """
        UPDATE plans SET previous_plan_id = request->>'previous_plan_id'
        WHERE request->>'previous_plan_id' IN (SELECT plan_id FROM plans)
        """
    )
    op.create_foreign_key(op.f("fk_plans_previous_plan_id"), "plans", "plans", ["previous_plan_id"], ["plan_id"])
    op.create_index(op.f("ix_plans_previous_plan_id"), "plans", ["previous_plan_id"])
    op.create_index(op.f("ix_plans_last_used_at"), "plans", ["last_used_at"])


def _create_given_answers() -> None:
    op.create_table(
        "given_answers",
        sa.Column("plan_id", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("answer", postgresql.JSON(), nullable=False),
        _time("created_at"),
        sa.ForeignKeyConstraint(["plan_id"], ["plans.plan_id"], name=op.f("fk_given_answers_plan_id")),
        sa.PrimaryKeyConstraint("plan_id", "digest", name=op.f("pk_given_answers")),
    )


def _create_launches() -> None:
    op.create_table(
        "launches",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("launch_id", sa.Text(), nullable=False),
        sa.Column("request_hash", sa.Text(), nullable=False),
        sa.Column("plan_id", sa.Text(), nullable=True),
        sa.Column("digest", sa.Text(), nullable=True),
        sa.Column("claimed_by", sa.Text(), nullable=False),
        sa.Column("claimed_until", sa.DateTime(timezone=True), nullable=False),
        _time("last_used_at"),
        sa.CheckConstraint("(plan_id IS NULL) = (digest IS NULL)", name=op.f("ck_launches_answer_whole")),
        _given_answer("launches"),
        sa.PrimaryKeyConstraint("key", "launch_id", "request_hash", name=op.f("pk_launches")),
    )
    op.create_index(op.f("ix_launches_plan_id"), "launches", ["plan_id"])
    op.create_index(op.f("ix_launches_last_used_at"), "launches", ["last_used_at"])


def _create_observations() -> None:
    op.create_table(
        "observations",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("plan_id", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("launch_id", sa.Text(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("start_step", sa.BigInteger(), nullable=False),
        sa.Column("stop_step", sa.BigInteger(), nullable=False),
        sa.Column("forward_compute_ms", sa.Double(), nullable=False),
        sa.Column("backward_compute_ms", sa.Double(), nullable=False),
        sa.Column("forward_comm_ms", sa.Double(), nullable=True),
        sa.Column("backward_comm_ms", sa.Double(), nullable=True),
        sa.Column("total_ms", sa.Double(), nullable=True),
        sa.Column("environment", postgresql.JSONB(), nullable=False),
        _time("observed_at"),
        sa.CheckConstraint("rank >= 0", name=op.f("ck_observations_rank_not_negative")),
        sa.CheckConstraint("0 <= start_step AND start_step < stop_step", name=op.f("ck_observations_steps_ascend")),
        *map(_finite, ("forward_compute_ms", "backward_compute_ms", "forward_comm_ms", "backward_comm_ms", "total_ms")),
        _given_answer("observations"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_observations")),
        sa.UniqueConstraint(
            "plan_id",
            "launch_id",
            "rank",
            "start_step",
            "stop_step",
            name=op.f("uq_observations_plan_id_launch_id_rank_start_step_stop_step"),
        ),
    )
    op.create_index(op.f("ix_observations_observed_at"), "observations", ["observed_at"])


def _time(name: str) -> sa.Column[datetime]:
    return sa.Column(name, sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False)


def _finite(column: str) -> sa.CheckConstraint:
    return sa.CheckConstraint(f"{column} >= 0 AND {column} < 'Infinity'", name=op.f(f"ck_observations_{column}_finite"))


def _given_answer(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        ["plan_id", "digest"],
        ["given_answers.plan_id", "given_answers.digest"],
        name=op.f(f"fk_{table}_plan_id_digest"),
    )
