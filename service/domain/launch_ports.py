"""What the inner rooms ask of the outer ones about launches, and what was measured of them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from service.domain.callers import Caller
from service.domain.launches import Launch
from service.domain.observations import Observation, ObservedPlan, StoredObservation


class LaunchStore(Protocol):
    """Keeps what each launch was answered; all of it raises StorageUnavailable where the database cannot be reached."""

    def get(self, launch: Launch) -> Mapping[str, Any] | None:
        """What the launch was answered, or None."""

    def claim(self, launch: Launch, claimant: str) -> bool:
        """Whether the claimant is to make the answer, for ``LEASE_S``: there is none and nobody else makes it."""

    def renew(self, launch: Launch, claimant: str) -> None:
        """A claim that has not passed to another holds for another ``LEASE_S``."""

    def release(self, launch: Launch, claimant: str) -> None:
        """Gives up a claim without an answer."""

    def keep(self, launch: Launch, claimant: str, plan_id: str, answer: Mapping[str, Any]) -> Mapping[str, Any]:
        """Keeps an answer durably, of a plan that is stored, and returns the first that was kept for the launch."""


class ObservationStore(Protocol):
    """Keeps what launchers measured; all of it raises StorageUnavailable where the database cannot be reached."""

    def add(
        self, plan_id: str, observations: Sequence[Observation], caller: Caller
    ) -> tuple[list[StoredObservation], set[int]] | None:
        """Stores observations of one launch of a caller durably; None where there is no such plan for the caller.

        The caller's first under a (plan, launch, rank, steps) stays. Returned are those that are stored under the given
        ones' (plan, launch, rank, steps), in their order, and the ids of the new ones among them.
        """

    def of_plan(self, plan_id: str, caller: Caller, after: int, limit: int) -> list[StoredObservation]:
        """A plan's observations with ids above ``after``: the first of the caller's, of all for who sees all."""

    def observed(self, hardware: str) -> Iterator[ObservedPlan]:
        """Every answer of a hardware that was observed, one after the other, with all of its observations."""
