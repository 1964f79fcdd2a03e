"""Supervisors as processes, and what the tests ask the database about their work."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Engine, text

from service.domain.profiles import ProfileState, ProfileTerms, TableProfile
from service.domain.tables import Optimizer, Table
from service.storage.profiles import ProfileRepository
from tests.api.processes import clean_environment, wait_for
from tests.jobs.made_up import NOTES

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 60
TERMS = ProfileTerms(quota_per_day=1_000, expires_days=30, worker_alive_s=60)
QUICK = {
    "SHARDWRIGHT_WORKER_HEARTBEAT_S": "0.3",
    "SHARDWRIGHT_WORKER_STALLED_S": "5",
    "SHARDWRIGHT_WORKER_POLL_S": "0.3",
    "SHARDWRIGHT_WORKER_SWEEP_S": "0.5",
    "SHARDWRIGHT_WORKER_SHUTDOWN_S": "5",
    "SHARDWRIGHT_WORKER_JOB_TIMEOUT_S": "120",
    "SHARDWRIGHT_PROFILE_RETRY_S": "0.2",
}


def profile(rows: int = 1_000, dim: int = 16, hardware: str = "made-up", batch_size: int = 64) -> TableProfile:
    """A profile; tables of other rows are other profiles."""
    return TableProfile(hardware, Table("t", rows, dim, 2.0), batch_size, Optimizer.SGD)


class Supervised:
    """A supervisor process and its workers, with quick settings."""

    def __init__(
        self, database_url: str, folder: Path, workers: int = 1, hardware: str = "made-up", **settings: str
    ) -> None:
        self.notes = folder / "notes"
        self.notes.touch()
        self.log = folder / f"supervisor-{len(list(folder.iterdir()))}.log"
        environment = clean_environment(DATABASE_URL=database_url, **{NOTES: str(self.notes)}, **(QUICK | settings))
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.jobs.work_made_up", hardware, str(workers)],
                cwd=ROOT,
                env=environment,
                stderr=log,
                start_new_session=True,
            )

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        self.process.terminate()
        return self.process.wait(60)


@contextmanager
def supervised(
    database_url: str, folder: Path, workers: int = 1, hardware: str = "made-up", **settings: str
) -> Iterator[Supervised]:
    """A supervisor that is stopped at the end, if it was not before."""
    found = Supervised(database_url, folder, workers, hardware, **settings)
    try:
        yield found
    finally:
        if found.process.poll() is None:
            found.process.terminate()
            try:
                found.process.wait(60)
            except subprocess.TimeoutExpired:
                found.process.kill()
                found.process.wait()


def worker_pids(engine: Engine) -> list[int]:
    """Processes of the workers that are registered."""
    with engine.connect() as connection:
        query = "SELECT pid FROM workers WHERE id IN (SELECT id FROM procrastinate_workers) ORDER BY pid"
        return [pid for pid in connection.scalars(text(query)) if Path(f"/proc/{pid}").exists()]


def states(engine: Engine) -> dict[str, int]:
    """Profiles in each state."""
    with engine.connect() as connection:
        return dict(connection.execute(text("SELECT state, count(*) FROM profiles GROUP BY state")).all())


def is_done(engine: Engine) -> bool:
    """Whether there are profiles and none waits or runs."""
    found = states(engine)
    return bool(found) and not found.keys() & {"queued", "running"}


def open_jobs(engine: Engine) -> int:
    """Profiles' jobs in the queue."""
    with engine.connect() as connection:
        return (
            connection.scalar(text("SELECT count(*) FROM procrastinate_jobs WHERE task_name = 'measure_profile'")) or 0
        )


def stored(engine: Engine) -> dict[str, int]:
    """Measurements by campaign."""
    with engine.connect() as connection:
        query = "SELECT campaign, count(*) FROM compute_measurements GROUP BY campaign"
        return dict(connection.execute(text(query)).all())


def all_is_right(engine: Engine) -> None:
    """Whatever was measured is stored once at each width, nothing else is, and the queue is empty."""
    done = {f"profile-{one.key}" for one in ProfileRepository(engine).profiles(state=ProfileState.MEASURED)}
    assert stored(engine) == dict.fromkeys(done, 3)
    wait_for(lambda: open_jobs(engine) == 0, PATIENCE_S)


def begun(notes: Path) -> Sequence[str]:
    """Keys of the profiles whose measurement was begun, once for each time."""
    return [line.split()[0] for line in notes.read_text().splitlines()]


def measuring_pid(notes: Path) -> int:
    """The process that began the last measurement."""
    return int(notes.read_text().split()[-1])


def is_there(pid: int) -> bool:
    """Whether a process id is in use."""
    return os.path.exists(f"/proc/{pid}")
