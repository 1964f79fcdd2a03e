"""The application and its OpenAPI document."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

import yaml
from anyio import to_thread
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from service.api import problems, routes, routes_models, routes_observations, routes_plans, routes_profiles
from service.api.access_documents import document_access
from service.api.answers import Problem
from service.api.example_documents import document_examples
from service.api.link_documents import document_links
from service.api.problems import MEDIA_TYPE
from service.api.routes import PROBLEM_CONTENT, Services
from service.api.schemas import (
    DecisionRequest,
    ObservationsRequest,
    PlanRequest,
    ProfilesRequest,
    ShardsEstimateRequest,
    StoredEstimateRequest,
)
from service.api.security_headers import SecurityHeaders
from service.telemetry.middleware import RequestTelemetry

DISTRIBUTION = "shardwright"

_TAGS = {
    "plans": "Where tables go, and what that costs.",
    "observations": "What launchers measured of a plan.",
    "profiles": "Tables that are measured on the worker pool.",
    "models": "Versions of the cost models and policies, and which serve.",
    "operation": "For probes and scrapers.",
}

_SPARE_THREADS = 32


def create_app(services: Services) -> FastAPI:
    """The application over given services."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        # Requests that wait for a planning process must not keep others from their thread.
        to_thread.current_default_thread_limiter().total_tokens = services.threads + _SPARE_THREADS
        yield

    app = _bare_app(lifespan)
    app.state.services = services
    services.metrics.problems_known(problems.kinds())
    app.add_middleware(problems.UnexpectedErrors)
    app.add_middleware(SecurityHeaders)
    app.add_middleware(RequestTelemetry, metrics=services.metrics)
    return app


def openapi_yaml() -> str:
    """The OpenAPI document as YAML."""
    return yaml.safe_dump(_bare_app().openapi(), sort_keys=False, allow_unicode=True, width=120)


class _Api(FastAPI):
    """FastAPI that also documents the bodies that ``parsing`` reads and the problems."""

    def openapi(self) -> dict[str, Any]:
        """The document, made once."""
        if self.openapi_schema is None:
            document = get_openapi(
                title=self.title, version=self.version, summary=self.summary, routes=self.routes, tags=self.openapi_tags
            )
            models: list[type[BaseModel]] = [
                PlanRequest,
                ShardsEstimateRequest,
                StoredEstimateRequest,
                DecisionRequest,
                ObservationsRequest,
                ProfilesRequest,
                Problem,
            ]
            _, found = models_json_schema(
                [(model, "validation") for model in models], ref_template="#/components/schemas/{model}"
            )
            # FastAPI's own validation answers: no parameter here can fail it.
            for path in (
                "/plans/{plan_id}",
                "/plans/{from_plan_id}/diff/{to_plan_id}",
                "/models/{hardware}/{model}",
                "/profiles/{request_id}",
            ):
                for operation in document["paths"][path].values():
                    if MEDIA_TYPE not in operation["responses"].get("422", {}).get("content", {}):
                        operation["responses"].pop("422", None)
            own = {k: v for k, v in document["components"]["schemas"].items() if not k.endswith("ValidationError")}
            schemas = own | found["$defs"]
            document["components"]["schemas"] = dict(sorted(schemas.items()))
            document_access(document, PROBLEM_CONTENT)
            document_links(document)
            document_examples(document)
            self.openapi_schema = document
        return self.openapi_schema


def _bare_app(lifespan: Any = None) -> FastAPI:
    app = _Api(
        title="Shardwright",
        summary="Plans where the embedding tables of a recommendation model go, from measured costs.",
        version=version(DISTRIBUTION),
        lifespan=lifespan,
        redirect_slashes=False,
        redoc_url=None,
        openapi_tags=[{"name": name, "description": text} for name, text in _TAGS.items()],
    )
    for part in (routes, routes_plans, routes_models, routes_observations, routes_profiles):
        app.include_router(part.router)
    problems.install(app)
    return app
