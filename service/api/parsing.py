"""From the bytes of a body to a checked request, or to every fault in it at once."""

import json
import math
import re
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from service.api.conversion import conversion_faults, posed_problem, posed_profiles, refuse_unmodelled, shard_faults
from service.api.faults import field_faults, is_under
from service.api.observation_conversion import observation_faults
from service.api.schemas import (
    MAX_DEVICES,
    MAX_EXACT_INT,
    DecisionRequest,
    ObservationsRequest,
    PlanRequest,
    ProfilesRequest,
    ShardsEstimateRequest,
    StoredEstimateRequest,
)
from service.domain.errors import Fault, InvalidRequest, escaped
from service.domain.plan import Problem
from service.usecases.validate import problem_faults

Request = TypeVar("Request", bound=BaseModel)
Content = Mapping[str, Any]

_MAX_MEMBERS = 16
"""Only ``constraints.pin`` has more; what else has is refused before its members are reported one by one."""

_SHARDS_PER_TABLE = 8
_NAMES_PER_TABLE = 8

_NAME = re.compile(r"[^\x00\ud800-\udfff]{1,255}")

_STAND_INS: Final[Content] = {
    "devices": {"count": MAX_DEVICES, "memory_bytes": 1, "hardware": "any"},
    "hardware": "any",
    "global_batch_size": 1,
    "optimizer": "sgd",
}
_TABLE_STAND_IN: Final[Content] = {"num_embeddings": 1, "embedding_dim": 4, "pooling_factor": 0.0}


@dataclass(frozen=True, slots=True)
class Limits:
    """What this service takes.

    Attributes:
        default_time_limit_ms: of a request that names none.
        max_time_limit_ms: the largest that may be named.
        max_tables: most tables in one request.
    """

    default_time_limit_ms: int
    max_time_limit_ms: int
    max_tables: int


ONE_AT_A_TIME: Final = threading.Lock()
"""For parsing while others are served: a large body is checked in one call that holds the interpreter."""


class _NotJson(ValueError):
    """A body that is no JSON object; the message says why."""


def parse_plan(body: bytes, limits: Limits) -> PlanRequest:
    """The request in a body of POST /plan, its time limit filled in.

    Raises:
        InvalidRequest: with every fault.
        UnsupportedSharding: it is valid, but asks for what no cost model describes.
    """

    def faults(request: PlanRequest) -> list[Fault]:
        found = conversion_faults(request) + problem_faults(posed_problem(request))
        if (request.time_limit_ms or 0) > limits.max_time_limit_ms:
            found.append(
                Fault("/time_limit_ms", f"must be at most {limits.max_time_limit_ms} (SHARDWRIGHT_MAX_TIME_LIMIT_MS)")
            )
        return found

    request = _validated(PlanRequest, _sized(parse_object(body), limits), faults)
    return request.model_copy(update={"time_limit_ms": request.time_limit_ms or limits.default_time_limit_ms})


def parse_estimate(body: bytes, limits: Limits) -> tuple[ShardsEstimateRequest, Problem] | StoredEstimateRequest:
    """The request in a body of POST /estimate; the presence of ``plan_id`` decides which form it has.

    Raises:
        InvalidRequest: with every fault.
        UnsupportedSharding: it is valid, but asks for what no cost model describes.
    """
    posed: list[Problem] = []

    def faults(request: ShardsEstimateRequest) -> list[Fault]:
        posed.append(posed_problem(request))
        return conversion_faults(request) + shard_faults(request) + problem_faults(posed[-1])

    content = _sized(parse_object(body), limits)
    if "plan_id" in content:
        return _validated(StoredEstimateRequest, content, lambda _: [])
    return _validated(ShardsEstimateRequest, content, faults), posed[-1]


def parse_decision(body: bytes) -> DecisionRequest:
    """The request in a body of a promotion or a rollback.

    Raises:
        InvalidRequest: with every fault.
    """
    return _validated(DecisionRequest, parse_object(body), lambda _: [])


def parse_observations(body: bytes) -> ObservationsRequest:
    """The request in a body of POST /plans/{plan_id}/observations.

    Raises:
        InvalidRequest: with every fault.
    """
    return _validated(ObservationsRequest, parse_object(body), observation_faults)


def parse_profiles(body: bytes, limits: Limits) -> ProfilesRequest:
    """The request in a body of POST /profiles.

    Raises:
        InvalidRequest: with every fault.
        UnsupportedSharding: it is valid, but asks for unpooled lookups.
    """
    content = _sized(parse_object(body), limits)
    return _validated(ProfilesRequest, content, lambda request: problem_faults(posed_profiles(request)))


def parse_object(body: bytes) -> Content:
    """The JSON object in a body.

    Raises:
        InvalidRequest: it is not one JSON object in UTF-8, names a member twice, or holds NaN or an infinity.
    """
    wide, constants = 0, []

    def members(given: list[tuple[str, Any]]) -> Content:
        nonlocal wide
        content = dict(given)
        if len(content) < len(given):
            twice = next(name for name, uses in Counter(name for name, _ in given).items() if uses > 1)
            raise _NotJson(f"a member is given twice: {twice[:80]!a}")
        wide += len(content) > _MAX_MEMBERS
        return content

    def constant(name: str) -> float:
        constants.append(name)
        return float(name)

    if not body.strip():
        raise _unreadable("the body is empty: it must be a JSON object, {} where there is nothing to say")
    try:
        content = json.loads(body.decode(), object_pairs_hook=members, parse_constant=constant)
        if not isinstance(content, dict):
            raise _NotJson("the body must be a JSON object")
        if wide > (_count(_constraint(content, "pin")) > _MAX_MEMBERS):
            raise _NotJson(f"an object has more than {_MAX_MEMBERS} members")
    except UnicodeDecodeError as error:
        raise _unreadable(f"the body is not UTF-8 (byte {error.start})") from error
    except json.JSONDecodeError as error:
        raise _unreadable(f"the body is not JSON: {error}") from error
    except _NotJson as error:
        raise _unreadable(str(error)) from error
    except RecursionError as error:
        raise _unreadable("the body is nested too deeply") from error
    except ValueError as error:
        raise _unreadable("a number in the body has too many digits") from error
    if constants:
        raise InvalidRequest([Fault(at, "NaN and infinities are no JSON numbers") for at in _not_finite(content)])
    return content


