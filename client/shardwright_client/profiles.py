"""Tables that are measured on the service's worker pool."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from shardwright_client.json_values import Answer, FromJson
from shardwright_client.tables import Optimizer, Table


@dataclass(frozen=True, slots=True)
class ProfilesRequest(FromJson):
    """Tables to measure, each alone.

    Attributes:
        tables: what to measure.
        hardware: what to measure on: some live worker must serve it.
        global_batch_size: samples in a step, over all devices.
        optimizer: fused into the backward pass.
    """

    tables: Sequence[Table]
    hardware: str
    global_batch_size: int
    optimizer: Optimizer


@dataclass(frozen=True, slots=True)
class MeasuredTable(FromJson):
    """What is measured: a table apart from its name and what is known of its indices.

    Attributes:
        hardware: what it is measured on.
        num_embeddings: rows.
        embedding_dim: columns.
        pooling_factor: mean lookups a sample, summed over the table's features.
        num_features: features that share the table.
        pooling_mode: how the looked-up rows of a sample are combined.
        data_type: precision of the weights.
        global_batch_size: samples in a step, over all devices.
        optimizer: fused into the backward pass.
    """

    hardware: str
    num_embeddings: int
    embedding_dim: int
    pooling_factor: float
    num_features: int
    pooling_mode: str
    data_type: str
    global_batch_size: int
    optimizer: str


@dataclass(frozen=True, slots=True)
class MeasuredWidth(FromJson):
    """What was measured of a table at one width.

    Attributes:
        width: columns.
        forward_ms: of the lookups, median over the repeats.
        backward_ms: of the gradients and updates, median over the repeats.
        noisy: whether the repeats disagreed: training leaves it out.
    """

    width: int
    forward_ms: float
    backward_ms: float
    noisy: bool


@dataclass(frozen=True, slots=True)
class Profile(FromJson):
    """Where one table's profile stands.

    Attributes:
        table: name of the table in the request.
        profile_id: the same for every request with this table, batch, optimizer and hardware.
        measures: what that is.
        state: ``queued``, ``running``, ``measured``, ``parked`` (every try failed) or ``expired`` (ask again).
        attempts: tries begun.
        error: why the last try failed; None where none did.
        rows_measured: rows that the table was cut to; None where all were measured.
        queued_at: by the service's clock, as the others.
        started_at: None before.
        finished_at: None before.
        expires_at: when it is given up where it waits, or may be measured again where it does not.
        results: widest first; empty until it is measured.
    """

    table: str
    profile_id: str
    measures: MeasuredTable
    state: str
    attempts: int
    error: str | None
    rows_measured: int | None
    queued_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    expires_at: datetime
    results: tuple[MeasuredWidth, ...]


@dataclass(frozen=True, slots=True)
class ProfilesProgress(FromJson):
    """Profiles of a request in each state."""

    queued: int
    running: int
    measured: int
    parked: int
    expired: int


@dataclass(frozen=True, slots=True)
class Profiles(Answer):
    """A request for profiles and where they stand.

    Attributes:
        request_id: to ask again with.
        created_at: by the service's clock.
        done: whether none of them waits or is being measured.
        progress: how many there are in each state.
        profiles: one for each table, in the order asked.
    """

    request_id: str
    created_at: datetime
    done: bool
    progress: ProfilesProgress
    profiles: tuple[Profile, ...]
