"""API keys, what is told to callers who are not let in, and the record of calls that change the service."""

import hashlib
import re
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final, Protocol

from service.domain.callers import ANONYMOUS, Scope
from service.domain.errors import ShardwrightError

KEY_PREFIX: Final = "shw_"
"""How every key begins, so that scanners of repositories and logs find those that were left there."""

_SECRET_BYTES = 32
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Unauthenticated(ShardwrightError):
    """A call without a valid key; all of them are told the same."""

    kind = "unauthenticated"

    def __init__(self) -> None:
        super().__init__(
            "send one valid API key, as `Authorization: Bearer <key>` or as `X-API-Key: <key>`; "
            "`shardwright keys create` makes one"
        )


class InsufficientScope(ShardwrightError):
    """A call with a key that is not for it; ``data['scope']`` names what it needs."""

    kind = "insufficient_scope"

    def __init__(self, needed: Scope) -> None:
        super().__init__(
            f"the key lacks the scope {needed.value!r}, which this call needs: send another key, or make one by "
            f"`shardwright keys create NAME --scope {needed.value}`",
            scope=needed.value,
        )


class AdminThroughProxy(ShardwrightError):
    """A call that changes the service, without a key and through a proxy or a web page, which hide who makes it."""

    kind = "admin_through_proxy"

    def __init__(self) -> None:
        super().__init__(
            "the call came through a proxy or from a web page of another host, so that anyone could have made it: set "
            "SHARDWRIGHT_REQUIRE_KEYS=true and send a key with the scope 'admin', or call the service directly"
        )


class RateLimited(ShardwrightError):
    """More requests than a key may make; ``data['retry_after_s']`` says when to return."""

    kind = "rate_limited"


class KeyNotFound(ShardwrightError):
    """No API key has this id."""

    kind = "key_not_found"


class InvalidKeyName(ShardwrightError):
    """A name that no API key can have."""

    kind = "invalid_key_name"


@dataclass(frozen=True, slots=True)
class Allowance:
    """How often a key may be used in each API process.

    Attributes:
        requests_per_minute: in the long run.
        burst: at once, after a pause.
    """

    requests_per_minute: int
    burst: int


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key to be made.

    Attributes:
        name: of the caller that it is for; several keys may have one name.
        scopes: what it is for; at least one.
        valid_days: None for a key that does not expire.
        requests_per_minute: None for the service's default.
        burst: None for the service's default.
    """

    name: str
    scopes: frozenset[Scope]
    valid_days: float | None = None
    requests_per_minute: int | None = None
    burst: int | None = None


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key as it is kept: without its secret.

    Attributes:
        id: tells it from others; no secret.
        name: of its caller.
        scopes: what it is for.
        created_at: when it was made.
        revoked_at: since when it is not valid any more; None where it was not revoked.
        expires_at: from when on it is not valid any more; None for never.
        expires_in_s: the same from now, by the database's clock; None for never.
        last_used_at: to the hour; None where it was never used.
        requests_per_minute: None for the service's default.
        burst: None for the service's default.
    """

    id: str
    name: str
    scopes: frozenset[Scope]
    created_at: datetime
    revoked_at: datetime | None
    expires_at: datetime | None
    expires_in_s: float | None
    last_used_at: datetime | None
    requests_per_minute: int | None
    burst: int | None

    @property
    def state(self) -> str:
        """``revoked``, ``expired`` or ``valid``."""
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_in_s is not None and self.expires_in_s <= 0 else "valid"


Keys = Mapping[str, ApiKey]
"""All keys by the hash of their secret."""


class KeyStore(Protocol):
    """Keeps API keys; all of it raises StorageUnavailable where the database cannot be reached."""

    def all(self) -> Keys:
        """All keys, those that are not valid any more too."""

    def used(self, ids: Collection[str]) -> None:
        """Notes that keys are used."""


class Action(StrEnum):
    """Calls that change the service, for everyone who uses it."""

    CREATE_KEY = "create_key"
    REVOKE_KEY = "revoke_key"
    PROMOTE = "promote"
    ROLL_BACK = "roll_back"
    DELETE_PLAN = "delete_plan"


@dataclass(frozen=True, slots=True)
class AdminCall:
    """A call that is put on record.

    Attributes:
        actor: who makes it.
        action: what it does.
        subject: to what.
    """

    actor: str
    action: Action
    subject: str


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """A call that was put on record.

    Attributes:
        id: in the order of recording.
        at: when, by the database's clock.
        call: what it was.
        outcome: ``done``, ``unchanged``, or the kind of error that it ended with.
        request_id: of the HTTP request; empty for a command.
    """

    id: int
    at: datetime
    call: AdminCall
    outcome: str
    request_id: str


def new_secret() -> str:
    """A key as its owner keeps it: 32 random bytes, in characters that need no quotes."""
    return KEY_PREFIX + secrets.token_urlsafe(_SECRET_BYTES)


def secret_hash(secret: bytes) -> str:
    """What is kept of a key: SHA-256. A slow hash is for passwords; 256 random bits cannot be guessed."""
    return hashlib.sha256(secret).hexdigest()


def checked_name(name: str) -> str:
    """A name that a key can have.

    Raises:
        InvalidKeyName: it cannot.
    """
    if not _NAME.fullmatch(name) or name == ANONYMOUS:
        raise InvalidKeyName(
            f"{name!r} cannot be the name of a key: 64 letters, digits, '.', '_' and '-' at most, a letter or digit "
            f"first, and not {ANONYMOUS!r}"
        )
    return name
