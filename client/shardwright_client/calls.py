"""The calls that the service takes, as values.

Each may be sent again when it is not known whether it ran: plans and estimates are told by a hash of their content,
a table is queued once however many ask, of observations the first under a launch, rank and step range stays, and what
is deleted stays deleted. So none is sent under an Idempotency-Key that the caller did not give: the service would need
its database even where it can plan without. A call of which that is not true must not be added here without a way to
tell it apart.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from urllib.parse import urlencode

from shardwright_client.errors import InvalidArgument
from shardwright_client.json_values import Answer, Json, encoded
from shardwright_client.observations import ObservationsRequest, PostedObservations
from shardwright_client.plans import (
    Estimate,
    Plan,
    PlanRequest,
    PlansPage,
    ShardsEstimateRequest,
    StoredEstimateRequest,
)
from shardwright_client.profiles import Profiles, ProfilesRequest

Result = TypeVar("Result", bound=Answer)

_ID = re.compile(r"[A-Za-z0-9_-]+")
_IDEMPOTENCY_KEY = re.compile(r"[!-~]{1,255}")


@dataclass(frozen=True, slots=True)
class Call(Generic[Result]):
    """One question.

    Attributes:
        method: of HTTP.
        path: below the service's address, with its query.
        answer: what comes back.
        body: as JSON; None where there is none.
        planning_s: time that the service was given for it, seconds.
        idempotency_key: the caller's own name for it; None where it has none.
    """

    method: str
    path: str
    answer: type[Result]
    body: Json | None = None
    planning_s: float = 0.0
    idempotency_key: str | None = None

    def headers(self) -> dict[str, str]:
        """Those of this call alone.

        Raises:
            InvalidArgument: the idempotency key is none.
        """
        own = {} if self.body is None else {"Content-Type": "application/json"}
        if self.idempotency_key is None:
            return own
        if not _IDEMPOTENCY_KEY.fullmatch(self.idempotency_key):
            raise InvalidArgument("idempotency_key must be 1 to 255 visible ASCII characters, for example a UUID")
        return own | {"Idempotency-Key": self.idempotency_key}

    def content(self) -> bytes | None:
        """The body as it is sent.

        Raises:
            InvalidArgument: JSON cannot say it.
        """
        if self.body is None:
            return None
        try:
            return json.dumps(self.body, allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            raise InvalidArgument(f"the body of {self.method} {self.path} is no JSON: {error}") from error


def plan_call(request: PlanRequest | Json, idempotency_key: str | None = None) -> Call[Plan]:
    """POST /plan."""
    body = _body(request)
    limit_ms = body.get("time_limit_ms")
    # What else it may be is for the service to refuse.
    planning_s = limit_ms / 1000 if isinstance(limit_ms, int) and limit_ms > 0 else 0.0
    return Call("POST", "/plan", Plan, body, planning_s, idempotency_key)


def estimate_call(
    request: ShardsEstimateRequest | StoredEstimateRequest | Json, idempotency_key: str | None = None
) -> Call[Estimate]:
    """POST /estimate."""
    return Call("POST", "/estimate", Estimate, _body(request), idempotency_key=idempotency_key)


def get_plan_call(plan_id: str) -> Call[Plan]:
    """GET /plans/{plan_id}."""
    return Call("GET", f"/plans/{_checked_id('plan_id', plan_id)}", Plan)


def list_plans_call(page_size: int, cursor: str | None) -> Call[PlansPage]:
    """GET /plans: a page, after the one that ended with a cursor."""
    after = {} if cursor is None else {"cursor": cursor}
    return Call("GET", f"/plans?{urlencode({'limit': page_size} | after)}", PlansPage)


def delete_plan_call(plan_id: str) -> Call[Answer]:
    """DELETE /plans/{plan_id}, which has no answer but that it is done."""
    return Call("DELETE", f"/plans/{_checked_id('plan_id', plan_id)}", Answer)


def observe_call(
    plan_id: str, request: ObservationsRequest | Json, idempotency_key: str | None = None
) -> Call[PostedObservations]:
    """POST /plans/{plan_id}/observations."""
    path = f"/plans/{_checked_id('plan_id', plan_id)}/observations"
    return Call("POST", path, PostedObservations, _body(request), idempotency_key=idempotency_key)


def profile_call(request: ProfilesRequest | Json, idempotency_key: str | None = None) -> Call[Profiles]:
    """POST /profiles."""
    return Call("POST", "/profiles", Profiles, _body(request), idempotency_key=idempotency_key)


def get_profile_call(request_id: str) -> Call[Profiles]:
    """GET /profiles/{request_id}."""
    return Call("GET", f"/profiles/{_checked_id('request_id', request_id)}", Profiles)


def _body(request: Any) -> Json:
    body = encoded(request)
    if not isinstance(body, Mapping):
        raise InvalidArgument(f"a request is a value of this package or a mapping, not {type(request).__name__}")
    return body


def _checked_id(name: str, value: str) -> str:
    if not isinstance(value, str) or not _ID.fullmatch(value):
        raise InvalidArgument(f"{name} {value!r} is no id: give one that the service has answered")
    return value
