"""Calls that may be sent twice and take effect once: the caller names them by an ``Idempotency-Key``."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Protocol

from service.domain.errors import ShardwrightError

KEPT_FOR: Final = timedelta(days=1)
"""How long a key is good for, from its first use on."""


class IdempotencyKeyReused(ShardwrightError):
    """A caller sent another request under a key that they have used already."""

    kind = "idempotency_key_reused"


class IdempotentCallRunning(ShardwrightError):
    """The first call under a key is not answered yet; ``data['retry_after_s']`` says when to return."""

    kind = "idempotent_call_running"


class IdempotentAnswerLost(ShardwrightError):
    """The first call under a key took effect, and its process ended before the answer was kept."""

    kind = "idempotent_answer_lost"


@dataclass(frozen=True, slots=True)
class KeyedCall:
    """One try of a call.

    Attributes:
        caller: whose key it is; keys of different callers have nothing to do with each other.
        key: the caller's own name for the call.
        request_hash: of what is asked.
        claim: name of this try, unlike any other's.
    """

    caller: str
    key: str
    request_hash: str
    claim: str


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """What a call was answered."""

    status: int
    location: str | None
    body: str


class IdempotencyStore(Protocol):
    """Keeps what calls were answered; all of it raises StorageUnavailable where the database cannot be reached."""

    def begin(self, call: KeyedCall) -> KeptAnswer | None:
        """What the call was answered before; None where it is to be made now, by this try alone.

        Raises:
            IdempotencyKeyReused: the key stands for another request.
            IdempotentCallRunning: another try is at it.
            IdempotentAnswerLost: another try took effect, and nobody knows what it would have answered.
        """

    def keep(self, call: KeyedCall, answer: KeptAnswer) -> None:
        """Keeps the answer of a call that was begun, unless another try has taken its place."""

    def release(self, call: KeyedCall) -> None:
        """Forgets a call that was begun and came to nothing, so that it may be tried again."""
