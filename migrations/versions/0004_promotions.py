"""Which version of a model serves: every decision, in order."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0004"
down_revision: str | None = "0003"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None

_TABLE = "promotions"


def upgrade() -> None:
    op.create_table(
        _TABLE,
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("hardware", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("version_number", sa.Integer(), nullable=True),
        sa.Column(
            "promoted_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.Column("promoted_by", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("comparison", postgresql.JSONB(), nullable=True),
        sa.Column("undoes", sa.BigInteger(), nullable=True),
        sa.CheckConstraint("version_number > 0", name=op.f(f"ck_{_TABLE}_version_number_positive")),
        sa.CheckConstraint("undoes < id", name=op.f(f"ck_{_TABLE}_undoes_an_earlier_one")),
        sa.ForeignKeyConstraint(["undoes"], [f"{_TABLE}.id"], name=op.f(f"fk_{_TABLE}_undoes")),
        sa.PrimaryKeyConstraint("id", name=op.f(f"pk_{_TABLE}")),
        sa.UniqueConstraint("undoes", name=op.f(f"uq_{_TABLE}_undoes")),
    )
    op.create_index(op.f(f"ix_{_TABLE}_hardware_model_id"), _TABLE, ["hardware", "model", "id"])


def downgrade() -> None:
    op.drop_table(_TABLE)
