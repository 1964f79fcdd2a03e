"""Bodies of answers about profiles, as the contract has them."""

from collections import Counter
from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from service.domain.profiles import ProfileRequest, ProfileState, StoredProfile, TableProfile


class _Answer(BaseModel):
    model_config = ConfigDict(frozen=True)


class WidthAnswer(_Answer):
    """What was measured of a table at one width."""

    width: int = Field(description="Columns: all of the table's, half or a quarter of them.")
    forward_ms: float = Field(description="Milliseconds of the lookups, median over the repeats.")
    backward_ms: float = Field(description="Milliseconds of the gradients and updates, median over the repeats.")
    noisy: bool = Field(description="Whether the repeats disagreed: training leaves it out.")


class Measured(_Answer):
    """What is measured: a table as in requests, apart from its name and what is known of its indices."""

    hardware: str
    num_embeddings: int
    embedding_dim: int
    pooling_factor: float
    num_features: int
    pooling_mode: str
    data_type: str
    global_batch_size: int
    optimizer: str


class ProfileStanding(_Answer):
    """Where a profile stands."""

    profile_id: str = Field(description="The same for every request with this table, batch, optimizer and hardware.")
    measures: Measured
    state: Literal["queued", "running", "measured", "parked", "expired"] = Field(
        description="parked: every try failed, see error. expired: nobody measured it in time; ask again."
    )
    attempts: int = Field(description="Tries begun.")
    error: str | None = Field(description="Why the last try failed; null where none did.")
    rows_measured: int | None = Field(
        description="Rows that the table was cut to, to fit into the worker's memory; null where all were measured."
    )
    queued_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    expires_at: datetime = Field(
        description="When it is given up where it still waits, or may be measured again where it does not."
    )
    results: list[WidthAnswer] = Field(description="Widest first; empty until it is measured.")


class ProfileAnswer(ProfileStanding):
    """Where one table's profile stands."""

    table: str = Field(description="Name of the table in the request.")


class ProfilesProgress(_Answer):
    """Profiles of a request in each state."""

    queued: int
    running: int
    measured: int
    parked: int
    expired: int


class ProfilesAnswer(_Answer):
    """A request for profiles and where they stand."""

    request_id: str
    created_at: datetime
    done: bool = Field(description="Whether none of them waits or is being measured.")
    progress: ProfilesProgress
    profiles: list[ProfileAnswer] = Field(description="One for each table, in the order asked.")


def profiles_answer(request: ProfileRequest) -> ProfilesAnswer:
    """The body that tells of a request."""
    states = Counter(profile.state for _, profile in request.profiles)
    return ProfilesAnswer(
        request_id=request.request_id,
        created_at=request.created_at,
        done=not states[ProfileState.QUEUED] + states[ProfileState.RUNNING],
        progress=ProfilesProgress(**{state.value: states[state] for state in ProfileState}),
        profiles=[ProfileAnswer(table=name, **dict(profile_standing(profile))) for name, profile in request.profiles],
    )


def profile_standing(profile: StoredProfile) -> ProfileStanding:
    """All that is told of a profile, whoever asks."""
    return ProfileStanding(
        profile_id=profile.key,
        measures=_measures(profile.profile),
        state=profile.state.value,
        attempts=profile.attempts,
        error=profile.error,
        rows_measured=profile.rows_measured,
        queued_at=profile.queued_at,
        started_at=profile.started_at,
        finished_at=profile.finished_at,
        expires_at=profile.expires_at,
        results=[
            WidthAnswer(
                width=found.width, forward_ms=found.forward_ms, backward_ms=found.backward_ms, noisy=found.noisy
            )
            for found in profile.results
        ],
    )


def _measures(profile: TableProfile) -> Measured:
    table = profile.table
    return Measured(
        hardware=profile.hardware,
        num_embeddings=table.num_embeddings,
        embedding_dim=table.embedding_dim,
        pooling_factor=table.pooling_factor,
        num_features=table.num_features,
        pooling_mode=table.pooling_mode.value,
        data_type=table.data_type.value,
        global_batch_size=profile.batch_size,
        optimizer=profile.optimizer.value,
    )
