"""Start delays of exchanges, and their forward part told apart into wait and transfer."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0002"
down_revision: str | None = "0001"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None

_TABLE = "communication_measurements"
_NEW = ("start_delays_ms", "forward_wait_ms", "forward_transfer_ms")


def upgrade() -> None:
    """Until now all ranks started together: no delays, no waits, and all of the forward time is transfer."""
    _drop_checks("one_entry_a_rank", "forward_ms_finite")
    _add_columns(*_NEW)
    op.execute(
        """
        UPDATE communication_measurements
        SET start_delays_ms = array_fill(0::double precision, ARRAY[cardinality(widths)]),
            forward_wait_ms = array_fill(0::double precision, ARRAY[cardinality(widths)]),
            forward_transfer_ms = forward_ms
        """
    )
    _require(*_NEW)
    op.drop_column(_TABLE, "forward_ms")
    _check_entries(*_NEW, "backward_ms")
    _check_durations(*_NEW)


def downgrade() -> None:
    """Forward is the transfer, as of ranks that start together; when each rank started is forgotten."""
    _drop_checks("one_entry_a_rank", *(f"{column}_finite" for column in _NEW))
    _add_columns("forward_ms")
    op.execute("UPDATE communication_measurements SET forward_ms = forward_transfer_ms")
    _require("forward_ms")
    for column in _NEW:
        op.drop_column(_TABLE, column)
    _check_entries("forward_ms", "backward_ms")
    _check_durations("forward_ms")


# Columns are added and dropped, not renamed: Postgres 18 names a NOT NULL constraint after the column as it was.
def _add_columns(*columns: str) -> None:
    for column in columns:
        op.add_column(_TABLE, sa.Column(column, postgresql.ARRAY(sa.Double()), nullable=True))


def _require(*columns: str) -> None:
    for column in columns:
        op.alter_column(_TABLE, column, nullable=False)


def _drop_checks(*names: str) -> None:
    for name in names:
        op.drop_constraint(op.f(f"ck_{_TABLE}_{name}"), _TABLE, type_="check")


def _check_entries(*columns: str) -> None:
    condition = " AND ".join(f"cardinality(widths) = cardinality({column})" for column in columns)
    op.create_check_constraint(op.f(f"ck_{_TABLE}_one_entry_a_rank"), _TABLE, condition)


def _check_durations(*columns: str) -> None:
    for column in columns:
        condition = f"0 <= ALL ({column}) AND 'Infinity' > ALL ({column})"
        op.create_check_constraint(op.f(f"ck_{_TABLE}_{column}_finite"), _TABLE, condition)
