"""Workers as processes: what they measure, what ends them, and that nothing is lost or done twice."""

import os
import random
import signal
import time
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from service.domain.profiles import ProfileState, StoredProfile, TableProfile
from service.jobs.supervisor import GRACE_S
from service.storage.embedded import EmbeddedPostgres
from service.storage.engine import ANSWER_TIMEOUT_S, build_engine
from service.storage.migrate import upgrade
from service.storage.profiles import ProfileRepository
from service.storage.trainings import TrainingRepository
from service.storage.workers import WorkerRepository
from tests.api.processes import is_alive, wait_for
from tests.frozen import frozen
from tests.jobs.made_up import CRASHES, REFUSED, SECONDS, SHORT, STUCK
from tests.jobs.supervised import (
    PATIENCE_S,
    TERMS,
    Supervised,
    all_is_right,
    begun,
    is_done,
    measuring_pid,
    profile,
    states,
    stored,
    supervised,
    worker_pids,
)

EVERY_FEW_SECONDS = "* * * * * */7"
"""A cron with seconds: a night is due while the database is away, and another after it."""


def lasting(seconds: float, number: int = 0) -> TableProfile:
    """A profile whose measurement takes so long."""
    return profile(SECONDS + round(1000 * seconds), batch_size=64 + number)


def queued(engine: Engine, *profiles: TableProfile) -> None:
    """Queues profiles once a worker is there."""
    wait_for(lambda: bool(worker_pids(engine)), PATIENCE_S)
    assert ProfileRepository(engine).queue_new(profiles, "someone", TERMS) == len(profiles)


def found(engine: Engine, asked: TableProfile) -> StoredProfile:
    profile = ProfileRepository(engine).get(asked.key)
    assert profile is not None
    return profile


def wait_until_measuring(supervisor: Supervised, asked: TableProfile) -> int:
    """Waits until the measurement of a profile has begun; the process that does it."""
    wait_for(lambda: asked.key in begun(supervisor.notes), PATIENCE_S)
    return measuring_pid(supervisor.notes)


def measuring_worker(engine: Engine) -> int:
    """Process of the worker that has the one profile which is being measured."""
    query = "SELECT pid FROM workers JOIN profiles ON worker_id = workers.id WHERE state = 'running'"
    with engine.connect() as connection:
        return int(connection.execute(text(query)).scalar_one())


def test_profiles_are_measured_and_what_fails_is_parked_while_others_go_on(
    engine: Engine, database_url: str, tmp_path: Path
) -> None:
    sound = [profile(rows, dim=64) for rows in range(100, 105)]
    crashing, refused, stuck, short = (profile(rows) for rows in (CRASHES, REFUSED, STUCK, SHORT))
    with supervised(database_url, tmp_path, SHARDWRIGHT_WORKER_JOB_TIMEOUT_S="5") as supervisor:
        queued(engine, crashing, refused, stuck, short, *sound)
        wait_for(lambda: is_done(engine), PATIENCE_S)
        assert supervisor.stop() == 0
    for one in sound:
        done = found(engine, one)
        assert (done.state, done.attempts, done.error) == (ProfileState.MEASURED, 1, None)
        assert [(result.width, result.forward_ms) for result in done.results] == [(64, 1.0), (32, 2.0), (16, 3.0)]
    for one, reason, tries in (
        (crashing, "SIGABRT", 3),
        (refused, "not to be measured", 1),
        (stuck, "longer than 5 s", 3),
        (short, "no memory just now", 3),
    ):
        failed = found(engine, one)
        assert (failed.state, failed.attempts) == (ProfileState.PARKED, tries)
        assert reason in (failed.error or "")
        assert begun(supervisor.notes).count(one.key) == tries
    # The first of the sound ones did not wait for the last try of what fails.
    assert begun(supervisor.notes).index(sound[0].key) < len(begun(supervisor.notes)) - 1
    all_is_right(engine)
    assert worker_pids(engine) == []


