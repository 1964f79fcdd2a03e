"""What changed in ``openapi.yaml`` since the last tag that a client of then would break on.

``python -m tests.contract.breaking`` is what ``make contract`` runs.
"""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
_METHODS = ("get", "put", "post", "delete", "patch")
_UNIONS = ("oneOf", "anyOf")
_AT_MOST = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
_AT_LEAST = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")

Schema = Mapping[str, Any]


def breaking_changes(old: Schema, new: Schema) -> list[str]:
    """Changes between two OpenAPI documents that break clients of the old one, each in a sentence.

    What a client may send must be taken still; what it reads of answers must be there still, and of the same type.
    """
    return list(dict.fromkeys(_Comparison(old, new).changes()))


class _Comparison:
    def __init__(self, old: Schema, new: Schema) -> None:
        self._old, self._new = old, new

    def changes(self) -> Iterator[str]:
        for path, operations in self._old["paths"].items():
            for method in _METHODS:
                if method not in operations:
                    continue
                at = f"{method.upper()} {path}"
                found = self._new["paths"].get(path, {}).get(method)
                if found is None:
                    yield f"{at}: is gone"
                else:
                    yield from self._operation(at, operations[method], found)

    def _operation(self, at: str, old: Schema, new: Schema) -> Iterator[str]:
        yield from self._parameters(at, old, new)
        bodies = old.get("requestBody", {}).get("content", {})
        taken = new.get("requestBody", {}).get("content", {})
        if taken and not bodies and new["requestBody"].get("required"):
            yield f"{at}: needs a body now"
        for media, content in bodies.items():
            if media not in taken:
                yield f"{at}: takes no {media} any more"
            else:
                yield from self._sent(f"{at} body", content["schema"], taken[media]["schema"])
        for status, response in old["responses"].items():
            if status < "400":
                yield from self._response(f"{at} {status}", response, new["responses"].get(status))

    def _parameters(self, at: str, old: Schema, new: Schema) -> Iterator[str]:
        before = {(each["in"], each["name"]): each for each in old.get("parameters", [])}
        after = {(each["in"], each["name"]): each for each in new.get("parameters", [])}
        for key, parameter in after.items():
            if parameter.get("required") and not before.get(key, {}).get("required"):
                yield f"{at}: needs the parameter {key[1]} now"
        for key, parameter in before.items():
            if key not in after:
                yield f"{at}: the parameter {key[1]} is gone"
            else:
                yield from self._sent(f"{at} {key[1]}", parameter.get("schema", {}), after[key].get("schema", {}))

    def _response(self, at: str, old: Schema, new: Schema | None) -> Iterator[str]:
        if new is None:
            yield f"{at}: is answered no more"
            return
        for media, content in old.get("content", {}).items():
            if media not in new.get("content", {}):
                yield f"{at}: is no {media} any more"
            else:
                yield from self._read(at, content.get("schema", {}), new["content"][media].get("schema", {}))

    def _sent(self, at: str, old: Schema, new: Schema) -> Iterator[str]:
        """What was taken and is not any more."""
        old, new = _resolved(self._old, old), _resolved(self._new, new)
        if not new:
            return
        yield from _narrowed(at, old, new)
        for name in set(new.get("required", [])) - set(old.get("required", [])):
            yield f"{at}/{name}: is required now"
        for name, schema in old.get("properties", {}).items():
            if name in new.get("properties", {}):
                yield from self._sent(f"{at}/{name}", schema, new["properties"][name])
            elif new.get("additionalProperties") is False:
                yield f"{at}/{name}: is refused now"
        yield from self._within(at, old, new, self._sent)

    def _read(self, at: str, old: Schema, new: Schema) -> Iterator[str]:
        """What was answered and is not any more."""
        old, new = _resolved(self._old, old), _resolved(self._new, new)
        if _types(new) - _types(old):
            yield f"{at}: may be {' or '.join(sorted(_types(new) - _types(old)))} now"
        for name in set(old.get("required", [])) - set(new.get("required", [])):
            yield f"{at}/{name}: may be missing now"
        for name, schema in old.get("properties", {}).items():
            if name not in new.get("properties", {}):
                yield f"{at}/{name}: is gone"
            else:
                yield from self._read(f"{at}/{name}", schema, new["properties"][name])
        yield from self._within(at, old, new, self._read)

    def _within(self, at: str, old: Schema, new: Schema, compare: Any) -> Iterator[str]:
        for part in ("items", "additionalProperties"):
            if isinstance(old.get(part), Mapping) and isinstance(new.get(part), Mapping):
                yield from compare(f"{at}/{part}", old[part], new[part])
        for union in _UNIONS:
            for before, after in zip(old.get(union, []), new.get(union, []), strict=False):
                yield from compare(at, before, after)


def _narrowed(at: str, old: Schema, new: Schema) -> Iterator[str]:
    if _types(new) and (not _types(old) or _types(old) - _types(new)):
        yield f"{at}: must be {' or '.join(sorted(_types(new)))} now"
    for name in _AT_MOST:
        if new.get(name, float("inf")) < old.get(name, float("inf")):
            yield f"{at}: {name} is {new[name]} now"
    for name in _AT_LEAST:
        if new.get(name, float("-inf")) > old.get(name, float("-inf")):
            yield f"{at}: {name} is {new[name]} now"
    for name in ("pattern", "multipleOf", "const"):
        if name in new and new[name] != old.get(name):
            yield f"{at}: {name} is {new[name]} now"
    if "enum" in new and not set(old.get("enum", [object()])) <= set(new["enum"]):
        yield f"{at}: some values are refused now"
    for union in _UNIONS:
        if union in new and len(new[union]) < len(old.get(union, [])):
            yield f"{at}: some forms are refused now"


def _types(schema: Schema) -> set[str]:
    """Types that a schema names, those of the members of a union too."""
    named = schema.get("type", [])
    found = {named} if isinstance(named, str) else set(named)
    for union in _UNIONS:
        for member in schema.get(union, []):
            found |= {"object"} if "$ref" in member else _types(member)
    return found


def _resolved(document: Schema, schema: Schema) -> Schema:
    while "$ref" in schema:
        *_, name = schema["$ref"].split("/")
        schema = document["components"]["schemas"][name]
    return schema


def _git(*arguments: str) -> str | None:
    ran = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return ran.stdout if ran.returncode == 0 else None


def main() -> int:
    """Compares with the last tag; 1 where clients would break."""
    tag = (_git("describe", "--tags", "--abbrev=0") or "").strip()
    old = _git("show", f"{tag}:openapi.yaml") if tag else None
    if old is None:
        print(f"nothing to compare with: {f'{tag} has no openapi.yaml' if tag else 'no tag yet'}")
        return 0
    changes = breaking_changes(yaml.safe_load(old), yaml.safe_load((ROOT / "openapi.yaml").read_text()))
    print("\n".join([*changes, f"{len(changes)} breaking changes since {tag}"]))
    return int(bool(changes))


if __name__ == "__main__":
    sys.exit(main())
