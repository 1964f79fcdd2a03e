"""Bodies of answers about models and their versions."""

from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from service.domain.trainings import Ended


class _Answer(BaseModel):
    model_config = ConfigDict(frozen=True)


class ModelAnswer(_Answer):
    """A model of some hardware."""

    hardware: str = Field(examples=["cpu-fbgemm"])
    model: str = Field(description="compute, communication, or the algorithm whose policy it is.", examples=["compute"])
    serves: str | None = Field(
        description="The version that serves here, now; null where none can be loaded.",
        examples=["cpu-fbgemm/compute/3"],
    )


class ModelsAnswer(_Answer):
    """All models."""

    models: list[ModelAnswer]


class ModelVersionAnswer(_Answer):
    """A version, and what its manifest says in short."""

    version: str = Field(examples=["cpu-fbgemm/compute/3"])
    serves: bool = Field(description="Whether it serves here, now.")
    created_at: str | None = Field(description="When it was trained, ISO 8601; null for an analytic one.")
    device: str | None = Field(description="What its measurements were made on.")
    metrics: dict[str, dict[str, float]] = Field(
        description="On held-out data: mape of each cost, as a fraction; of a policy cost_by_best_heuristics of each "
        "family of tasks, below 1 where it is better than they.",
        examples=[{"mape": {"total": 0.079, "forward": 0.082, "backward": 0.087}}],
    )
    damaged: bool = Field(description="Whether its manifest cannot be read.")


class PromotionAnswer(_Answer):
    """The decision that a version serves."""

    id: int
    version: str | None = Field(
        description="The version; null for an analytic one of a data sheet that is gone.",
        examples=["cpu-fbgemm/compute/3"],
    )
    promoted_at: datetime
    promoted_by: str
    reason: str
    comparison: dict[str, Any] | None = Field(description="What the version was judged by, where it was judged.")
    rollback: bool = Field(description="Whether it undid a promotion.")


class TrainingAnswer(_Answer):
    """What a training of the service's own came to."""

    outcome: Ended = Field(description="promoted, refused, failed or nothing_new.")
    reason: str = Field(description="Why, in a sentence.")
    started_at: datetime
    finished_at: datetime
    trained: str | None = Field(
        description="The version that was written and promoted; null otherwise.", examples=["cpu-fbgemm/compute/4"]
    )
    serving: str | None = Field(
        description="The version that served when it began, which it was judged beside; null where none did.",
        examples=["cpu-fbgemm/compute/3"],
    )
    comparison: dict[str, Any] | None = Field(
        description="What the two were judged by, on held-out data; null where it did not come so far."
    )


class ModelDetailAnswer(ModelAnswer):
    """A model with its versions."""

    versions: list[ModelVersionAnswer] = Field(description="The analytic one first, then the oldest.")
    promotions: list[PromotionAnswer] = Field(description="The last first, fifty at most.")
    trainings: list[TrainingAnswer] = Field(description="What retraining came to, the last first, twenty at most.")
