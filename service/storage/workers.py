"""The repository of workers, and what the queue looks like from outside.

A worker is live while the queue's own worker of its id sends heartbeats (procrastinate's table of workers).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Engine, text
from sqlalchemy.dialects.postgresql import insert

from service.storage.engine import storage_errors
from service.storage.profile_queue import CARRIED, LIVE_WORKER
from service.storage.profile_rows import WorkerRow

_HEARTBEAT_AGE = text(
    """
    SELECT extract(epoch FROM now() - last_heartbeat) FROM procrastinate_workers WHERE id IN
        (SELECT id FROM workers WHERE supervisor = :supervisor AND pid = :pid AND ended_at IS NULL)
    """
)
_END = text(
    """
    DELETE FROM procrastinate_workers WHERE id IN
        (SELECT id FROM workers WHERE supervisor = :supervisor AND pid = :pid AND ended_at IS NULL)
    """
)
_PRUNE = text(
    f"""
    DELETE FROM procrastinate_workers WHERE id IN
        (SELECT id FROM procrastinate_workers WHERE id NOT IN ({LIVE_WORKER}) FOR UPDATE SKIP LOCKED)
    """  # noqa: S608
)
_NOTE_ENDED = text(
    "UPDATE workers SET ended_at = now() WHERE ended_at IS NULL AND id NOT IN (SELECT id FROM procrastinate_workers)"
)
_FORGET = text("DELETE FROM workers WHERE ended_at < now() - make_interval(days => :days)")

_STATES = text("SELECT hardware, state, count(*), sum(rounds), sum(failures) FROM profiles GROUP BY hardware, state")
_PRUNED = text("SELECT hardware, measured, failures FROM pruned_profiles")
_WAITING = text(
    """
    SELECT hardware, extract(epoch FROM now() - min(queued_at)) FROM profiles
    WHERE state IN ('queued', 'running') GROUP BY hardware
    """
)
_STALLED = text(
    f"SELECT hardware, count(*) FROM profiles WHERE state IN ('queued', 'running') AND NOT {CARRIED} GROUP BY hardware"  # noqa: S608
)
_PARKED_OF_LATE = text(
    """
    SELECT hardware, count(*) FROM profiles
    WHERE state = 'parked' AND finished_at > now() - interval '1 day' GROUP BY hardware
    """
)
_HEARTBEAT = text(
    """
    SELECT hardware, extract(epoch FROM now() - max(last_heartbeat))
    FROM workers JOIN procrastinate_workers USING (id) GROUP BY hardware
    """
)
_LIVE = text(
    f"SELECT hardware, count(*) FILTER (WHERE id IN ({LIVE_WORKER})) FROM workers GROUP BY hardware"  # noqa: S608
)


@dataclass(frozen=True, slots=True)
class QueueState:
    """The profile queue at one moment, each by hardware.

    Attributes:
        profiles: profiles in each state.
        measured: times that a profile was measured, those that were pruned counted.
        failures: tries that failed, likewise.
        oldest_s: seconds since the oldest profile that waits or is measured was asked for.
        stalled: profiles whose job is gone or with a worker without heartbeats.
        parked_of_late: profiles that were parked within a day, by the database's clock, and are still.
        live_workers: workers with a heartbeat; 0 where there was one within days.
        heartbeat_s: seconds since the last heartbeat of any worker that has not been noted as gone.
    """

    profiles: Mapping[tuple[str, str], int]
    measured: Mapping[str, int]
    failures: Mapping[str, int]
    oldest_s: Mapping[str, float]
    stalled: Mapping[str, int]
    parked_of_late: Mapping[str, int]
    live_workers: Mapping[str, int]
    heartbeat_s: Mapping[str, float]


class WorkerRepository:
    """Keeps workers in Postgres."""

    def __init__(self, engine: Engine, alive_s: float) -> None:
        """Uses the engine's pool; a worker counts as live for ``alive_s`` seconds after a heartbeat."""
        self._engine = engine
        self._alive = {"alive_s": alive_s}

    def register(self, worker: int, supervisor: str, host: str, pid: int, hardware: str, device: str) -> None:
        """Notes a worker under the queue's id for it; ``supervisor`` is unlike any other's name.

        Raises:
            StorageUnavailable: the database cannot be reached.
        """
        values = {
            "id": worker,
            "supervisor": supervisor,
            "host": host,
            "pid": pid,
            "hardware": hardware,
            "device": device,
        }
        with storage_errors(), self._engine.begin() as connection:
            connection.execute(insert(WorkerRow).values(values))

    def heartbeat_age_s(self, supervisor: str, pid: int) -> float | None:
        """Seconds since a process's last heartbeat; None where it is not registered, or no longer.

        Raises:
            StorageUnavailable: the database cannot be reached.
        """
        with storage_errors(), self._engine.connect() as connection:
            found = connection.scalar(_HEARTBEAT_AGE, {"supervisor": supervisor, "pid": pid})
            return None if found is None else float(found)

    def end(self, supervisor: str, pid: int) -> None:
        """Notes that a process is gone, before its heartbeats would tell.

        Raises:
            StorageUnavailable: the database cannot be reached.
        """
        with storage_errors(), self._engine.begin() as connection:
            connection.execute(_END, {"supervisor": supervisor, "pid": pid})
            connection.execute(_NOTE_ENDED)

    def prune(self, keep_days: int = 7) -> None:
        """Notes that workers without heartbeats are gone, and forgets those that have been for some days.

        Raises:
            StorageUnavailable: the database cannot be reached.
        """
        with storage_errors(), self._engine.begin() as connection:
            connection.execute(_PRUNE, self._alive)
            connection.execute(_NOTE_ENDED)
            connection.execute(_FORGET, {"days": keep_days})

    def queue_state(self) -> QueueState:
        """What the queue looks like now.

        Raises:
            StorageUnavailable: the database cannot be reached, or does not answer within two seconds.
        """
        with storage_errors(), self._engine.connect() as connection:
            connection.execute(text("SET LOCAL statement_timeout = '2s'"))
            states = connection.execute(_STATES).all()
            pruned = connection.execute(_PRUNED).all()
            live = {hardware: int(count) for hardware, count in connection.execute(_LIVE, self._alive)}
            heartbeat = {hardware: float(age) for hardware, age in connection.execute(_HEARTBEAT)}
            waiting = {hardware: float(age) for hardware, age in connection.execute(_WAITING)}
            stalled = {hardware: int(count) for hardware, count in connection.execute(_STALLED, self._alive)}
            parked = {hardware: int(count) for hardware, count in connection.execute(_PARKED_OF_LATE)}
        known = {hardware for hardware, *_ in [*states, *pruned]} | set(live)
        measured, failures = dict.fromkeys(known, 0), dict.fromkeys(known, 0)
        for hardware, rounds, failed in [*((row[0], *row[3:]) for row in states), *pruned]:
            measured[hardware] += int(rounds)
            failures[hardware] += int(failed)
        return QueueState(
            profiles={(hardware, state): count for hardware, state, count, *_ in states},
            measured=measured,
            failures=failures,
            oldest_s={hardware: waiting.get(hardware, 0.0) for hardware in known},
            stalled={hardware: stalled.get(hardware, 0) for hardware in known},
            parked_of_late={hardware: parked.get(hardware, 0) for hardware in known},
            live_workers={hardware: live.get(hardware, 0) for hardware in known},
            heartbeat_s=heartbeat,
        )
