"""Plans that are made while no connection waits for them."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0011"
down_revision: str | None = "0010"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None


def upgrade() -> None:
    """None is made so far."""
    op.create_table(
        "plans_under_way",
        sa.Column("caller", sa.Text(), nullable=False),
        sa.Column("plan_id", sa.Text(), nullable=False),
        sa.Column("claimed_by", sa.Text(), nullable=False),
        sa.Column("claimed_until", sa.DateTime(timezone=True), nullable=False),
        sa.Column("looked_for_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("given_up", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("error", postgresql.JSONB(), nullable=True),
        sa.PrimaryKeyConstraint("caller", "plan_id", name=op.f("pk_plans_under_way")),
    )


def downgrade() -> None:
    """Those that are being made are made to their end, and not found before it."""
    op.drop_table("plans_under_way")
