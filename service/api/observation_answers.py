"""Answers about observations, as the contract has them."""

from datetime import datetime

from pydantic import BaseModel, ConfigDict, Field

from service.api.answers import Interval


class _Answer(BaseModel):
    model_config = ConfigDict(frozen=True)


class ComparedCostAnswer(_Answer):
    """A measured cost beside the predicted one."""

    predicted_ms: float = Field(description="When the plan was made.")
    measured_ms: float
    ratio: float | None = Field(description="Measured over predicted; null where 0 was predicted.")
    interval_ms: Interval | None = Field(
        description="[low, high]: 90% interval of the cost; of forward_comm the sums of those of wait and transfer. "
        "Null of plans stored by releases that had no intervals."
    )
    within_interval: bool | None


class ObservedCostsAnswer(_Answer):
    """Each part that was measured; null is what was not."""

    forward_compute: ComparedCostAnswer
    backward_compute: ComparedCostAnswer
    forward_comm: ComparedCostAnswer | None = None
    backward_comm: ComparedCostAnswer | None = None
    total: ComparedCostAnswer | None = None


class ObservationAnswer(_Answer):
    """An observation as it is stored, beside the prediction."""

    rank: int
    steps: list[int] = Field(min_length=2, max_length=2, description="[start, stop).")
    launch_id: str | None
    environment: dict[str, str]
    observed_at: datetime
    costs: ObservedCostsAnswer


class PartSummaryAnswer(_Answer):
    """One part over the observations of an answer."""

    part: str = Field(examples=["forward_compute"])
    observations: int = Field(description="That measured it.")
    median_ratio: float | None = Field(description="Measured over predicted; null where 0 was predicted.")
    share_within_interval: float | None = Field(description="Null where no intervals were told.")


class _Observations(_Answer):
    plan_id: str
    observations: list[ObservationAnswer]
    summary: list[PartSummaryAnswer] = Field(description="Of these observations.")


class PostedObservationsAnswer(_Observations):
    """What is stored under the ranks and steps that were posted."""

    stored: int = Field(description="How many are new.")


class StoredObservationsAnswer(_Observations):
    """A plan's observations, in the order of storing."""

    next_cursor: str | None = Field(description="For the next call, where there are more.")
