"""The repository of profiles, as workers see it: claims, results, failures, and the sweep that loses none.

A worker may write as long as the profile names its job: whoever takes a job away gives the profile a new one, so that
a worker which was stopped for too long finds its claim gone, whatever it does then.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, Engine, text

from service.domain.errors import ShardwrightError
from service.domain.measurements import ComputeMeasurement
from service.domain.profiles import TableProfile, campaign_of, configured_profile
from service.domain.tables import Optimizer
from service.storage.engine import short_transaction
from service.storage.measurements import insert_compute
from service.storage.profile_queue import CARRIED, LEFT_JOBS, TASK, queue

_BACK_OFF = 4

_CLAIM = text(
    """
    UPDATE profiles SET state = 'running', attempts = attempts + 1, worker_id = :worker, started_at = now()
    WHERE id = :id AND claim = :job AND state = 'queued'
    RETURNING hardware, configuration, batch_size, optimizer,
        (SELECT coalesce(max(index) + 1, 0) FROM compute_measurements WHERE campaign = :campaign) AS first_index
    """
)
_MEASURED = text(
    """
    UPDATE profiles SET state = 'measured', rounds = rounds + 1, error = NULL, rows_measured = :rows,
        finished_at = now(), expires_at = now() + make_interval(secs => 86400 * :days)
    WHERE id = :id AND claim = :job AND state = 'running'
    """
)
_IS_MEASURED = text("SELECT FROM profiles WHERE id = :id AND claim = :job AND state = 'measured'")
_FAILED = text(
    """
    UPDATE profiles SET error = :error, failures = failures + 1
    WHERE id = :id AND claim = :job AND state = 'running' RETURNING attempts
    """
)
_PARK = text("UPDATE profiles SET state = 'parked', finished_at = now(), worker_id = NULL WHERE id = :id")
_GIVEN_BACK = text(
    """
    UPDATE profiles SET attempts = attempts - 1
    WHERE id = :id AND claim = :job AND state = 'running' RETURNING id
    """
)
_STRANDED = text(
    f"""
    SELECT id, claim, state FROM profiles WHERE state IN ('queued', 'running') AND NOT {CARRIED}
    ORDER BY id FOR UPDATE SKIP LOCKED
    """  # noqa: S608
)
_EXPIRED = text(
    """
    UPDATE profiles SET state = 'expired' WHERE id IN (
        SELECT id FROM profiles WHERE state = 'queued' AND expires_at < now() FOR UPDATE SKIP LOCKED
    ) RETURNING procrastinate_cancel_job_v1(claim, false, true)
    """
)
_DELETE_LEFT = text(f"DELETE FROM procrastinate_jobs WHERE id IN ({LEFT_JOBS})")  # noqa: S608


class LostClaim(ShardwrightError):
    """The profile was given to another worker meanwhile; nothing was written."""

    kind = "lost_claim"


@dataclass(frozen=True, slots=True)
class Claim:
    """A profile that one worker may measure.

    Attributes:
        key: the profile's id.
        job: id of the queue's job; writing ends with it.
        profile: what is to be measured.
        first_index: position of its first measurement in its campaign.
    """

    key: str
    job: int
    profile: TableProfile
    first_index: int


@dataclass(frozen=True, slots=True)
class Retries:
    """How failed tries are repeated.

    Attributes:
        tries: after which a profile is parked.
        wait_s: seconds before the second try; four times as long before each later one.
        expires_days: days after which a measured or parked profile may be measured again.
        stalled_s: seconds without a heartbeat after which a worker counts as dead.
    """

    tries: int
    wait_s: float
    expires_days: float
    stalled_s: float

    def delay_s(self, attempts: int) -> float:
        """Seconds until the next try after so many."""
        return float(self.wait_s * _BACK_OFF ** max(0, attempts - 1))


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep found: profiles queued again, parked and expired."""

    queued: int
    parked: int
    expired: int


