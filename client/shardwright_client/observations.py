"""What a launcher measured while a plan ran, and what was predicted beside it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from shardwright_client.json_values import Answer, FromJson
from shardwright_client.plans import Interval


@dataclass(frozen=True, slots=True)
class Observation(FromJson):
    """Mean embedding times of a rank over a range of steps, milliseconds a step.

    Attributes:
        rank: the plan's device.
        steps: [start, stop), ascending.
        forward_compute_ms: lookups and pooling.
        backward_compute_ms: gradients with the fused optimizer.
        forward_comm_ms: the forward exchange, from this rank's own start to its end; None where not measured.
        backward_comm_ms: the backward exchange; None where not measured.
        total_ms: all of a step's embedding part; None where not measured.
    """

    rank: int
    steps: tuple[int, int]
    forward_compute_ms: float
    backward_compute_ms: float
    forward_comm_ms: float | None = None
    backward_comm_ms: float | None = None
    total_ms: float | None = None


@dataclass(frozen=True, slots=True)
class ObservationsRequest(FromJson):
    """Observations of one plan.

    Attributes:
        observations: 1,000 at most. The first that is stored for a launch, rank and step range stays.
        launch_id: the launch that was measured.
        environment: of the machine, for example ``device``; at most 16 strings.
    """

    observations: Sequence[Observation]
    launch_id: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ComparedCost(FromJson):
    """A measured cost beside the predicted one.

    Attributes:
        predicted_ms: when the plan was made.
        measured_ms: by the launcher.
        ratio: measured over predicted; None where 0 was predicted.
        interval_ms: of the predicted; None of plans that an earlier service stored without.
        within_interval: None without an interval.
    """

    predicted_ms: float
    measured_ms: float
    ratio: float | None
    interval_ms: Interval | None
    within_interval: bool | None


@dataclass(frozen=True, slots=True)
class ObservedCosts(FromJson):
    """Each part that was measured; None is what was not."""

    forward_compute: ComparedCost
    backward_compute: ComparedCost
    forward_comm: ComparedCost | None = None
    backward_comm: ComparedCost | None = None
    total: ComparedCost | None = None


@dataclass(frozen=True, slots=True)
class StoredObservation(FromJson):
    """An observation as it is stored, beside the prediction.

    Attributes:
        rank: the plan's device.
        steps: [start, stop).
        launch_id: the launch that was measured; None where none was named.
        environment: of the machine.
        observed_at: by the service's clock.
        costs: measured beside predicted.
    """

    rank: int
    steps: tuple[int, int]
    launch_id: str | None
    environment: Mapping[str, str]
    observed_at: datetime
    costs: ObservedCosts


@dataclass(frozen=True, slots=True)
class PartSummary(FromJson):
    """One part over the observations of an answer.

    Attributes:
        part: for example ``forward_compute``.
        observations: number of those that measured it.
        median_ratio: measured over predicted; None where 0 was predicted.
        share_within_interval: None where no intervals were told.
    """

    part: str
    observations: int
    median_ratio: float | None
    share_within_interval: float | None


@dataclass(frozen=True, slots=True)
class PostedObservations(Answer):
    """What is stored under the ranks and steps that were posted.

    Attributes:
        plan_id: of the plan.
        observations: in the order posted.
        summary: by part.
        stored: how many are new.
    """

    plan_id: str
    observations: tuple[StoredObservation, ...]
    summary: tuple[PartSummary, ...]
    stored: int
