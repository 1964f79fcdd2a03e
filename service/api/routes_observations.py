"""The resource /plans/{plan_id}/observations."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from service.api.observation_answers import PostedObservationsAnswer, StoredObservationsAnswer
from service.api.observing import CURSOR_PATTERN
from service.api.paging import NEXT_LINK, PageLimit, cursor_schema, linked
from service.api.routes import BODY_PROBLEMS, Body, Given, ObserveCaller, Once, json_response, problem_responses, takes

router = APIRouter(tags=["observations"])
"""Of the resource of this file."""

_Cursor = Annotated[
    str | None, cursor_schema(CURSOR_PATTERN), Query(description="The `next_cursor` of the page before.")
]


@router.post(
    "/plans/{plan_id}/observations",
    operation_id="postObservations",
    summary="What a launcher measured while a plan ran",
    status_code=201,
    response_model=PostedObservationsAnswer,
    responses=problem_responses(
        {404: "No plan is stored under this id.", 422: "Not valid."}
        | BODY_PROBLEMS
        | {503: "No room for now, or the database is away, see Retry-After."}
    ),
    openapi_extra=takes("ObservationsRequest"),
)
def post_observations(caller: ObserveCaller, plan_id: str, body: Body, services: Given, once: Once) -> Response:
    """Stores times by rank and step range, each once, and answers with what was predicted beside them."""
    observing = services.observing
    return once(caller, body, lambda: json_response(observing.post(plan_id, body.content, caller), 201))


@router.get(
    "/plans/{plan_id}/observations",
    operation_id="getObservations",
    summary="What was measured of a plan",
    response_model=StoredObservationsAnswer,
    responses=problem_responses(
        {
            404: "No plan is stored under this id.",
            422: "limit or cursor is not valid.",
            503: "The database is away, see Retry-After.",
        }
    )
    | {200: {"headers": NEXT_LINK}},
)
def get_observations(
    caller: ObserveCaller,
    plan_id: str,
    services: Given,
    request: Request,
    limit: PageLimit = None,
    cursor: _Cursor = None,
) -> Response:
    """The plan's observations, as far as they are there for the caller, beside what was predicted.

    In the order of storing, 1,000 at most at a time.
    """
    answer = services.observing.stored(plan_id, limit, cursor, caller)
    return linked(json_response(answer), request, answer.next_cursor)