class ClaimRepository:
    """Claims and their outcomes in Postgres; each method is one transaction."""

    def __init__(self, engine: Engine, retries: Retries) -> None:
        """Uses the engine's pool; opens no connection yet."""
        self._engine = engine
        self._retries = retries

    def claim(self, key: str, job: int, worker: int) -> Claim | None:
        """Takes a profile for a worker; None where the job is no longer the profile's.

        Raises:
            StorageUnavailable: the database cannot be reached.
        """
        with short_transaction(self._engine) as connection:
            found = connection.execute(
                _CLAIM, {"id": key, "job": job, "worker": worker, "campaign": campaign_of(key)}
            ).one_or_none()
        if found is None:
            return None
        profile = configured_profile(found.hardware, found.configuration, found.batch_size, Optimizer(found.optimizer))
        return Claim(key, job, profile, found.first_index)

    def record(self, claim: Claim, measurements: Sequence[ComputeMeasurement], rows: int | None) -> None:
        """Stores what was measured and ends the claim, both or neither; harmless when repeated.

        Args:
            claim: whose outcome this is.
            measurements: one for each width.
            rows: that the table was cut to; None where it was not.

        Raises:
            LostClaim: the profile was given to another worker meanwhile.
            StorageUnavailable: the database cannot be reached; whether it was stored is not known.
        """
        values = {"id": claim.key, "job": claim.job, "rows": rows, "days": self._retries.expires_days}
        with short_transaction(self._engine) as connection:
            if connection.execute(_MEASURED, values).rowcount:
                if insert_compute(connection, measurements) != len(measurements):
                    raise ShardwrightError(f"measurements of profile {claim.key} are stored already")
            elif connection.execute(_IS_MEASURED, values).one_or_none() is None:
                raise LostClaim(f"profile {claim.key} is no longer job {claim.job}'s", profile=claim.key)

    def fail(self, claim: Claim, error: str, *, final: bool = False) -> bool:
        """Ends a try that failed: queued again after a while, or parked after the last; whether it was parked.

        Args:
            claim: whose try it was.
            error: why it failed.
            final: whether every other try would fail alike.

        Raises:
            LostClaim: the profile was given to another worker meanwhile.
            StorageUnavailable: the database cannot be reached.
        """
        with short_transaction(self._engine) as connection:
            return self._failed(connection, claim.key, claim.job, error, final)

    def give_back(self, claim: Claim) -> None:
        """Queues a profile again that was not measured through no fault of its own: the try does not count.

        Raises:
            LostClaim: the profile was given to another worker meanwhile.
            StorageUnavailable: the database cannot be reached.
        """
        with short_transaction(self._engine) as connection:
            if connection.scalar(_GIVEN_BACK, {"id": claim.key, "job": claim.job}) is None:
                raise LostClaim(f"profile {claim.key} is no longer job {claim.job}'s", profile=claim.key)
            queue(connection, [claim.key])

    def sweep(self) -> Swept:
        """Finds profiles whose job is gone or with a dead worker, and gives them a new one, or parks them.

        Any number may sweep at the same time. Also expires what nobody measured in time.

        Raises:
            StorageUnavailable: the database cannot be reached.
        """
        with short_transaction(self._engine) as connection:
            alive = {"alive_s": self._retries.stalled_s}
            queued = parked = 0
            for found in connection.execute(_STRANDED, alive).all():
                if found.state == "queued":
                    queue(connection, [found.id])
                    queued += 1
                elif self._failed(connection, found.id, found.claim, "the worker that measured it ended or hung"):
                    parked += 1
                else:
                    queued += 1
            connection.execute(_DELETE_LEFT, {**alive, "tasks": [TASK]})
            expired = len(connection.execute(_EXPIRED).all())
        return Swept(queued, parked, expired)

    def _failed(self, connection: Connection, key: str, job: int, error: str, final: bool = False) -> bool:
        attempts = connection.scalar(_FAILED, {"id": key, "job": job, "error": error})
        if attempts is None:
            raise LostClaim(f"profile {key} is no longer job {job}'s", profile=key)
        if final or attempts >= self._retries.tries:
            connection.execute(_PARK, {"id": key})
            return True
        queue(connection, [key], self._retries.delay_s(attempts))
        return False
