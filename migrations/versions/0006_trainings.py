"""What trainings of the service's own came to."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0006"
down_revision: str | None = "0005"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None

_TABLE = "trainings"


def upgrade() -> None:
    op.create_table(
        _TABLE,
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("hardware", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("trained", sa.Text(), nullable=True),
        sa.Column("serving", sa.Text(), nullable=True),
        sa.Column("comparison", postgresql.JSONB(), nullable=True),
        sa.Column("basis", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "outcome IN ('promoted', 'refused', 'failed', 'nothing_new')", name=op.f(f"ck_{_TABLE}_outcome_known")
        ),
        sa.CheckConstraint(
            "(trained IS NOT NULL) = (outcome = 'promoted')", name=op.f(f"ck_{_TABLE}_promoted_was_trained")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f(f"pk_{_TABLE}")),
    )
    op.create_index(op.f(f"ix_{_TABLE}_hardware_model_id"), _TABLE, ["hardware", "model", "id"])


def downgrade() -> None:
    op.drop_table(_TABLE)
