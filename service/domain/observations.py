"""What launchers measured while a plan ran."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

BENCH_PATTERN = r"[0-9]{1,9}"
"""Of the environment's ``bench``: the version of how times were taken, as measurements have it."""


@dataclass(frozen=True, slots=True)
class Observation:
    """Mean embedding times of a rank's steps, milliseconds a step.

    Attributes:
        launch_id: the launch that was measured; empty where the launcher named none.
        rank: the plan's device.
        start: first step.
        stop: the step after the last.
        forward_compute_ms: lookups and pooling.
        backward_compute_ms: gradients with the fused optimizer.
        forward_comm_ms: the forward exchange from this rank's own start to its end, wait and transfer; None where it
            was not measured.
        backward_comm_ms: the backward exchange; None where it was not measured.
        total_ms: all of a step's embedding part; None where it was not measured.
        environment: what the launcher says of its machine, by name.
    """

    launch_id: str
    rank: int
    start: int
    stop: int
    forward_compute_ms: float
    backward_compute_ms: float
    forward_comm_ms: float | None
    backward_comm_ms: float | None
    total_ms: float | None
    environment: Mapping[str, str]

    @property
    def steps(self) -> int:
        """How many steps the means are of."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class StoredObservation:
    """An observation as it is kept.

    Attributes:
        id: ascends in the order of storing.
        observation: what was measured.
        answer: what the launch had been answered, or the stored plan where it named no launch that asked.
        observed_at: when it was stored.
    """

    id: int
    observation: Observation
    answer: Mapping[str, Any]
    observed_at: datetime


@dataclass(frozen=True, slots=True)
class ObservedPlan:
    """One answer that ran, and what was measured of it.

    Attributes:
        plan_id: id of the plan.
        hardware: hardware that it was made for.
        request: the planning question, every default filled in.
        answer: what was answered.
        observations: of it, in the order of storing; at least one.
    """

    plan_id: str
    hardware: str
    request: Mapping[str, Any]
    answer: Mapping[str, Any]
    observations: tuple[StoredObservation, ...]