def _unreadable(message: str) -> InvalidRequest:
    return InvalidRequest([Fault("", message)])


def _not_finite(content: Content) -> list[str]:
    """Pointers to the numbers that are none, in their order."""
    found, left = [], list[tuple[str, object]]([("", content)])
    while left:
        at, value = left.pop()
        if isinstance(value, dict):
            left += [(f"{at}/{escaped(name)}", member) for name, member in reversed(value.items())]
        elif isinstance(value, list):
            left += [(f"{at}/{i}", item) for i, item in reversed([*enumerate(value)])]
        elif isinstance(value, float) and not math.isfinite(value):
            found.append(at)
    return found


def _sized(content: Content, limits: Limits) -> Content:
    most = limits.max_tables
    counts = [
        ("/tables", most, _count(content.get("tables"))),
        ("/shards", _SHARDS_PER_TABLE * most, _count(content.get("shards"))),
        ("/constraints/pin", most, _count(_constraint(content, "pin"))),
        ("/constraints/colocate", _NAMES_PER_TABLE * most, _count_names(_constraint(content, "colocate"))),
        ("/constraints/separate", _NAMES_PER_TABLE * most, _count_names(_constraint(content, "separate"))),
    ]
    faults = [
        Fault(at, f"at most {limit} are taken, got {count} (SHARDWRIGHT_MAX_TABLES is {most})")
        for at, limit, count in counts
        if count > limit
    ]
    if faults:
        raise InvalidRequest(faults)
    return content


def _constraint(content: Content, field: str) -> object:
    constraints = content.get("constraints")
    return constraints.get(field) if isinstance(constraints, dict) else None


def _count(items: object) -> int:
    return len(items) if isinstance(items, list | dict) else 0


def _count_names(groups: object) -> int:
    """Names in groups; an empty group counts as one."""
    return sum(max(1, _count(group)) for group in groups) if isinstance(groups, list) else 0


def _validated(model: type[Request], content: Content, check: Callable[[Request], list[Fault]]) -> Request:
    try:
        request = _modelled(model, content)
    except ValidationError as error:
        faults = field_faults(error, content)
        raise InvalidRequest(faults + _faults_of_the_rest(model, content, faults, check)) from error
    found = check(request)
    if found:
        raise InvalidRequest(found)
    refuse_unmodelled(request)
    return request


def _modelled(model: type[Request], content: Content) -> Request:
    """The content as a request; 2.0 is a whole number, as JSON Schema has it."""
    try:
        return model.model_validate(content)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False)
        if not any(each["type"] == "int_type" and _whole(each["input"]) is not each["input"] for each in found):
            raise
    return model.model_validate(_whole(content))


def _whole(value: Any) -> Any:
    """A value with integers for the floats in it that are whole, as far as a float tells every integer."""
    if isinstance(value, float):
        return int(value) if abs(value) <= MAX_EXACT_INT and value.is_integer() else value
    if isinstance(value, list):
        return [_whole(item) for item in value]
    return {name: _whole(item) for name, item in value.items()} if isinstance(value, dict) else value


def _faults_of_the_rest(
    model: type[Request], content: Content, known: Sequence[Fault], check: Callable[[Request], list[Fault]]
) -> list[Fault]:
    """Faults between fields that are sound one by one, in a request where other fields are not.

    Stand-ins take the place of what is at fault, so that the rest can be checked; what is found about a stand-in
    is dropped.
    """
    broken = {fault.pointer.split("/")[1] for fault in known if fault.pointer}
    if not isinstance(content.get("tables"), list) or "shards" in broken or not broken:
        return []
    tables = {fault.pointer.split("/")[2] for fault in known if is_under(fault.pointer, "/tables/")}
    sound = {key: content[key] for key in content if key in model.model_fields and key not in broken - {"tables"}}
    stand_ins = {key: value for key, value in _STAND_INS.items() if key in model.model_fields}
    patched = {**stand_ins, **sound, "tables": _patched_tables(content["tables"], tables)}
    try:
        found = check(_modelled(model, patched))
    except ValidationError:
        return []
    replaced = [f"/{key}" for key in broken - {"tables"}] + [f"/tables/{i}" for i in tables]
    if "previous_plan_id" in broken:
        # It is there, whatever is wrong with it.
        replaced.append("/max_moved_bytes")
    return [
        fault
        for fault in found
        if fault.pointer.endswith("/name") or not any(is_under(fault.pointer, prefix) for prefix in replaced)
    ]


def _patched_tables(tables: Sequence[Any], broken: set[str]) -> list[Any]:
    return [
        {**_TABLE_STAND_IN, "name": _readable_name(table) or f"table {i}"} if escaped(i) in broken else table
        for i, table in enumerate(tables)
    ]


def _readable_name(table: Any) -> str | None:
    name = table.get("name") if isinstance(table, dict) else None
    return name if isinstance(name, str) and _NAME.fullmatch(name) else None
