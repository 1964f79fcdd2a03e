"""Bodies of answers about profiles, as the contract has them."""

from collections import Counter
from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from service.domain.profiles import ProfileRequest, ProfileState, StoredProfile


class _Answer(BaseModel):
    model_config = ConfigDict(frozen=True)


class WidthAnswer(_Answer):
    """What was measured of a table at one width."""

    width: int = Field(description="Columns: all of the table's, half or a quarter of them.")
    forward_ms: float = Field(description="Milliseconds of the lookups, median over the repeats.")
    backward_ms: float = Field(description="Milliseconds of the gradients and updates, median over the repeats.")
    noisy: bool = Field(description="Whether the repeats disagreed: training leaves it out.")


class ProfileAnswer(_Answer):
    """Where one table's profile stands."""

    table: str = Field(description="Name of the table in the request.")
    profile_id: str = Field(description="The same for every request with this table, batch, optimizer and hardware.")
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
        profiles=[_profile(name, profile) for name, profile in request.profiles],
    )


def _profile(name: str, profile: StoredProfile) -> ProfileAnswer:
    return ProfileAnswer(
        table=name,
        profile_id=profile.key,
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
