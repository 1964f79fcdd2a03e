"""The resource /plans: which plans there are, and each of them."""

from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response

from service.api.answers import PlanAnswer, PlanDiffAnswer, PlansAnswer, UnderWayAnswer
from service.api.entity_tags import tagged
from service.api.paging import NEXT_LINK, PageLimit, cursor_schema, linked
from service.api.plan_listing import CURSOR_PATTERN
from service.api.prefer import UNDER_WAY_HEADERS, under_way
from service.api.routes import Given, PlanCaller, json_response, problem_responses

router = APIRouter(tags=["plans"])
"""Of the resource of this file."""

IfNoneMatch = Annotated[str | None, Header(description="ETags of answers that the caller has; `*` for any.")]

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


@router.get(
    "/plans/{plan_id}",
    operation_id="getPlan",
    summary="A stored plan",
    response_model=PlanAnswer,
    responses=problem_responses(
        {
            404: "No plan is stored under this id.",
            410: "The plan was being made as `Prefer: respond-async` wanted it, and was cancelled, since nobody looked "
            "for it, or lost: ask again.",
            422: "It was being made so, and there is no such plan, or none was found in time.",
            503: "The database is away, see Retry-After.",
        }
    )
    | {
        202: {"model": UnderWayAnswer, "description": "It is being made still.", "headers": UNDER_WAY_HEADERS},
        200: {"headers": {"ETag": {"description": "Of this answer.", "schema": {"type": "string"}}}},
        304: {"description": "The caller has the answer: If-None-Match named its ETag."},
    },
)
def get_plan(caller: PlanCaller, plan_id: str, services: Given, if_none_match: IfNoneMatch = None) -> Response:
    """The answer as it was given when the plan was made, to who asked for it and to keys with the scope admin.

    Of a plan that is being made for the caller, as `Prefer: respond-async` wants it, that it is, or for ten minutes why
    it was not made.
    """
    answer = services.planning.stored(plan_id, caller)
    if isinstance(answer, UnderWayAnswer):
        return under_way(answer, begun=False)
    response = json_response(answer)
    # It may be kept by who got it, and is to be asked for again: it may have given way to a better one.
    response.headers["Cache-Control"] = "private, no-cache"
    return tagged(response, if_none_match)


@router.delete(
    "/plans/{plan_id}",
    operation_id="deletePlan",
    summary="Give up a stored plan",
    status_code=204,
    response_class=Response,
    responses=problem_responses(
        {404: "No plan is stored under this id.", 503: "The database is away, see Retry-After."}
    )
    | {204: {"description": "The plan is not there any more for the caller."}},
)
def delete_plan(caller: PlanCaller, plan_id: str, services: Given) -> Response:
    """Takes the plan and the launches that it was given to from the caller; with the scope admin, from everyone.

    One that is being made for the caller is cancelled.

    Its data go with the last who has it, but while it was observed, or another plan moved from it: then only keys with
    the scope admin find it, until retention deletes it.
    """
    services.planning.delete(plan_id, caller)
    return Response(status_code=204)


@router.get(
    "/plans/{from_plan_id}/diff/{to_plan_id}",
    operation_id="diffPlans",
    summary="What moves between two stored plans",
    response_model=PlanDiffAnswer,
    responses=problem_responses(
        {404: "No plan is stored under one of the ids, which is named.", 503: "The database is away, see Retry-After."}
    ),
)
def get_plan_diff(caller: PlanCaller, from_plan_id: str, to_plan_id: str, services: Given) -> Response:
    """Columns that come to a device which did not have them, bytes by device, and what the plans cost."""
    return json_response(services.planning.diff(from_plan_id, to_plan_id, caller))
