"""Pydantic's errors as faults of the domain: JSON pointers, plain messages, names of tables."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from service.domain.errors import Fault, escaped
from service.domain.plan import ShardingType
from service.domain.tables import PoolingMode

_MAX_NAME = 255

_SUBJECT = re.compile(r"^(Input|List|String|Dictionary|Value) should")
"""How pydantic begins what it wants of a value."""

_MESSAGES = {"extra_forbidden": "there is no such field", "missing": "is required"}


def _one_of(names: Sequence[str]) -> str:
    return "must be " + " or ".join(repr(name) for name in names)


_CHOICES = {
    "sharding_types": _one_of([kind.value for kind in ShardingType]),
    "sharding_type": _one_of([kind.value for kind in ShardingType]),
    "pooling_mode": _one_of([mode.value for mode in PoolingMode]),
}
"""Values of the fields whose type also knows names that are not modelled."""


def is_under(pointer: str, prefix: str) -> bool:
    """Whether a pointer names ``prefix`` or something in it."""
    return pointer == prefix or pointer.startswith(prefix if prefix.endswith("/") else prefix + "/")


def field_faults(error: ValidationError, content: Mapping[str, Any]) -> list[Fault]:
    """What pydantic found in a body, in its order.

    Args:
        error: the errors.
        content: the body as it was parsed, to tell fields from tags in pydantic's locations.
    """
    return [
        Fault(
            _pointer(content, found["loc"]),
            _message(found["type"], found["loc"], found["msg"]),
            _table(content, found["loc"]),
        )
        for found in error.errors(include_url=False, include_context=False, include_input=False)
    ]


_VERSION_NAME = (
    "must be a version's name as answers have it, <hardware>/<model>/<number>, for example cpu-fbgemm/compute/3; one "
    "from a data sheet has a number too, for example h100/compute/analytic-2: GET /models shows those that serve"
)


def _message(kind: str, location: Sequence[int | str], text: str) -> str:
    if kind == "string_pattern_mismatch" and location[0] == "models":
        return _VERSION_NAME
    if kind == "enum":
        field = next((part for part in reversed(location) if isinstance(part, str)), "")
        if field in _CHOICES:
            return _CHOICES[field]
    return _MESSAGES.get(kind) or _SUBJECT.sub("must", text).replace(" after validation", "")


def _pointer(content: object, location: Sequence[int | str]) -> str:
    """The location without the tags that pydantic adds for a member of a union."""
    pointer = ""
    for part in location:
        if isinstance(content, dict) and isinstance(part, str):
            content = content.get(part)
        elif isinstance(content, list) and isinstance(part, int):
            content = content[part] if part < len(content) else None
        else:
            continue
        pointer += "/" + escaped(part)
    return pointer


def _table(content: Mapping[str, Any], location: Sequence[int | str]) -> str | None:
    if location[:2] == ("constraints", "pin") and len(location) > 2:
        return str(location[2])[:_MAX_NAME]
    if len(location) < 2 or location[0] not in ("tables", "shards") or not isinstance(location[1], int):
        return None
    items = content.get(str(location[0]))
    item = items[location[1]] if isinstance(items, list) and location[1] < len(items) else None
    name = item.get("name" if location[0] == "tables" else "table") if isinstance(item, dict) else None
    return name[:_MAX_NAME] if isinstance(name, str) else None