def test_killed_workers_lose_nothing_and_store_nothing_twice(engine: Engine, database_url: str, tmp_path: Path) -> None:
    chosen = random.Random(7)
    with supervised(database_url, tmp_path), supervised(database_url, tmp_path) as other:
        wait_for(lambda: len(worker_pids(engine)) == 2, PATIENCE_S)
        queued(engine, *(lasting(0.2 + 0.01 * i, i) for i in range(30)))
        kills = 0
        deadline = time.monotonic() + PATIENCE_S
        while not is_done(engine):
            assert time.monotonic() < deadline, states(engine)
            time.sleep(0.7)
            victims = [*worker_pids(engine), measuring_pid(other.notes)]
            if kills < 8 and len(begun(other.notes)) > 2:
                kills += 1
                victim = chosen.choice(victims)
                if is_alive(victim):
                    os.kill(victim, signal.SIGKILL)
    assert kills == 8
    ended = states(engine)
    assert sum(ended.values()) == 30
    assert ended.get("measured", 0) >= 25
    all_is_right(engine)


@pytest.mark.slow
@pytest.mark.parametrize("cron", ["", EVERY_FEW_SECONDS])
@pytest.mark.parametrize("seconds", [6, 40])
def test_a_restarted_database_is_found_again_with_notifications_heartbeats_and_nights(
    server_folder: Path, tmp_path: Path, seconds: int, cron: str
) -> None:
    server = EmbeddedPostgres(server_folder / "var")
    url = server.start()
    engine = build_engine(url)
    try:
        upgrade(engine)
        # Looking seldom: what starts soon was told of by a notification.
        with supervised(url, tmp_path, SHARDWRIGHT_WORKER_POLL_S="30", SHARDWRIGHT_NIGHTLY_CRON=cron) as supervisor:
            work = [lasting(0.4, i) for i in range(20)]
            queued(engine, *work)
            wait_for(lambda: states(engine).get("measured", 0) > 2, PATIENCE_S)
            server.stop()
            time.sleep(seconds)
            server.start()
            wait_for(lambda: _has_recovered(engine), PATIENCE_S)
            wait_for(lambda: is_done(engine), PATIENCE_S)
            late = lasting(0.01, 99)
            queued(engine, late)
            wait_for(lambda: found(engine, late).state is ProfileState.MEASURED, 20)
            nights = len(TrainingRepository(engine).all("made-up", 1_000))
            if cron:
                wait_for(lambda: len(TrainingRepository(engine).all("made-up", 1_000)) > nights, PATIENCE_S)
            assert supervisor.stop() == 0
        assert states(engine) == {"measured": 21}
        all_is_right(engine)
    finally:
        engine.dispose()
        server.stop()


def _has_recovered(engine: Engine) -> bool:
    """Whether the worker listens, and its heartbeat is fresh."""
    listening = "SELECT count(*) FROM pg_stat_activity WHERE query ILIKE 'listen%'"
    with engine.connect() as connection:
        heard = connection.scalar(text(listening)) or 0
    return heard > 0 and WorkerRepository(engine, 2).queue_state().live_workers.get("made-up") == 1


@pytest.mark.slow
@pytest.mark.parametrize("away_s", [0, 4])
def test_a_worker_whose_database_is_gone_stops_soon(server_folder: Path, tmp_path: Path, away_s: int) -> None:
    server = EmbeddedPostgres(server_folder / "var")
    url = server.start()
    engine = build_engine(url)
    try:
        upgrade(engine)
        with supervised(url, tmp_path, SHARDWRIGHT_WORKER_SHUTDOWN_S="20") as supervisor:
            wait_for(lambda: bool(worker_pids(engine)), PATIENCE_S)
            engine.dispose()
            server.stop()
            time.sleep(away_s)
            began = time.monotonic()
            assert supervisor.stop() == 0
            assert time.monotonic() - began < 10
    finally:
        engine.dispose()
        server.stop()


@pytest.mark.slow
def test_a_frozen_database_holds_up_no_stop(server_folder: Path, tmp_path: Path) -> None:
    with EmbeddedPostgres(server_folder / "var") as url:
        engine = build_engine(url)
        upgrade(engine)
        with supervised(url, tmp_path, SHARDWRIGHT_WORKER_SHUTDOWN_S="1") as supervisor:
            wait_for(lambda: bool(worker_pids(engine)), PATIENCE_S)
            engine.dispose()
            with frozen(server_folder / "var"):
                # A sweep is on its way.
                time.sleep(2)
                began = time.monotonic()
                supervisor.process.terminate()
                assert supervisor.process.wait(PATIENCE_S) == 0
                # A statement of the sweep and a new connection, a second for a job, and the time to give it back.
                assert time.monotonic() - began < ANSWER_TIMEOUT_S + 1 + GRACE_S + 4


