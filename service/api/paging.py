"""Pages of resources that list: how many, and after what."""

import re
from typing import Annotated, Final

from fastapi import Query
from pydantic import WithJsonSchema

from service.domain.errors import Fault, InvalidRequest

MOST: Final = 1_000
"""Most entries on a page."""

CURSOR_PATTERN: Final = r"^[0-9]{1,18}$"


# Both are read as text, so that what is wrong with them is told as everywhere else.
PageLimit = Annotated[
    str | None,
    WithJsonSchema({"type": "integer", "minimum": 1, "maximum": MOST}),
    Query(description=f"Most entries on the page; {MOST:,} at most."),
]
PageCursor = Annotated[
    str | None,
    WithJsonSchema({"type": "string", "pattern": CURSOR_PATTERN}),
    Query(description="The `next_cursor` of the page before."),
]


def page(limit: str | None, cursor: str | None) -> tuple[int, int]:
    """How many entries are wanted, and after which id; of text, as it was given.

    Raises:
        InvalidRequest: it is neither what the schema of the parameters says nor left out.
    """
    faults = []
    if limit is not None and not (re.fullmatch(r"[0-9]{1,4}", limit) and 1 <= int(limit) <= MOST):
        faults.append(Fault("", f"must be a whole number from 1 to {MOST}", parameter="limit"))
    if cursor is not None and not re.fullmatch(CURSOR_PATTERN, cursor):
        faults.append(Fault("", "must be the next_cursor of an answer", parameter="cursor"))
    if faults:
        raise InvalidRequest(faults)
    return int(limit or MOST), int(cursor or 0)
