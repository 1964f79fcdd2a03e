"""The resources /plan, /estimate, /healthz, /readyz and /metrics, and what all resources share."""

import threading
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel

from service.api.access import Access
from service.api.answers import (
    EstimateAnswer,
    HealthAnswer,
    PlanAnswer,
    ReadinessAnswer,
    UnderWayAnswer,
    answer_json,
)
from service.api.body import BodyAdmission, BodyLimits, ReceivedBody, receive_body
from service.api.idempotency import IdempotencyKey, IdempotentCalls
from service.api.leaving import waiting_client
from service.api.making import Answer
from service.api.model_resources import ModelResources
from service.api.observing import Observing
from service.api.plan_listing import PlanListing
from service.api.planning import Planning
from service.api.prefer import BEGUN_HEADERS, Prefer, under_way, wait_of
from service.api.problems import MEDIA_TYPE
from service.api.profiling import ProfileDesk
from service.api.readiness import Check
from service.domain.callers import Caller, Scope
from service.domain.waiting import PATIENT, Waiting
from service.telemetry.metrics import CONTENT_TYPE, Metrics
from service.telemetry.middleware import note_caller

PROBLEM_CONTENT = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}


@dataclass(frozen=True, slots=True)
class Services:
    """What the resources work with.

    Attributes:
        access: tells who calls, and what they may.
        planning: answers questions.
        plan_listing: tells which plans there are.
        models: tells which versions there are and which serve, and changes it.
        observing: takes what launchers measured.
        profiles: answers about tables to be measured.
        metrics: of this service.
        checks: each part of readiness by name.
        keyed_calls: makes calls under an Idempotency-Key once.
        body_limits: of request bodies.
        bodies: room for them.
        threads: requests that are worked on at the same time, those that wait for a planning process included.
        stopping: set once the process is to stop.
    """

    access: Access
    planning: Planning
    plan_listing: PlanListing
    models: ModelResources
    observing: Observing
    profiles: ProfileDesk
    metrics: Metrics
    checks: Mapping[str, Callable[[], Check]]
    keyed_calls: IdempotentCalls
    body_limits: BodyLimits
    bodies: BodyAdmission
    threads: int
    stopping: threading.Event = field(default_factory=threading.Event)


