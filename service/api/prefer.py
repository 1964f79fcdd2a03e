"""The ``Prefer`` header (RFC 7240): callers that would rather come back than wait."""

import re
from typing import Annotated, Final

from fastapi import Header, Request, Response

from service.api.answers import UnderWayAnswer, answer_json
from service.api.idempotency import Begun

Prefer = Annotated[
    str | None,
    Header(
        openapi_examples={"later": {"value": "respond-async"}, "soon": {"value": "respond-async, wait=2"}},
        description="`respond-async`: a plan that is not there yet is answered 202, with a Location to look at; with "
        "`wait=N` besides only where it is not there within N seconds, or under way already (RFC 7240). Its time limit "
        "begins when a planning process takes it. It is cancelled where nobody looks for as long as the answer says. "
        "Needs the database. With a launch_id it makes no difference.",
    ),
]

APPLIED: Final = "respond-async"
RETRY_AFTER_S: Final = 1
"""Seconds after which a plan that is being made is worth another look."""

_WAIT = re.compile(r"wait\s*=\s*\"?([0-9]{1,9})\"?")

UNDER_WAY_HEADERS: Final = {
    "Retry-After": {"description": "Seconds until it is worth another look.", "schema": {"type": "integer"}},
}
"""For the OpenAPI document: headers of the answer that a plan is being made."""

BEGUN_HEADERS: Final = UNDER_WAY_HEADERS | {
    "Location": {"description": "Where the plan will be: `/plans/{plan_id}`.", "schema": {"type": "string"}},
    "Preference-Applied": {"description": "`respond-async`.", "schema": {"type": "string"}},
}
"""For the OpenAPI document: headers of the answer to who begins it."""


def wait_of(request: Request) -> float | None:
    """Seconds after which a caller would rather come back than wait; None for one who waits."""
    preferences = [
        part.split(";")[0].strip().lower() for part in ",".join(request.headers.getlist("prefer")).split(",")
    ]
    if APPLIED not in preferences:
        return None
    # Of a preference that is named twice the first counts.
    waits = (_WAIT.fullmatch(preference) for preference in preferences)
    return next((float(found[1]) for found in waits if found), 0.0)


def under_way(answer: UnderWayAnswer, begun: bool) -> Response:
    """The answer that a plan is being made, to who begins it or to who looks at it."""
    headers = {"Retry-After": str(RETRY_AFTER_S)}
    if begun:
        headers |= {"Location": f"/plans/{answer.plan_id}", "Preference-Applied": APPLIED}
    return Begun(answer_json(answer), 202, headers, "application/json")
