"""Plans that are made while no connection waits for them: whoever asked comes back to look."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

from service.domain.errors import ShardwrightError

TOLD_FOR = timedelta(minutes=10)
"""How long after its end it is told why a plan was not made."""


class PlanNotMade(ShardwrightError):
    """Why a plan was not made: what making it raised, as it is kept."""

    kind = "plan_not_made"

    @classmethod
    def kept(cls, kind: str, detail: str, data: Mapping[str, Any]) -> "PlanNotMade":
        """An error of any kind again."""
        error = cls(detail, **data)
        error.kind = kind
        return error


@dataclass(frozen=True, slots=True)
class PlanUnderWay:
    """A plan that is being made.

    Attributes:
        caller: name of who asked for it.
        plan_id: that it will have.
    """

    caller: str
    plan_id: str


@dataclass(frozen=True, slots=True)
class Making:
    """How the making of a plan stands.

    Attributes:
        lost: whether who made it is gone.
        error: why it was not made, as ``kind``, ``detail`` and ``data``; None while it is made.
    """

    lost: bool
    error: Mapping[str, Any] | None


class UnderWayStore(Protocol):
    """Keeps which plans are being made; all of it raises StorageUnavailable where the database cannot be reached."""

    def claim(self, plan: PlanUnderWay, claimant: str) -> bool:
        """Whether the claimant is to make the plan, for ``LEASE_S``: nobody else does."""

    def renew(self, plan: PlanUnderWay, claimant: str, patience_s: float) -> bool:
        """A claim holds for another ``LEASE_S``.

        Returns:
            Whether it does: not where it has passed to another, or the plan was given up or not looked for within
            ``patience_s``.
        """

    def fail(self, plan: PlanUnderWay, claimant: str, error: Mapping[str, Any]) -> None:
        """Ends a claim and keeps why the plan was not made, to be told for ``TOLD_FOR``."""

    def finish(self, plan: PlanUnderWay, claimant: str) -> bool:
        """Ends a claim, of a plan that is stored; whether the caller gave that up meanwhile."""

    def look(self, plan: PlanUnderWay) -> Making | None:
        """How it stands, or None where nobody makes it; it counts as looked for."""

    def give_up(self, plan: PlanUnderWay) -> bool:
        """Has whoever makes a plan end that soon, and nothing told of it any more; whether there was anything."""
