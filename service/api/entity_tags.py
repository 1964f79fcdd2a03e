"""Entity tags (RFC 9110, 8.8.3): who has a body already is told so instead of being sent it again."""

import hashlib
import re

from fastapi import Response

_TAGS = re.compile(r'\*|(?:W/)?("[\x21\x23-\x7e\x80-\xff]*")')


def tagged(response: Response, if_none_match: str | None) -> Response:
    """The response with the strong tag of its body; 304 without the body where the caller named this tag.

    Args:
        response: whose body is complete.
        if_none_match: the header of the request, None where it had none.
    """
    body = bytes(response.body)
    tag = f'"{hashlib.blake2b(body, digest_size=16).hexdigest()}"'
    response.headers["ETag"] = tag
    if if_none_match is None or not _names(if_none_match, tag):
        return response
    kept = {name: value for name, value in response.headers.items() if name in ("etag", "cache-control")}
    return Response(status_code=304, headers=kept)


def _names(if_none_match: str, tag: str) -> bool:
    return any(found[0] == "*" or found[1] == tag for found in _TAGS.finditer(if_none_match))
