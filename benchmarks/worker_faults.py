"""Two hundred profiles on two workers while workers are killed and the database is restarted: is anything lost?

Two supervisors with a worker each share one database. Every few seconds a worker, or the process that measures for it,
is killed (SIGKILL); once a whole supervisor with all that is its own; once, in the middle, the database is stopped for
some seconds. Some of the profiles end the process that measures them whenever they are tried. Measuring is made up (a
profile takes half a second) unless --operator is given.
Run: python -m benchmarks.worker_faults [--jobs N] [--outage SECONDS] [--operator]
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import text

from service.domain.errors import StorageUnavailable
from service.domain.measurements import ComputeMeasurement
from service.domain.profiles import MeasuredProfile, ProfileSettings, ProfileTerms, TableProfile, campaign_of
from service.domain.tables import Optimizer, Table
from service.storage.embedded import EmbeddedPostgres
from service.storage.engine import build_engine, storage_errors
from service.storage.migrate import upgrade
from service.storage.profiles import ProfileRepository

HARDWARE = "cpu-fbgemm"
CRASHING_ROWS = 666
MADE_UP_S = 0.5
KILL_EVERY_S = 3.0
LONGEST_S = 330.0

_OPERATOR = "WORKER_FAULTS_OPERATOR"
_TERMS = ProfileTerms(quota_per_day=100_000, expires_days=30, worker_alive_s=60)
_SETTINGS = {
    "SHARDWRIGHT_WORKER_HEARTBEAT_S": "1",
    "SHARDWRIGHT_WORKER_STALLED_S": "6",
    "SHARDWRIGHT_WORKER_SWEEP_S": "2",
    "SHARDWRIGHT_WORKER_MEMORY_GIB": "0.2",
    "SHARDWRIGHT_PROFILE_RETRY_S": "1",
    "SHARDWRIGHT_LOG_LEVEL": "error",
    "SHARDWRIGHT_NIGHTLY_CRON": "",
}


class FaultyBench:
    """The operator, or made-up times; crashes where it is told to."""

    def __init__(self, settings: ProfileSettings) -> None:
        """Loads the operator where it is wanted."""
        self._operator = None
        if os.environ.get(_OPERATOR):
            from service.profiling.table_profile import OperatorBench

            self._operator = OperatorBench(settings)

    def __call__(self, profile: TableProfile, first_index: int) -> MeasuredProfile:
        """Measures a profile."""
        if profile.table.num_embeddings == CRASHING_ROWS:
            os.abort()
        if self._operator:
            return self._operator(profile, first_index)
        time.sleep(MADE_UP_S)
        return MeasuredProfile(tuple(_made_up(profile, first_index + i, w) for i, w in enumerate(profile.widths)), None)


def _made_up(profile: TableProfile, index: int, width: int) -> ComputeMeasurement:
    return ComputeMeasurement(
        campaign=campaign_of(profile.key),
        index=index,
        hardware=profile.hardware,
        tables=(profile.table.sliced(width),),
        batch_size=profile.batch_size,
        optimizer=profile.optimizer,
        forward_ms=1.0,
        backward_ms=2.0,
        forward_spread=0.0,
        backward_spread=0.0,
        repeats=1,
        environment={"bench": "1", "device": "made up"},
        measured_at=datetime.now(UTC),
    )


@dataclass
class Faults:
    """What was done to the workers."""

    worker: int = 0
    measuring: int = 0
    supervisor: int = 0
    outage_s: float = 0.0
    recovered_s: float = 0.0
    longest_without_result_s: float = 0.0


class Run:
    """One run: the supervisors, the database, and what happens to them."""

    def __init__(self, url: str, server: EmbeddedPostgres, seed: int) -> None:
        self._url = url
        self._server = server
        self._random = random.Random(seed)
        self._engine = build_engine(url)
        self._supervisors = [self._start(), self._start()]
        self.faults = Faults()

    def queue(self, jobs: int) -> None:
        """Queues so many profiles once both workers are there, one in twenty of them crashing."""
        _wait(lambda: len(self._workers()) == 2, 60)
        rows = [CRASHING_ROWS if i % 20 == 19 else 1_000 + i for i in range(jobs)]
        tables = [Table("t", count, 8, 2.0) for count in rows]
        profiles = [TableProfile(HARDWARE, table, 64 + i, Optimizer.SGD) for i, table in enumerate(tables)]
        if ProfileRepository(self._engine).queue_new(profiles, "benchmark", _TERMS) != jobs:
            raise SystemExit("not all profiles were queued")

    def until_done(self, jobs: int, outage_s: float) -> dict[str, int]:
        """Kills until all profiles are at an end; how many are in each state."""
        began = last_kill = last_result = time.monotonic()
        measured, states = 0, self._states()
        while states.get("queued", 0) + states.get("running", 0):
            now = time.monotonic()
            if now - began > LONGEST_S:
                return states
            if states.get("measured", 0) > measured:
                self.faults.longest_without_result_s = max(self.faults.longest_without_result_s, now - last_result)
                measured, last_result = states["measured"], now
            if now - last_kill > KILL_EVERY_S:
                last_kill = now
                self._kill_one()
            if measured > jobs // 3 and not self.faults.supervisor:
                self._kill_supervisor()
            if measured > jobs // 2 and not self.faults.outage_s:
                self._restart_database(outage_s)
            time.sleep(0.2)
            states = self._states()
        return states

    def stop(self) -> None:
        """Ends the supervisors in order."""
        for supervisor in self._supervisors:
            supervisor.terminate()
        for supervisor in self._supervisors:
            supervisor.wait(60)

    def doubts(self) -> list[str]:
        """What is not as it should be in the end."""
        queries = {
            "measured profiles without all their widths": """
                SELECT count(*) FROM profiles p WHERE state = 'measured' AND
                    (SELECT count(*) FROM compute_measurements WHERE campaign = 'profile-' || p.id) <> 2
            """,
            "measurements of profiles that are not measured": """
                SELECT count(*) FROM compute_measurements m WHERE NOT EXISTS
                    (SELECT FROM profiles p WHERE m.campaign = 'profile-' || p.id AND p.state = 'measured')
            """,
            "profiles measured more than once": "SELECT count(*) FROM profiles WHERE rounds > 1",
            "jobs left in the queue": "SELECT count(*) FROM procrastinate_jobs",
        }
        with self._engine.connect() as connection:
            found = {what: connection.scalar(text(query)) or 0 for what, query in queries.items()}
        return [f"{count} {what}" for what, count in found.items() if count]

    def attempts(self) -> dict[int, int]:
        """Profiles by the number of tries that they took."""
        with self._engine.connect() as connection:
            return Counter(connection.scalars(text("SELECT attempts FROM profiles")))

    def _start(self) -> "subprocess.Popen[bytes]":
        environment = {**os.environ, **_SETTINGS, "SHARDWRIGHT_DATABASE_URL": self._url}
        command = [sys.executable, "-m", "benchmarks.worker_faults", "--supervise"]
        return subprocess.Popen(command, env=environment, start_new_session=True)

    def _workers(self) -> list[int]:
        query = "SELECT pid FROM workers WHERE id IN (SELECT id FROM procrastinate_workers)"
        try:
            with storage_errors(), self._engine.connect() as connection:
                return [pid for pid in connection.scalars(text(query)) if Path(f"/proc/{pid}").exists()]
        except StorageUnavailable:
            return []

    def _states(self) -> dict[str, int]:
        query = text("SELECT state, count(*) FROM profiles GROUP BY state")
        with self._engine.connect() as connection:
            return {row.state: row[1] for row in connection.execute(query)}

    def _kill_one(self) -> None:
        workers = self._workers()
        if not workers:
            return
        worker = self._random.choice(workers)
        measuring = [pid for pid in _children(worker) if "spawn_main" in _command(pid)]
        if measuring and self._random.random() < 0.5:
            _kill(measuring[0])
            self.faults.measuring += 1
        else:
            _kill(worker)
            self.faults.worker += 1

    def _kill_supervisor(self) -> None:
        """All of one at once, as where its machine is lost; a new one comes in its place."""
        lost = self._supervisors[0]
        os.killpg(lost.pid, signal.SIGKILL)
        lost.wait()
        self.faults.supervisor += 1
        self._supervisors[0] = self._start()

    def _restart_database(self, seconds: float) -> None:
        self._server.stop()
        time.sleep(seconds)
        self._server.start()
        back = time.monotonic()
        self.faults.outage_s = seconds
        live = text("SELECT count(*) FROM procrastinate_workers WHERE last_heartbeat > now() - interval '2 s'")

        def recovered() -> bool:
            with self._engine.connect() as connection:
                return (connection.scalar(live) or 0) >= 2

        _wait(recovered, 60)
        self.faults.recovered_s = time.monotonic() - back


def _wait(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit("what was waited for did not come")
        time.sleep(0.1)


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += [int(child) for child in (task / "children").read_text(encoding="utf-8").split()]
    except OSError:
        return found
    return found


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8")
    except OSError:
        return ""


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _report(run: Run, states: dict[str, int], seconds: float) -> bool:
    faults, doubts = run.faults, run.doubts()
    print(f"profiles: {', '.join(f'{count} {state}' for state, count in sorted(states.items()))}")
    print(f"tries: {', '.join(f'{count} took {tries}' for tries, count in sorted(run.attempts().items()))}")
    print(
        f"kills: {faults.worker} of workers, {faults.measuring} of measuring processes, {faults.supervisor} of a "
        f"whole supervisor; the database was away for {faults.outage_s:g} s and both workers back "
        f"{faults.recovered_s:.1f} s after it"
    )
    print(f"{seconds:.0f} s in all; the longest time without a result was {faults.longest_without_result_s:.1f} s")
    print(f"not as it should be: {', '.join(doubts) or 'nothing'}")
    return not doubts and states.keys() <= {"measured", "parked"}


def _supervise() -> None:
    from service.jobs.measuring import Device
    from service.settings import Settings
    from service.wiring import work

    work(Settings(), HARDWARE, [Device("cpu")], "benchmarks.worker_faults:FaultyBench")


def main() -> None:
    """Runs the benchmark; exit code 1 where something was lost or stored twice."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--outage", type=float, default=6.0, help="seconds that the database is away")
    parser.add_argument("--operator", action="store_true", help="measure with the real operator")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--supervise", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.supervise:
        _supervise()
        return
    if given.operator:
        os.environ[_OPERATOR] = "1"
    with tempfile.TemporaryDirectory(prefix="shardwright-faults-") as folder:
        server = EmbeddedPostgres(Path(folder) / "var")
        url = server.start()
        try:
            upgrade(build_engine(url))
            run = Run(url, server, given.seed)
            try:
                run.queue(given.jobs)
                began = time.monotonic()
                states = run.until_done(given.jobs, given.outage)
                seconds = time.monotonic() - began
            finally:
                run.stop()
            right = _report(run, states, seconds)
        finally:
            server.stop()
    if not right:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
