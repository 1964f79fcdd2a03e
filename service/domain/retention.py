"""How long what is stored is kept."""

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum


class Kept(StrEnum):
    """Kinds of what is stored, in the order of pruning: what refers to something else goes first."""

    OBSERVATIONS = "observations"
    LAUNCHES = "launches"
    ANSWERS = "answers"
    PLANS = "plans"
    PROFILE_REQUESTS = "profile requests"
    PROFILES = "profiles"
    MEASUREMENTS = "measurements"
    IDEMPOTENCY_KEYS = "idempotency keys"
    PLANS_UNDER_WAY = "plans under way"


@dataclass(frozen=True, slots=True)
class Retention:
    """Ages after which what nothing else needs is deleted.

    Attributes:
        plans: since a plan, or a launch, was last asked for; a day at least, since uses are noted to the hour.
        observations: since they were stored.
        profiles: since they were measured, parked or given up; requests for them since they were last asked.
        measurements: since they were made.
    """

    plans: timedelta
    observations: timedelta
    profiles: timedelta
    measurements: timedelta


@dataclass(frozen=True, slots=True)
class TrainedBench:
    """A bench whose measurements a version was trained on.

    Attributes:
        hardware: of the version.
        model: ``compute`` or ``communication``, which are measured by benches of their own.
        bench: the bench's version.
    """

    hardware: str
    model: str
    bench: int
