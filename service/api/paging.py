"""Pages of resources that list: how many, and after what."""

import re
from typing import Annotated, Any, Final
from urllib.parse import urlencode

from fastapi import Query, Request, Response
from pydantic import WithJsonSchema

from service.domain.errors import Fault, InvalidRequest

MOST: Final = 1_000
"""Most entries on a page."""

# Both are read as text, so that what is wrong with them is told as everywhere else.
PageLimit = Annotated[
    str | None,
    WithJsonSchema({"type": "integer", "minimum": 1, "maximum": MOST}),
    Query(description=f"Most entries on the page; {MOST:,} at most."),
]

NEXT_LINK: Final[dict[str, Any]] = {
    "Link": {
        "description": 'The next page, where there is one: `<...>; rel="next"` (RFC 8288).',
        "schema": {"type": "string"},
    }
}
"""For the OpenAPI document: header of an answer with a page."""


def cursor_schema(pattern: str) -> WithJsonSchema:
    """What is taken as a cursor, for the OpenAPI document."""
    return WithJsonSchema({"type": "string", "pattern": pattern})


def page(limit: str | None, cursor: str | None, pattern: str, default: int = MOST) -> int:
    """How many entries are wanted; of text, as it was given.

    Args:
        limit: most of them.
        cursor: where the page before ended; it is looked at only.
        pattern: of cursors.
        default: entries of a page where no limit was given.

    Raises:
        InvalidRequest: it is neither what the schema of the parameters says nor left out.
    """
    faults = []
    if limit is not None and not (re.fullmatch(r"[0-9]{1,4}", limit) and 1 <= int(limit) <= MOST):
        faults.append(Fault("", f"must be a whole number from 1 to {MOST}", parameter="limit"))
    if cursor is not None and not re.fullmatch(pattern, cursor):
        faults.append(Fault("", "must be the next_cursor of an answer", parameter="cursor"))
    if faults:
        raise InvalidRequest(faults)
    return int(limit or default)


def linked(response: Response, request: Request, next_cursor: str | None) -> Response:
    """The response to a request for a page, with a link to the next one where there is one."""
    if next_cursor is not None:
        query = urlencode(dict(request.query_params) | {"cursor": next_cursor})
        response.headers["Link"] = f'<{request.url.path}?{query}>; rel="next"'
    return response
