"""The resource /profiles: tables that are measured on the worker pool."""

from fastapi import APIRouter, Response

from service.api.profile_answers import ProfilesAnswer
from service.api.routes import BODY_PROBLEMS, Body, Given, Once, PlanCaller, json_response, problem_responses, takes

router = APIRouter(tags=["profiles"])


@router.post(
    "/profiles",
    operation_id="requestProfiles",
    summary="Have tables measured",
    response_model=ProfilesAnswer,
    status_code=202,
    responses=problem_responses(
        {
            422: "Not valid or not supported: the problem's type says which.",
            429: "More requests than the key may make, or more new tables than the caller may have measured today, see "
            "Retry-After; nothing was queued.",
        }
        | BODY_PROBLEMS
        | {503: "No live worker serves the hardware, no room for now, or the database is away, see Retry-After."}
    )
    | {202: {"description": "Queued, once however many ask; Location has where to look."}},
    openapi_extra=takes("ProfilesRequest"),
)
def post_profiles(caller: PlanCaller, body: Body, services: Given, once: Once) -> Response:
    """Each table alone, at its width, half and a quarter of it; what is known already is not measured again.

    POST /plan and POST /estimate do the same by themselves for tables unlike those measured, where a live worker serves
    the hardware; their answers do not wait for it, nor tell of it: ask here with the same tables, or again later.
    """
    return once(caller, body, lambda: _queued(services.profiles.request(body.content, caller)))


def _queued(answer: ProfilesAnswer) -> Response:
    response = json_response(answer, 202)
    response.headers["Location"] = f"/profiles/{answer.request_id}"
    return response


@router.get(
    "/profiles/{request_id}",
    operation_id="getProfiles",
    summary="What became of tables to be measured",
    response_model=ProfilesAnswer,
    responses=problem_responses(
        {404: "No request is stored under this id.", 503: "The database is away, see Retry-After."}
    ),
)
def get_profiles(caller: PlanCaller, request_id: str, services: Given) -> Response:
    """Progress, and for each table its results or why it could not be measured."""
    return json_response(services.profiles.progress(request_id, caller))
