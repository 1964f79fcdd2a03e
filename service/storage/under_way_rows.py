"""The table of plans that are made while no connection waits for them."""

from datetime import datetime

from sqlalchemy import func
from sqlalchemy.orm import Mapped, mapped_column

from service.storage.rows import Json, Row


class PlanUnderWayRow(Row):
    """A plan that is being made for a caller, or why it was not; gone once it is stored."""

    __tablename__ = "plans_under_way"

    caller: Mapped[str] = mapped_column(primary_key=True)
    plan_id: Mapped[str] = mapped_column(primary_key=True)
    claimed_by: Mapped[str]
    # Of one that failed: until when it was made.
    claimed_until: Mapped[datetime]
    looked_for_at: Mapped[datetime] = mapped_column(server_default=func.now())
    given_up: Mapped[bool] = mapped_column(server_default="false")
    error: Mapped[Json | None]
