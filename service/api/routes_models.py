"""The resources under /models."""

from fastapi import APIRouter, Response

from service.api.model_answers import ModelDetailAnswer, ModelsAnswer, PromotionAnswer
from service.api.routes import (
    BODY_PROBLEMS,
    AdminCaller,
    Body,
    Given,
    Once,
    PlanCaller,
    json_response,
    problem_responses,
    takes,
)

router = APIRouter(tags=["models"])
"""Of the resources of this file."""

_DECISION_PROBLEMS = BODY_PROBLEMS | {
    422: "The body is not valid.",
    503: "No room for now, the version is damaged, or the model store or the database is away: the problem's type says "
    "which.",
}


@router.get(
    "/models",
    operation_id="getModels",
    summary="All models",
    response_model=ModelsAnswer,
    responses=problem_responses({503: "The model store cannot be read, see Retry-After."}),
)
def get_models(_: PlanCaller, services: Given) -> Response:
    """The cost models and policies of all hardware, and the version of each that serves."""
    return json_response(services.models.all())


@router.get(
    "/models/{hardware}/{model}",
    operation_id="getModel",
    summary="A model's versions",
    response_model=ModelDetailAnswer,
    responses=problem_responses(
        {404: "There is no such model.", 503: "The database or the model store is away, see Retry-After."}
    ),
)
def get_model(_: PlanCaller, hardware: str, model: str, services: Given) -> Response:
    """What there is of a model, which version serves, and the decisions that led to it."""
    return json_response(services.models.one(hardware, model))


@router.post(
    "/models/{hardware}/{model}/{version}/promote",
    operation_id="promoteModel",
    summary="Have a version serve",
    response_model=PromotionAnswer,
    responses=problem_responses(_DECISION_PROBLEMS | {404: "There is no such version."}),
    openapi_extra=takes("DecisionRequest"),
)
def post_promotion(
    caller: AdminCaller, hardware: str, model: str, version: str, body: Body, services: Given, once: Once
) -> Response:
    """All replicas follow within seconds; the version is its number, or analytic. Where it serves nothing changes."""
    models = services.models
    return once(caller, body, lambda: json_response(models.promote(hardware, model, version, body.content, caller)))


@router.post(
    "/models/{hardware}/{model}/rollback",
    operation_id="rollBackModel",
    summary="Have the version serve that served before",
    response_model=PromotionAnswer,
    responses=problem_responses(
        _DECISION_PROBLEMS
        | {
            404: "There is no such model, or the version is not there any more.",
            409: "No version served before, or the first call under this Idempotency-Key runs still.",
        }
    ),
    openapi_extra=takes("DecisionRequest"),
)
def post_rollback(caller: AdminCaller, hardware: str, model: str, body: Body, services: Given, once: Once) -> Response:
    """Undoes the last promotion; again, the one before that. All replicas follow within seconds."""
    models = services.models
    return once(caller, body, lambda: json_response(models.rollback(hardware, model, body.content, caller)))
