"""Who asks, and what they may."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

ANONYMOUS: Final = "anonymous"
"""Name of all callers without an API key; no key has it."""


class Scope(StrEnum):
    """What a caller may do; ``admin`` includes the others."""

    PLAN = "plan"
    OBSERVE = "observe"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks.

    Attributes:
        name: that plans, launches and profiles belong to; keys of one name are one caller.
        scopes: what they may do.
        key_id: of the API key that was sent; None without one.
    """

    name: str
    scopes: frozenset[Scope]
    key_id: str | None = None

    def may(self, scope: Scope) -> bool:
        """Whether they may do what needs a scope."""
        return scope in self.scopes or self.sees_all

    @property
    def sees_all(self) -> bool:
        """Whether what belongs to others is there for them."""
        return Scope.ADMIN in self.scopes

    def __str__(self) -> str:
        return f"{self.name} (key {self.key_id})" if self.key_id else self.name


WITHOUT_KEY: Final = Caller(ANONYMOUS, frozenset(Scope))
"""Who asks without a key where none is required."""

THROUGH_PROXY: Final = Caller(ANONYMOUS, frozenset({Scope.PLAN, Scope.OBSERVE}))
"""Who asks without a key where none is required, but through a proxy or a web page: it may be anyone."""
