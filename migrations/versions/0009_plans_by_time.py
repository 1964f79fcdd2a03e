"""Plans are listed by time."""

from collections.abc import Sequence

from alembic import op

revision: str = "0009"
down_revision: str | None = "0008"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None


def upgrade() -> None:
    """Writes to plans wait while the index is made."""
    op.create_index("ix_plans_created_at_plan_id", "plans", ["created_at", "plan_id"])


def downgrade() -> None:
    """Listing plans sorts all of them again."""
    op.drop_index("ix_plans_created_at_plan_id", "plans")
