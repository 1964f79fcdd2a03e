"""The plans that are there for a caller, page by page."""

from datetime import UTC, datetime, timedelta

from service.api.answers import ListedPlanAnswer, PlansAnswer
from service.api.paging import page
from service.domain.callers import Caller
from service.domain.ports import ListedPlan, PlanIndex, PlanPlace

CURSOR_PATTERN = r"^[0-9]{1,16}-[0-9a-f]{32}$"
PAGE = 100
"""Plans on a page where the caller does not say how many."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class PlanListing:
    """The answers to GET /plans; blocks the calling thread."""

    def __init__(self, index: PlanIndex) -> None:
        """Lists what an index has."""
        self._index = index

    def listed(self, limit: str | None, cursor: str | None, caller: Caller) -> PlansAnswer:
        """The caller's plans, or everyone's where the caller sees all, the newest first, page by page.

        Args:
            limit: most of them, as it was given; None for ``PAGE``.
            cursor: where the page before ended, as it said.
            caller: who asks.

        Raises:
            InvalidRequest: limit or cursor is not valid.
            StorageUnavailable: the database cannot be reached.
        """
        most = page(limit, cursor, CURSOR_PATTERN, PAGE)
        # One more than is shown says whether there are more.
        found = self._index.listed(caller, _place(cursor) if cursor else None, most + 1)
        shown = found[:most]
        return PlansAnswer(
            plans=[_answer(plan) for plan in shown],
            next_cursor=_cursor(shown[-1].place) if len(found) > most else None,
        )


def _answer(plan: ListedPlan) -> ListedPlanAnswer:
    return ListedPlanAnswer(
        plan_id=plan.place.plan_id,
        created_at=plan.place.created_at,
        hardware=plan.hardware,
        algorithm=plan.algorithm,
        status=plan.status,
        max_cost_ms=plan.max_cost_ms,
    )


def _cursor(place: PlanPlace) -> str:
    return f"{(place.created_at - _EPOCH) // _MICROSECOND}-{place.plan_id}"


def _place(cursor: str) -> PlanPlace:
    microseconds, _, plan_id = cursor.partition("-")
    return PlanPlace(_EPOCH + int(microseconds) * _MICROSECOND, plan_id)
