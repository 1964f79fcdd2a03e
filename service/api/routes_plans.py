"""The resource /plans: which plans there are."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from service.api.answers import PlansAnswer
from service.api.paging import NEXT_LINK, PageLimit, cursor_schema, linked
from service.api.plan_listing import CURSOR_PATTERN
from service.api.routes import Given, PlanCaller, json_response, problem_responses

router = APIRouter(tags=["plans"])
"""Of the resource of this file."""

_Cursor = Annotated[
    str | None, cursor_schema(CURSOR_PATTERN), Query(description="The `next_cursor` of the page before.")
]


@router.get(
    "/plans",
    operation_id="listPlans",
    summary="Stored plans",
    response_model=PlansAnswer,
    responses=problem_responses({422: "limit or cursor is not valid.", 503: "The database is away, see Retry-After."})
    | {200: {"headers": NEXT_LINK}},
)
def list_plans(
    caller: PlanCaller, request: Request, services: Given, limit: PageLimit = None, cursor: _Cursor = None
) -> Response:
    """The caller's own plans, with the scope admin everyone's: the newest first, 100 at a time unless `limit` says."""
    answer = services.plan_listing.listed(limit, cursor, caller)
    return linked(json_response(answer), request, answer.next_cursor)