def test_without_a_live_worker_the_figures_say_so(engine: Engine, database_url: str, tmp_path: Path) -> None:
    with supervised(database_url, tmp_path):
        wait_for(lambda: WorkerRepository(engine, 2).queue_state().live_workers == {"made-up": 1}, PATIENCE_S)
    assert WorkerRepository(engine, 2).queue_state().live_workers == {"made-up": 0}


@pytest.mark.slow
def test_a_worker_that_was_stopped_too_long_writes_nothing(engine: Engine, database_url: str, tmp_path: Path) -> None:
    asked = lasting(4)
    with (
        supervised(database_url, tmp_path, SHARDWRIGHT_WORKER_STALLED_S="8") as first,
        supervised(database_url, tmp_path, SHARDWRIGHT_WORKER_STALLED_S="8") as second,
    ):
        wait_for(lambda: len(worker_pids(engine)) == 2, PATIENCE_S)
        queued(engine, asked)
        wait_until_measuring(first, asked)
        stopped = measuring_worker(engine)
        os.kill(stopped, signal.SIGSTOP)
        try:
            wait_for(lambda: begun(first.notes).count(asked.key) == 2, PATIENCE_S)
        finally:
            os.kill(stopped, signal.SIGCONT)
        wait_for(lambda: "a claim was lost" in first.log.read_text() + second.log.read_text(), PATIENCE_S)
        wait_for(lambda: is_done(engine), PATIENCE_S)
        assert (found(engine, asked).state, found(engine, asked).attempts) == (ProfileState.MEASURED, 2)
        # The queue forgot the worker meanwhile: it starts anew.
        wait_for(lambda: len(set(worker_pids(engine)) - {stopped}) == 2, PATIENCE_S)
    all_is_right(engine)


@pytest.mark.slow
def test_a_worker_that_hangs_is_ended_and_its_job_done_by_its_successor(
    engine: Engine, database_url: str, tmp_path: Path
) -> None:
    asked = lasting(2)
    with supervised(database_url, tmp_path, SHARDWRIGHT_WORKER_STALLED_S="1") as supervisor:
        queued(engine, asked)
        wait_until_measuring(supervisor, asked)
        hanging = measuring_worker(engine)
        os.kill(hanging, signal.SIGSTOP)
        wait_for(lambda: not is_alive(hanging), PATIENCE_S)
        wait_for(lambda: is_done(engine), PATIENCE_S)
    assert (found(engine, asked).state, found(engine, asked).attempts) == (ProfileState.MEASURED, 2)
    all_is_right(engine)


@pytest.mark.slow
def test_a_job_longer_than_the_stall_limit_is_done_once(engine: Engine, database_url: str, tmp_path: Path) -> None:
    asked = lasting(8)
    with supervised(database_url, tmp_path), supervised(database_url, tmp_path) as other:
        queued(engine, asked)
        wait_for(lambda: is_done(engine), PATIENCE_S)
    assert begun(other.notes) == [asked.key]
    assert found(engine, asked).attempts == 1
    all_is_right(engine)


