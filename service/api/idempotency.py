"""Calls under an ``Idempotency-Key``, after draft-ietf-httpapi-idempotency-key-header: sent twice, made once."""

import hashlib
import re
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated

from fastapi import Header, Request, Response
from pydantic import WithJsonSchema

from service.domain.callers import Caller
from service.domain.errors import Fault, InvalidRequest, StorageUnavailable
from service.domain.idempotency import IdempotencyStore, KeptAnswer, KeyedCall

PATTERN = r"^[!-~]{1,255}$"

IdempotencyKey = Annotated[
    str | None,
    WithJsonSchema({"type": "string", "pattern": PATTERN}),
    Header(
        description="Your own name for this call, for example a UUID. Sent again with the same request within a day, "
        "the call is not made again and gets its first answer, with `Idempotent-Replayed: true`. Errors are not kept, "
        "nor that a plan is begun, as `Prefer: respond-async` has it. Needs the database."
    ),
]


class Begun(Response):
    """Says that what was asked is begun; not kept, as that may come to nothing: sent again, the call is made again."""


class IdempotentCalls:
    """Makes calls once for each key of a caller; blocks the calling thread."""

    def __init__(self, store: IdempotencyStore) -> None:
        """Keeps answers in a store."""
        self._store = store

    def answer(
        self, key: str | None, caller: Caller, request: Request, body: bytes, make: Callable[[], Response]
    ) -> Response:
        """What a call is answered, which is made where it was not made before; without a key it always is.

        Args:
            key: as it was sent; None where there was none.
            caller: whose key it is.
            request: what is asked, with ``body``.
            body: of the request.
            make: makes the call. What it raises is raised, and binds no later call.

        Raises:
            InvalidRequest: the key is none.
            ShardwrightError: see ``IdempotencyStore``, or what ``make`` raises.
        """
        if key is None:
            return make()
        call = KeyedCall(caller.name, _checked(key), _hash(request, body), uuid.uuid4().hex)
        kept = self._store.begin(call)
        if kept is not None:
            return _replayed(kept)
        try:
            response = make()
        except BaseException:
            with suppress(StorageUnavailable):
                self._store.release(call)
            raise
        if isinstance(response, Begun):
            self._store.release(call)
            return response
        # A failure to keep it is told: the caller tries again, and finds that the call took effect or is made anew.
        self._store.keep(call, _kept(response))
        return response


def _checked(key: str) -> str:
    if not re.fullmatch(PATTERN, key):
        wanted = "must be 1 to 255 visible ASCII characters, for example a UUID"
        raise InvalidRequest([Fault("", wanted, parameter="Idempotency-Key")])
    return key


def _hash(request: Request, body: bytes) -> str:
    asked = f"{request.method} {request.url.path}\n".encode("utf-8", "surrogatepass")
    return hashlib.sha256(asked + body).hexdigest()


def _kept(response: Response) -> KeptAnswer:
    return KeptAnswer(response.status_code, response.headers.get("location"), bytes(response.body).decode())


def _replayed(kept: KeptAnswer) -> Response:
    headers = {"Idempotent-Replayed": "true"} | ({"Location": kept.location} if kept.location else {})
    return Response(kept.body, kept.status, headers, "application/json")
