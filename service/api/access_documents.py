"""What the OpenAPI document says of access: how to send a key, and what is answered to who may not call."""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any, Final

OPEN: Final = frozenset({"/healthz", "/readyz", "/metrics"})
"""Paths that need no key: probes and scrapers have none, and there is no secret in what they get."""

SCHEMES: Final[Mapping[str, Mapping[str, str]]] = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "An API key, see `shardwright keys`."},
    "apiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key", "description": "The same in another header."},
}

_PROBLEMS: Final[Mapping[str, str]] = {
    "401": "No valid API key was sent; only where the service takes calls without one, none is needed.",
    "403": "The key lacks the scope that this call needs, which is named, or the call needs a key here.",
    "429": "More requests than the key may make, see Retry-After.",
}


def document_access(document: dict[str, Any], content: Mapping[str, Any]) -> None:
    """Adds security schemes, and to each operation that needs a key what may come of it.

    Args:
        document: an OpenAPI document, changed in place.
        content: of a problem.
    """
    document["components"]["securitySchemes"] = {name: dict(scheme) for name, scheme in SCHEMES.items()}
    for operation in _operations(document):
        operation["security"] = [{name: []} for name in SCHEMES]
        found = operation["responses"]
        added = {status: {"description": text, "content": deepcopy(content)} for status, text in _PROBLEMS.items()}
        operation["responses"] = dict(sorted((added | found).items()))
        operation["responses"]["401"]["headers"] = {
            "WWW-Authenticate": {"description": "Bearer.", "schema": {"type": "string"}}
        }


def _operations(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for path, operations in document["paths"].items():
        if path not in OPEN:
            yield from operations.values()
