"""Profiles and requests for them may be pruned: when a request was last asked, and what pruned profiles came to."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0007"
down_revision: str | None = "0006"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None

_TABLE = "pruned_profiles"


def upgrade() -> None:
    # With a default of now() no row is written anew: all were last asked at the time of the upgrade.
    op.add_column(
        "profile_requests",
        sa.Column("last_asked_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
    )
    op.create_table(
        _TABLE,
        sa.Column("hardware", sa.Text(), nullable=False),
        sa.Column("measured", sa.BigInteger(), nullable=False),
        sa.Column("failures", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("hardware", name=op.f(f"pk_{_TABLE}")),
    )


def downgrade() -> None:
    op.drop_table(_TABLE)
    op.drop_column("profile_requests", "last_asked_at")
