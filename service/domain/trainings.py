"""What trainings of a service's own came to."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from service.domain.plan import Algorithm
from service.domain.versions import COMMUNICATION, COMPUTE

MODELS = (COMPUTE, COMMUNICATION, Algorithm.DREAMSHARD.value, Algorithm.AUTOSHARD.value)
"""What is retrained, in this order: policies under the cost models that serve then."""


class Ended(StrEnum):
    """What a training came to."""

    PROMOTED = "promoted"
    REFUSED = "refused"
    FAILED = "failed"
    NOTHING_NEW = "nothing_new"


@dataclass(frozen=True, slots=True)
class Outcome:
    """One training of one model; times are by the database's clock.

    Attributes:
        hardware: of the model.
        model: ``compute``, ``communication``, or an algorithm whose policy it is.
        ended: what it came to.
        reason: why, in a sentence.
        started_at: when it began.
        finished_at: when it was through.
        trained: name of the version that was written; only where it was promoted.
        serving: name of the version that served when it began; None where none did, or the training
            ended with its process.
        comparison: what the two were judged by, JSON-like; None where it did not come so far.
        basis: hash of what it is trained and judged on: another training with the same would come to the same.
    """

    hardware: str
    model: str
    ended: Ended
    reason: str
    started_at: datetime
    finished_at: datetime
    trained: str | None = None
    serving: str | None = None
    comparison: Mapping[str, Any] | None = None
    basis: str | None = None