def test_a_stop_gives_the_job_back_in_time_and_the_next_worker_does_it(
    engine: Engine, database_url: str, tmp_path: Path
) -> None:
    asked = lasting(8)
    with supervised(database_url, tmp_path, SHARDWRIGHT_WORKER_SHUTDOWN_S="1") as supervisor:
        queued(engine, asked)
        measuring = wait_until_measuring(supervisor, asked)
        began = time.monotonic()
        assert supervisor.stop() == 0
        assert time.monotonic() - began < 1 + 10 + 5
    assert not is_alive(measuring)
    given_back = found(engine, asked)
    assert (given_back.state, given_back.attempts, given_back.error) == (ProfileState.QUEUED, 0, None)
    with supervised(database_url, tmp_path):
        wait_for(lambda: is_done(engine), PATIENCE_S)
    assert found(engine, asked).attempts == 1
    all_is_right(engine)


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 2])
def test_a_stop_while_five_jobs_run_finishes_the_short_ones_and_gives_the_others_back(
    engine: Engine, database_url: str, tmp_path: Path, times: int
) -> None:
    short, long = [lasting(6, i) for i in range(3)], [lasting(40, i) for i in range(3, 5)]
    with supervised(database_url, tmp_path, workers=5, SHARDWRIGHT_WORKER_SHUTDOWN_S="12") as supervisor:
        wait_for(lambda: len(worker_pids(engine)) == 5, PATIENCE_S)
        queued(engine, *short, *long)
        wait_for(lambda: len(begun(supervisor.notes)) == 5, PATIENCE_S)
        measuring = [int(line.split()[-1]) for line in supervisor.notes.read_text().splitlines()]
        workers, began = worker_pids(engine), time.monotonic()
        for _ in range(times):
            supervisor.process.terminate()
        assert supervisor.process.wait(PATIENCE_S) == 0
        assert time.monotonic() - began < 12 + 10
    assert not any(map(is_alive, [*workers, *measuring]))
    assert [found(engine, one).state for one in short] == [ProfileState.MEASURED] * 3
    given_back = [found(engine, one) for one in long]
    assert [(one.state, one.attempts) for one in given_back] == [(ProfileState.QUEUED, 0)] * 2
    assert stored(engine) == {f"profile-{one.key}": 3 for one in short}


@pytest.mark.slow
def test_a_stop_lets_a_short_job_finish(engine: Engine, database_url: str, tmp_path: Path) -> None:
    asked = lasting(1.5)
    with supervised(database_url, tmp_path) as supervisor:
        queued(engine, asked)
        wait_until_measuring(supervisor, asked)
        assert supervisor.stop() == 0
    assert found(engine, asked).state is ProfileState.MEASURED
    all_is_right(engine)


def test_nothing_outlives_a_killed_supervisor(engine: Engine, database_url: str, tmp_path: Path) -> None:
    asked = lasting(8)
    with supervised(database_url, tmp_path, SHARDWRIGHT_WORKER_SHUTDOWN_S="1") as supervisor:
        queued(engine, asked)
        left = [wait_until_measuring(supervisor, asked), *worker_pids(engine)]
        supervisor.process.kill()
        supervisor.process.wait()
        wait_for(lambda: not any(map(is_alive, left)), PATIENCE_S)
    assert (found(engine, asked).state, found(engine, asked).attempts) == (ProfileState.QUEUED, 0)


def test_a_measurement_ends_with_its_killed_worker(engine: Engine, database_url: str, tmp_path: Path) -> None:
    asked = lasting(4)
    with supervised(database_url, tmp_path, SHARDWRIGHT_WORKER_STALLED_S="60") as supervisor:
        queued(engine, asked)
        measuring = wait_until_measuring(supervisor, asked)
        (worker,) = worker_pids(engine)
        os.kill(worker, signal.SIGKILL)
        wait_for(lambda: not is_alive(measuring))
        # The supervisor saw it end, so that nobody waits for missing heartbeats.
        wait_for(lambda: begun(supervisor.notes).count(asked.key) == 2, 30)
        wait_for(lambda: is_done(engine), PATIENCE_S)
    assert found(engine, asked).attempts == 2
    all_is_right(engine)


@pytest.mark.slow
def test_a_job_that_finishes_while_its_worker_stops_is_nobody_elses(
    engine: Engine, database_url: str, tmp_path: Path
) -> None:
    asked = lasting(7)
    quick = {"SHARDWRIGHT_WORKER_STALLED_S": "2", "SHARDWRIGHT_WORKER_SHUTDOWN_S": "20"}
    with supervised(database_url, tmp_path, 1, "made-up", **quick) as stopping:
        queued(engine, asked)
        wait_until_measuring(stopping, asked)
        with supervised(database_url, tmp_path, 1, "made-up", **quick):
            wait_for(lambda: len(worker_pids(engine)) == 2, PATIENCE_S)
            assert stopping.stop() == 0
            wait_for(lambda: is_done(engine), PATIENCE_S)
    assert begun(stopping.notes) == [asked.key]
    assert found(engine, asked).attempts == 1
    all_is_right(engine)
