"""Values as JSON, and JSON as values: by the annotations of dataclasses."""

import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from datetime import datetime
from functools import cache
from typing import Any, Literal, Self, TypeVar, Union, get_args, get_origin, get_type_hints

from shardwright_client.errors import InvalidArgument

Value = TypeVar("Value")
Json = Mapping[str, Any]

RAW = "raw"
"""Name of the field that keeps the JSON which a value was read from."""


class Unreadable(ValueError):
    """JSON that is not what an annotation says; the message begins with where that is."""


@dataclass(frozen=True, slots=True)
class FromJson:
    """A value that can be read from JSON."""

    @classmethod
    def from_json(cls, content: Json) -> Self:
        """Reads parsed JSON, of a file, say. Members that are not known are left out.

        Raises:
            InvalidArgument: something is missing or of another type; says where.
        """
        try:
            return decoded(cls, content)
        except Unreadable as error:
            raise InvalidArgument(f"no {cls.__name__}: {error}") from error


@dataclass(frozen=True, slots=True)
class Answer(FromJson):
    """An answer of the service.

    Attributes:
        raw: its JSON, with whatever members a newer service adds.
    """

    raw: Json = field(default_factory=dict, kw_only=True, repr=False, compare=False)


def encoded(value: object) -> Any:
    """A value as JSON. None is left out: the service takes what is missing as its default."""
    if is_dataclass(value):
        members = ((each.name, getattr(value, each.name)) for each in fields(value))
        return {name: encoded(member) for name, member in members if member is not None}
    if isinstance(value, Mapping):
        return {key: encoded(member) for key, member in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [encoded(member) for member in value]
    return value


def decoded(kind: type[Value], content: object) -> Value:
    """A value of a dataclass from JSON.

    Raises:
        Unreadable: it is not what the annotations say.
    """
    read: Value = _read(kind, content, "")
    return read


def _read(kind: Any, content: object, where: str) -> Any:
    if is_dataclass(kind):
        return _object(kind, content, where)
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return _one_of(get_args(kind), content, where)
    if origin is tuple or origin is Sequence:
        return _list(kind, content, where)
    if origin is Mapping:
        members = _checked(content, dict, "an object", where)
        return {name: _read(get_args(kind)[1], member, f"{where}/{name}") for name, member in members.items()}
    return _scalar(str if origin is Literal else kind, content, where)


def _object(kind: Any, content: object, where: str) -> Any:
    members = _checked(content, dict, "an object", where)
    hints, values = _hints(kind), {}
    for each in fields(kind):
        if each.name == RAW:
            values[RAW] = members
        elif each.name in members:
            values[each.name] = _read(hints[each.name], members[each.name], f"{where}/{each.name}")
        elif each.default is MISSING and each.default_factory is MISSING:
            raise Unreadable(f"{where}/{each.name} is missing")
    return kind(**values)


def _one_of(kinds: Sequence[Any], content: object, where: str) -> Any:
    if content is None and type(None) in kinds:
        return None
    *others, last = [kind for kind in kinds if kind is not type(None)]
    for kind in others:
        try:
            return _read(kind, content, where)
        except Unreadable:
            continue
    return _read(last, content, where)


def _list(kind: Any, content: object, where: str) -> tuple[Any, ...]:
    members, arguments = _checked(content, list, "a list", where), get_args(kind)
    if get_origin(kind) is tuple and arguments[-1] is not Ellipsis and len(arguments) != len(members):
        raise Unreadable(f"{where} must have {len(arguments)} members, not {len(members)}")
    return tuple(_read(arguments[0], member, f"{where}/{i}") for i, member in enumerate(members))


def _scalar(kind: Any, content: object, where: str) -> Any:
    if kind is datetime:
        try:
            return datetime.fromisoformat(_checked(content, str, "a time", where))
        except ValueError as error:
            raise Unreadable(f"{where} must be a time") from error
    if isinstance(content, bool) and kind is not bool:
        raise Unreadable(f"{where} must not be a boolean")
    if kind is float:
        return float(_checked(content, (int, float), "a number", where))
    return _checked(content, kind, {int: "an integer", bool: "a boolean"}.get(kind, "a string"), where)


def _checked(content: Any, kind: Any, name: str, where: str) -> Any:
    if not isinstance(content, kind):
        raise Unreadable(f"{where or 'it'} must be {name}")
    return content


@cache
def _hints(kind: type) -> Mapping[str, Any]:
    return get_type_hints(kind)
