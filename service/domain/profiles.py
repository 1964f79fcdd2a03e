"""Profiles: one table's configuration to be measured alone, on the worker pool."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from service.domain.errors import ShardwrightError
from service.domain.measurements import ComputeMeasurement, configuration_content, configured_table
from service.domain.plan import content_hash
from service.domain.tables import DIM_MULTIPLE, Optimizer, Table

QUEUE_PREFIX = "profile-"
"""Beginning of the name of a hardware's queue, and of a profile's campaign."""

_CUTS = (1, 2, 4)


class ProfileState(StrEnum):
    """Where a profile stands.

    ``queued`` and ``running`` end as ``measured`` or, after the last try, ``parked``; what nobody measured for too long
    is ``expired``.
    """

    QUEUED = "queued"
    RUNNING = "running"
    MEASURED = "measured"
    PARKED = "parked"
    EXPIRED = "expired"


class NoWorker(ShardwrightError):
    """No live worker serves the hardware; ``data`` names it and the hardware that is served."""

    kind = "no_worker"


class ProfileQuotaExceeded(ShardwrightError):
    """More new profiles than the caller may still queue today; ``data`` has the quota and what is left of it."""

    kind = "profile_quota_exceeded"


class ProfileRequestNotFound(ShardwrightError):
    """No request for profiles is stored under this id."""

    kind = "profile_request_not_found"


@dataclass(frozen=True, slots=True)
class TableProfile:
    """What is measured: a table alone, with its optimizer, at a batch size.

    Attributes:
        hardware: what it is measured on.
        table: the table; its name plays no part.
        batch_size: global batch size.
        optimizer: optimizer fused into the backward pass.
    """

    hardware: str
    table: Table
    batch_size: int
    optimizer: Optimizer

    @property
    def key(self) -> str:
        """Hash of the content, 32 hex digits: equal for equal configurations, whoever asks."""
        return content_hash(
            {
                "hardware": self.hardware,
                "table": self.configuration,
                "batch_size": self.batch_size,
                "optimizer": self.optimizer.value,
            }
        )

    @property
    def configuration(self) -> dict[str, Any]:
        """The table without its name, as JSON-like content."""
        return configuration_content(self.table) | {"embedding_dim": self.table.embedding_dim}

    @property
    def widths(self) -> tuple[int, ...]:
        """Columns that are measured: all, half and a quarter, as plans cut them, where those are legal widths."""
        dim = self.table.embedding_dim
        return tuple(dim // cut for cut in _CUTS if dim % (cut * DIM_MULTIPLE) == 0)


def configured_profile(
    hardware: str, configuration: Mapping[str, Any], batch_size: int, optimizer: Optimizer
) -> TableProfile:
    """The profile of a ``TableProfile.configuration``; its table is named ``table``."""
    table = replace(configured_table("table", configuration), embedding_dim=configuration["embedding_dim"])
    return TableProfile(hardware, table, batch_size, optimizer)


def campaign_of(key: str) -> str:
    """Name of the campaign that a profile's measurements are stored under."""
    return f"{QUEUE_PREFIX}{key}"


def queue_of(hardware: str) -> str:
    """Name of the queue that a hardware's workers serve."""
    return f"{QUEUE_PREFIX}{hardware}"


@dataclass(frozen=True, slots=True)
class WidthResult:
    """What was measured of a table at one width.

    Attributes:
        width: columns.
        forward_ms: milliseconds of the forward pass.
        backward_ms: milliseconds of the backward pass.
        noisy: whether the repeats disagreed, so that training leaves it out.
    """

    width: int
    forward_ms: float
    backward_ms: float
    noisy: bool


@dataclass(frozen=True, slots=True)
class StoredProfile:
    """A profile as it is kept.

    Attributes:
        key: its id.
        profile: what is measured.
        state: where it stands.
        attempts: tries begun, those that a worker gave back not counted.
        error: why the last try failed; None where none did since it was queued.
        rows_measured: rows that the table was cut to, to fit into the worker's memory; None where it was not cut.
        queued_at: when it was last asked for anew.
        started_at: when its last try began.
        finished_at: when it was measured or parked.
        expires_at: when it is given up where it still waits, or may be measured again where it does not.
        results: by width, widest first; empty until it is measured.
    """

    key: str
    profile: TableProfile
    state: ProfileState
    attempts: int
    error: str | None
    rows_measured: int | None
    queued_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    expires_at: datetime
    results: tuple[WidthResult, ...] = ()


@dataclass(frozen=True, slots=True)
class ProfileRequest:
    """Tables that a caller asked to have measured.

    Attributes:
        request_id: hash of who asked for which profiles under which names; asking again is the same request.
        created_at: when it was first asked.
        profiles: each table's name and its profile, in the order asked.
    """

    request_id: str
    created_at: datetime
    profiles: Sequence[tuple[str, StoredProfile]]


@dataclass(frozen=True, slots=True)
class ProfileTerms:
    """What callers may queue, and for how long.

    Attributes:
        quota_per_day: new profiles of one caller and day (UTC).
        expires_days: days after which one that waits is given up, and another may be measured again.
        worker_alive_s: seconds since the last heartbeat for which a worker counts as live.
    """

    quota_per_day: int
    expires_days: float
    worker_alive_s: float


@dataclass(frozen=True, slots=True)
class ProfileSettings:
    """How a worker measures.

    Attributes:
        device: ``cpu`` or ``cuda``, as this process sees it.
        memory_bytes: most that one table may take in all; rows are cut to it.
        noisy_spread: interquartile range over the repeats, relative to the median, above which they disagree.
    """

    device: str
    memory_bytes: int
    noisy_spread: float


@dataclass(frozen=True, slots=True)
class MeasuredProfile:
    """What came of a profile.

    Attributes:
        measurements: one for each width, in the order of ``TableProfile.widths``.
        rows: that the table was cut to; None where all were measured.
    """

    measurements: tuple[ComputeMeasurement, ...]
    rows: int | None