def _services(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


Given = Annotated[Services, Depends(_services)]


def _with(scope: Scope) -> Any:
    async def admitted(request: Request, services: Given) -> Caller:
        caller = await services.access.admitted(request.scope["headers"], scope)
        note_caller(request.scope, caller.name, caller.key_id)
        return caller

    return Depends(admitted)


# First among the parameters of an operation: nothing else of a request is looked at before its caller is let in.
PlanCaller = Annotated[Caller, _with(Scope.PLAN)]
ObserveCaller = Annotated[Caller, _with(Scope.OBSERVE)]
AdminCaller = Annotated[Caller, _with(Scope.ADMIN)]


async def _body(request: Request, services: Given) -> AsyncIterator[ReceivedBody]:
    with services.bodies.admitted():
        yield await receive_body(request, services.body_limits)


# Within the function only: a client that does not read its answer must not keep the room.
Body = Annotated[ReceivedBody, Depends(_body, scope="function")]


@dataclass(frozen=True, slots=True)
class OneCall:
    """A call that is made once where it has an Idempotency-Key."""

    request: Request
    keyed_calls: IdempotentCalls
    key: str | None

    def __call__(self, caller: Caller, body: ReceivedBody, make: Callable[[], Response]) -> Response:
        """Makes the call, or gives the answer again that it got under the same key."""
        return self.keyed_calls.answer(self.key, caller, self.request, body.content, make)


def _once(request: Request, services: Given, idempotency_key: IdempotencyKey = None) -> OneCall:
    return OneCall(request, services.keyed_calls, idempotency_key)


Once = Annotated[OneCall, Depends(_once)]

router = APIRouter()
"""Of the resources of this file."""


def problem_responses(statuses: Mapping[int, str]) -> dict[int | str, dict[str, Any]]:
    """Descriptions of problems by status, for the OpenAPI document."""
    return {status: {"description": text, "content": PROBLEM_CONTENT} for status, text in statuses.items()}


def takes(*models: str) -> dict[str, Any]:
    """The body that an operation takes, one of some schemas, for the OpenAPI document."""
    refs = [{"$ref": f"#/components/schemas/{model}"} for model in models]
    schema = refs[0] if len(refs) == 1 else {"oneOf": refs}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


BODY_PROBLEMS = {
    408: "The body took too long.",
    413: "The body is too large.",
    409: "The first call under this Idempotency-Key runs still, or its answer is lost: the problem's type says which.",
    415: "The body is not JSON.",
    503: "No room for now, see Retry-After.",
}
"""What can be wrong with any body."""


# Parsing and planning run in threads, as the functions below do that are not async: they never hold up the event loop.


@router.post(
    "/plan",
    operation_id="makePlan",
    tags=["plans"],
    summary="Plan where tables go",
    response_model=PlanAnswer,
    responses=problem_responses(
        {
            404: "No plan is stored under previous_plan_id.",
            410: "Its making, as `Prefer: respond-async` wanted it, was given up or ended with the service meanwhile.",
            422: "Not valid, not supported, infeasible, or no plan in time: the problem's type says which.",
        }
        | BODY_PROBLEMS
        | {
            503: "No room for now, or another process makes the plan of this launch_id still, or the database that has "
            "it, or previous_plan_id, or that respond-async needs, is away, or the models are: the problem's type says "
            "which."
        }
    )
    | {
        202: {
            "model": UnderWayAnswer,
            "description": "It is being made, as `Prefer: respond-async` wants it; Location has where to look.",
            "headers": BEGUN_HEADERS,
        }
    },
    openapi_extra=takes("PlanRequest"),
)
async def post_plan(
    request: Request, caller: PlanCaller, body: Body, services: Given, once: Once, prefer: Prefer = None
) -> Response:
    """Places tables, or column slices of them, on devices; the same question gets the stored plan.

    A plan is cancelled where its caller hangs up, unless others wait for it too, or it is that of a launch or has an
    Idempotency-Key.
    """
    planning = services.planning
    given = planning.plan_given_before(body.content, caller) if once.key is None else None
    if given is not None:
        return _json(given)

    def planned(waiting: Waiting) -> Response:
        return once(caller, body, lambda: json_response(planning.plan(body.content, body.arrived, caller, waiting)))

    within_s = wait_of(request)
    if within_s is not None:
        return await run_in_threadpool(
            once,
            caller,
            body,
            lambda: _planned(planning.plan_in_background(body.content, body.arrived, caller, within_s)),
        )
    if once.key is not None:
        # Who gives a call a key means to come back for its answer.
        return await run_in_threadpool(planned, PATIENT)
    async with waiting_client(request) as client:
        return await run_in_threadpool(planned, client)


@router.post(
    "/estimate",
    operation_id="estimatePlan",
    tags=["plans"],
    summary="Price a placement",
    response_model=EstimateAnswer,
    responses=problem_responses(
        {
            404: "No plan is stored under plan_id.",
            422: "Not valid, not supported, or not in time: the problem's type says which.",
        }
        | BODY_PROBLEMS
        | {503: "No room for now, or the database or the models are away: the problem's type says which."}
    ),
    openapi_extra=takes("ShardsEstimateRequest", "StoredEstimateRequest"),
)
async def post_estimate(caller: PlanCaller, body: Body, services: Given, once: Once) -> Response:
    """Prices given shards, or those of a stored plan, with the cost models of today."""
    estimates = services.planning.estimates
    given = estimates.given_before(body.content, caller) if once.key is None else None
    if given is not None:
        return _json(given)
    return await run_in_threadpool(once, caller, body, lambda: json_response(estimates.answer(body.content, caller)))


@router.get("/healthz", operation_id="getHealth", tags=["operation"], summary="Whether the process is alive")
async def get_health() -> HealthAnswer:
    """Looks at nothing else."""
    return HealthAnswer(status="ok")


@router.get(
    "/readyz",
    operation_id="getReadiness",
    tags=["operation"],
    summary="Whether models are loaded and the database is reachable",
    response_model=ReadinessAnswer,
    responses={503: {"model": ReadinessAnswer, "description": "Something is missing."}},
)
def get_readiness(services: Given) -> Response:
    """Each part, and what is missing."""
    checks = {name: check() for name, check in services.checks.items()}
    if services.stopping.is_set():
        checks["process"] = Check(False, "stopping")
    ready = all(check.usable for check in checks.values())
    states = {name: check.state for name, check in checks.items()}
    return json_response(ReadinessAnswer(ready=ready, checks=states), 200 if ready else 503)


@router.get(
    "/metrics",
    operation_id="getMetrics",
    tags=["operation"],
    summary="Metrics for Prometheus",
    response_class=Response,
    responses={200: {"description": "Text format.", "content": {"text/plain": {"schema": {"type": "string"}}}}},
)
def get_metrics(services: Given) -> Response:
    """All metrics of this service, and those of the queue and of trainings as the database has them now."""
    return Response(services.metrics.exposition(), media_type=CONTENT_TYPE)


def _planned(answer: Answer | UnderWayAnswer) -> Response:
    return under_way(answer, begun=True) if isinstance(answer, UnderWayAnswer) else json_response(answer)


def json_response(answer: BaseModel | Mapping[str, Any], status: int = 200) -> Response:
    """An answer as JSON."""
    return _json(answer_json(answer), status)


def _json(content: bytes, status: int = 200) -> Response:
    return Response(content, status, media_type="application/json")
