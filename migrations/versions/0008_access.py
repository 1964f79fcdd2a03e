"""API keys, whose plans and observations are whose, and the record of calls that change the service."""

from collections.abc import Sequence
from datetime import datetime

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0008"
down_revision: str | None = "0007"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None

_OBSERVED = ["launch_id", "rank", "start_step", "stop_step"]
_ONCE, _ONCE_FOR_ALL = "uq_observations_once", "uq_observations_plan_id_launch_id_rank_start_step_stop_step"


def upgrade() -> None:
    """What is stored already belongs to those who asked without a key: everyone so far."""
    _create_api_keys()
    _create_plan_owners()
    _add_observers()
    _create_audit_log()


def downgrade() -> None:
    """Keys, owners and the record are forgotten; of what two have observed alike the first stays."""
    op.drop_table("audit_log")
    _drop_observers()
    op.drop_table("plan_owners")
    op.drop_table("api_keys")


def _create_api_keys() -> None:
    op.create_table(
        "api_keys",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("scopes", postgresql.ARRAY(sa.Text()), nullable=False),
        _time("created_at"),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("last_used_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("requests_per_minute", sa.Integer(), nullable=True),
        sa.Column("burst", sa.Integer(), nullable=True),
        sa.CheckConstraint(
            "scopes <@ ARRAY['plan', 'observe', 'admin'] AND cardinality(scopes) > 0",
            name=op.f("ck_api_keys_scopes_known"),
        ),
        sa.CheckConstraint("name <> 'anonymous'", name=op.f("ck_api_keys_name_not_anonymous")),
        sa.CheckConstraint("requests_per_minute > 0", name=op.f("ck_api_keys_requests_per_minute_positive")),
        sa.CheckConstraint("burst > 0", name=op.f("ck_api_keys_burst_positive")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_keys")),
        sa.UniqueConstraint("hash", name=op.f("uq_api_keys_hash")),
    )


def _create_plan_owners() -> None:
    op.create_table(
        "plan_owners",
        sa.Column("plan_id", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        _time("owned_since"),
        sa.ForeignKeyConstraint(
            ["plan_id"], ["plans.plan_id"], name=op.f("fk_plan_owners_plan_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("plan_id", "owner", name=op.f("pk_plan_owners")),
    )
    op.execute(
        "INSERT INTO plan_owners (plan_id, owner, owned_since) SELECT plan_id, 'anonymous', created_at FROM plans"
    )
    op.create_index(op.f("ix_plan_owners_owner"), "plan_owners", ["owner"])


def _add_observers() -> None:
    # The default is for replicas of the release before, while they change places.
    observer = sa.Column("observer", sa.Text(), server_default="anonymous", nullable=False)
    op.add_column("observations", observer)
    op.drop_constraint(op.f(_ONCE_FOR_ALL), "observations")
    op.create_unique_constraint(op.f(_ONCE), "observations", ["plan_id", "observer", *_OBSERVED])


def _drop_observers() -> None:
    op.drop_constraint(op.f(_ONCE), "observations")
    op.execute(
        """
        DELETE FROM observations AS later USING observations AS first
        WHERE first.id < later.id AND first.plan_id = later.plan_id AND first.launch_id = later.launch_id
            AND first.rank = later.rank AND first.start_step = later.start_step AND first.stop_step = later.stop_step
        """
    )
    op.create_unique_constraint(op.f(_ONCE_FOR_ALL), "observations", ["plan_id", *_OBSERVED])
    op.drop_column("observations", "observer")


def _create_audit_log() -> None:
    op.create_table(
        "audit_log",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_log")),
    )


def _time(name: str) -> sa.Column[datetime]:
    return sa.Column(name, sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False)
