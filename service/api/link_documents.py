"""What the OpenAPI document says of how operations go together: links from an answer to what can be asked with it."""

from collections.abc import Mapping
from typing import Any, Final

_PLAN_ID: Final = "$response.body#/plan_id"
_OF_PLAN: Final[Mapping[str, Mapping[str, Any]]] = {
    "plan": {"operationId": "getPlan", "parameters": {"plan_id": _PLAN_ID}},
    "price": {"operationId": "estimatePlan", "requestBody": {"plan_id": _PLAN_ID}},
    "moves": {"operationId": "diffPlans", "parameters": {"from_plan_id": _PLAN_ID, "to_plan_id": _PLAN_ID}},
    "observe": {"operationId": "postObservations", "parameters": {"plan_id": _PLAN_ID}},
    "observations": {"operationId": "getObservations", "parameters": {"plan_id": _PLAN_ID}},
    "giveUp": {"operationId": "deletePlan", "parameters": {"plan_id": _PLAN_ID}},
}
_MODEL: Final = {"hardware": "$response.body#/models/0/hardware", "model": "$response.body#/models/0/model"}

_LINKS: Final[Mapping[tuple[str, str], Mapping[str, Mapping[str, Any]]]] = {
    ("makePlan", "200"): _OF_PLAN,
    ("makePlan", "202"): {name: _OF_PLAN[name] for name in ("plan", "giveUp")},
    ("getPlan", "202"): {name: _OF_PLAN[name] for name in ("plan", "giveUp")},
    ("getPlan", "200"): {name: link for name, link in _OF_PLAN.items() if name != "plan"},
    ("listPlans", "200"): {
        "next": {"operationId": "listPlans", "parameters": {"cursor": "$response.body#/next_cursor"}},
    },
    ("getObservations", "200"): {
        "next": {
            "operationId": "getObservations",
            "parameters": {"plan_id": _PLAN_ID, "cursor": "$response.body#/next_cursor"},
        }
    },
    ("postObservations", "201"): {"observations": _OF_PLAN["observations"]},
    ("requestProfiles", "202"): {
        "progress": {"operationId": "getProfiles", "parameters": {"request_id": "$response.body#/request_id"}}
    },
    ("getModels", "200"): {"model": {"operationId": "getModel", "parameters": _MODEL}},
}
"""By operation and status."""


def document_links(document: dict[str, Any]) -> None:
    """Adds links to the answers of an OpenAPI document, which is changed in place."""
    for operations in document["paths"].values():
        for operation in operations.values():
            for status, response in operation["responses"].items():
                links = _LINKS.get((operation["operationId"], status))
                if links:
                    response["links"] = {name: dict(link) for name, link in links.items()}
