"""Nights of workers as processes: once each, with an outcome whatever becomes of them, and without harm to the rest."""

import asyncio
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import cast

import pytest
from sqlalchemy import Engine, text

from service.domain.callers import WITHOUT_KEY
from service.domain.ports import StoredPlan
from service.domain.profiles import queue_of
from service.domain.trainings import MODELS, Ended, Outcome
from service.jobs.nightly import NightJob, Nightly
from service.settings import Settings
from service.storage.measurements import MeasurementRepository
from service.storage.nights import PRUNE, RETRAIN, NightRepository
from service.storage.plans import PlanRepository
from service.storage.profiles import ProfileRepository
from service.storage.promotions import PromotionRepository
from service.storage.trainings import TrainingRepository
from service.storage.workers import WorkerRepository
from service.telemetry import logging as structured_logging
from service.upkeep import prune_at_night, retrain_at_night
from tests.api.processes import clean_environment, is_alive, kill, wait_for
from tests.jobs.made_up import SECONDS
from tests.jobs.made_up_night import CRASHES, NIGHT, STUCK
from tests.jobs.supervised import (
    PATIENCE_S,
    ROOT,
    TERMS,
    Supervised,
    begun,
    is_done,
    measuring_pid,
    profile,
    supervised,
    worker_pids,
)
from tests.storage.live_worker import fetched, live_worker
from tests.usecases import made_up_nights
from tests.usecases.made_up_nights import combinations, earlier, inverted, later

HARDWARE = "made-up"


@pytest.fixture
def night_settings(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """For what is otherwise called in a process of its own."""
    monkeypatch.setattr(structured_logging, "configure", lambda level: None)
    return Settings(database_url=database_url, model_store=str(tmp_path / "models"))


def cron(minutes_ago: int = 0) -> str:
    """Once a day; the last time was so many minutes ago, and is made up for by a worker that starts now."""
    when = datetime.now(UTC) - timedelta(minutes=minutes_ago)
    return f"{when.minute} {when.hour} * * *"


def outcomes(engine: Engine) -> list[Outcome]:
    """The first one first."""
    return TrainingRepository(engine).all(HARDWARE, 100)[::-1]


def jobs(engine: Engine) -> int:
    with engine.connect() as connection:
        return (
            connection.scalar(text("SELECT count(*) FROM procrastinate_jobs WHERE task_name = 'retrain_at_night'")) or 0
        )


def wait_until_stuck(engine: Engine, supervisor: Supervised) -> int:
    """Waits until the first model is through; the process that trains."""
    wait_for(lambda: len(outcomes(engine)) == 1, PATIENCE_S)
    return measuring_pid(supervisor.notes)


def failure(engine: Engine) -> Outcome:
    """What came after the first model."""
    wait_for(lambda: len(outcomes(engine)) == 2, PATIENCE_S)
    wait_for(lambda: jobs(engine) == 0, PATIENCE_S)
    first, failed = outcomes(engine)
    assert (first.model, failed.model, failed.ended) == (*MODELS[:2], Ended.FAILED)
    assert first.finished_at <= failed.started_at <= failed.finished_at
    return failed


@pytest.mark.slow
def test_two_supervisors_of_a_hardware_train_once_a_night_and_again_the_next(
    engine: Engine, database_url: str, tmp_path: Path
) -> None:
    night = cron(2)
    with (
        supervised(database_url, tmp_path, SHARDWRIGHT_NIGHTLY_CRON=night) as first,
        supervised(database_url, tmp_path, SHARDWRIGHT_NIGHTLY_CRON=night) as second,
    ):
        wait_for(lambda: len(worker_pids(engine)) == 2, PATIENCE_S)
        wait_for(lambda: len(outcomes(engine)) == len(MODELS), PATIENCE_S)
        wait_for(lambda: "pruned" in first.log.read_text() + second.log.read_text(), PATIENCE_S)
        # One that starts later in the same night finds it over.
        with supervised(database_url, tmp_path, SHARDWRIGHT_NIGHTLY_CRON=night) as third:
            wait_for(lambda: len(worker_pids(engine)) == 3, PATIENCE_S)
            wait_for(lambda: jobs(engine) == 0, PATIENCE_S)
    logs = [each.log.read_text() for each in (first, second, third)]
    assert sum(log.count('"pruned"') for log in logs) == 1
    assert [outcome.model for outcome in outcomes(engine)] == [*MODELS]
    assert begun(first.notes) == [HARDWARE]
    with supervised(database_url, tmp_path, SHARDWRIGHT_NIGHTLY_CRON=cron()):
        wait_for(lambda: len(outcomes(engine)) == 2 * len(MODELS), PATIENCE_S)


@pytest.mark.parametrize(
    ("planted", "timeout_h", "said"),
    [
        (CRASHES, "1", "SIGABRT, as by a crash"),
        pytest.param(STUCK, "0.0015", "longer than 0.0015 h", marks=pytest.mark.slow),
    ],
)
def test_a_training_that_crashes_or_takes_too_long_leaves_its_reason_and_the_worker(
    engine: Engine, database_url: str, tmp_path: Path, planted: str, timeout_h: str, said: str
) -> None:
    nightly = {"SHARDWRIGHT_NIGHTLY_CRON": cron(), "SHARDWRIGHT_NIGHTLY_TIMEOUT_H": timeout_h, NIGHT: planted}
    with supervised(database_url, tmp_path, 1, HARDWARE, **nightly):
        wait_for(lambda: len(worker_pids(engine)) == 1, PATIENCE_S)
        (worker,) = worker_pids(engine)
        assert said in failure(engine).reason
        assert WorkerRepository(engine, 2).queue_state().live_workers == {HARDWARE: 1}
        asked = profile()
        assert ProfileRepository(engine).queue_new([asked], "someone", TERMS) == 1
        wait_for(lambda: is_done(engine), PATIENCE_S)
        assert worker_pids(engine) == [worker]
    assert len(outcomes(engine)) == 2


@pytest.mark.slow
def test_a_stop_ends_the_training_says_so_and_the_next_night_trains(
    engine: Engine, database_url: str, tmp_path: Path
) -> None:
    quick = {"SHARDWRIGHT_WORKER_SHUTDOWN_S": "0.5", "SHARDWRIGHT_NIGHTLY_CRON": cron(2), NIGHT: STUCK}
    with supervised(database_url, tmp_path, 1, HARDWARE, **quick) as supervisor:
        training = wait_until_stuck(engine, supervisor)
        began = time.monotonic()
        assert supervisor.stop() == 0
        assert time.monotonic() - began < 10
    assert not is_alive(training)
    assert failure(engine).reason == "the worker was stopped while it trained"
    with supervised(database_url, tmp_path, SHARDWRIGHT_NIGHTLY_CRON=cron()):
        wait_for(lambda: len(outcomes(engine)) == 2 + len(MODELS), PATIENCE_S)


def test_a_killed_worker_ends_the_training_which_is_found_and_not_begun_again_that_night(
    engine: Engine, database_url: str, tmp_path: Path
) -> None:
    nightly = {"SHARDWRIGHT_NIGHTLY_CRON": cron(), NIGHT: STUCK}
    with supervised(database_url, tmp_path, 1, HARDWARE, **nightly) as supervisor:
        training = wait_until_stuck(engine, supervisor)
        (worker,) = worker_pids(engine)
        kill(worker)
        assert failure(engine).reason == "the worker that trained it ended or hung"
        wait_for(lambda: not is_alive(training), PATIENCE_S)
        wait_for(lambda: len(set(worker_pids(engine)) - {worker}) == 1, PATIENCE_S)
        asked = profile()
        ProfileRepository(engine).queue_new([asked], "someone", TERMS)
        wait_for(lambda: is_done(engine), PATIENCE_S)
    assert len(outcomes(engine)) == 2
    assert begun(supervisor.notes).count(HARDWARE) == 1


def _left_by_its_worker(engine: Engine, task: str) -> int:
    """A nightly job that was begun by a worker that is gone since."""
    worker = live_worker(engine, HARDWARE)
    deferred = """
        SELECT procrastinate_defer_jobs_v1(ARRAY[ROW(
            :queue, :task, 1, NULL, NULL, jsonb_build_object('hardware', :hardware ::text, 'timestamp', 0), NULL
        )::procrastinate_job_to_defer_v1])
    """
    with engine.begin() as connection:
        connection.execute(text(deferred), {"queue": queue_of(HARDWARE), "task": task, "hardware": HARDWARE})
    job = fetched(engine, worker, HARDWARE)
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM procrastinate_workers"))
    return job


def test_a_night_that_a_sweep_ended_fails_once_also_where_its_worker_wakes_up(engine: Engine) -> None:
    job, nights = _left_by_its_worker(engine, RETRAIN), NightRepository(engine, 30)
    assert nights.sweep() == [HARDWARE]
    nights.fail(job, HARDWARE, "the worker was stopped while it trained")
    assert [outcome.reason for outcome in outcomes(engine)] == ["the worker that trained it ended or hung"]


def test_a_pruning_that_its_worker_left_is_swept_and_no_training_fails_for_it(engine: Engine) -> None:
    _left_by_its_worker(engine, PRUNE)
    assert NightRepository(engine, 30).sweep() == []
    assert outcomes(engine) == []
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM procrastinate_jobs")) == 0


def test_a_night_that_gets_no_process_leaves_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    told = []

    class Nights:
        def fail(self, *what: object) -> None:
            told.append(what)

    def start(process: SpawnProcess) -> None:
        raise BlockingIOError("no process ids are left")

    monkeypatch.setattr(SpawnProcess, "start", start)
    nightly = Nightly("", 1.0, None, "time:sleep", "time:sleep")
    asyncio.run(NightJob(nightly, HARDWARE, (), cast(NightRepository, Nights())).retrain(7))
    assert told == [(7, HARDWARE, "its process did not start: no process ids are left")]


@pytest.mark.slow
def test_heartbeats_go_on_and_profiles_wait_while_a_night_trains(
    engine: Engine, database_url: str, tmp_path: Path
) -> None:
    quick = {"SHARDWRIGHT_WORKER_SHUTDOWN_S": "0.5", "SHARDWRIGHT_WORKER_STALLED_S": "1"}
    nightly = {"SHARDWRIGHT_NIGHTLY_CRON": cron(), NIGHT: STUCK}
    with supervised(database_url, tmp_path, 1, HARDWARE, **quick, **nightly) as supervisor:
        wait_until_stuck(engine, supervisor)
        asked = profile()
        ProfileRepository(engine).queue_new([asked], "someone", TERMS)
        deadline = time.monotonic() + 3
        while time.monotonic() < deadline:
            assert WorkerRepository(engine, 1).queue_state().live_workers == {HARDWARE: 1}
            time.sleep(0.1)
        assert not is_done(engine)
        assert len(outcomes(engine)) == 1
    # Once it was stopped the next worker measures.
    with supervised(database_url, tmp_path):
        wait_for(lambda: is_done(engine), PATIENCE_S)


@pytest.mark.slow
def test_a_night_goes_before_the_profiles_that_wait(engine: Engine, database_url: str, tmp_path: Path) -> None:
    asked = [profile(SECONDS + 500, batch_size=64 + i) for i in range(20)]
    with supervised(database_url, tmp_path, SHARDWRIGHT_NIGHTLY_CRON="* * * * * */3") as supervisor:
        wait_for(lambda: bool(worker_pids(engine)), PATIENCE_S)
        assert ProfileRepository(engine).queue_new(asked, "someone", TERMS) == len(asked)
        wait_for(lambda: is_done(engine), PATIENCE_S)
    done = begun(supervisor.notes)
    first, *_, last = [position for position, what in enumerate(done) if what != HARDWARE]
    assert HARDWARE in done[first:last]


def test_without_a_cron_no_night_comes(engine: Engine, database_url: str, tmp_path: Path) -> None:
    with supervised(database_url, tmp_path, SHARDWRIGHT_NIGHTLY_CRON="") as supervisor:
        wait_for(lambda: bool(worker_pids(engine)), PATIENCE_S)
        ProfileRepository(engine).queue_new([profile()], "someone", TERMS)
        wait_for(lambda: is_done(engine), PATIENCE_S)
    assert HARDWARE not in begun(supervisor.notes)
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM procrastinate_periodic_defers")) == 0


def test_a_night_while_somebody_retrains_or_without_anything_to_train_on_is_no_failure(
    engine: Engine, night_settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    retrain_at_night(night_settings, "unheard-of")
    assert "neither a model nor a measurement" in str(caplog.records[-1].__dict__["fields"])
    MeasurementRepository(engine).add_compute_many(combinations("first", 5, earlier()))
    with TrainingRepository(engine).alone(made_up_nights.HARDWARE):
        retrain_at_night(night_settings, made_up_nights.HARDWARE)
    assert "another process retrains" in str(caplog.records[-1].__dict__["fields"])
    assert TrainingRepository(engine).all(None, 10) == []


def test_a_night_deletes_what_was_kept_long_enough(engine: Engine, night_settings: Settings) -> None:
    for name in ("old", "used"):
        PlanRepository(engine).put(StoredPlan(name, HARDWARE, "auto", 1.0, {}, {"status": "complete"}), WITHOUT_KEY)
    with engine.begin() as connection:
        days = night_settings.keep_plans_days + 1
        connection.execute(
            text(f"UPDATE plans SET last_used_at = now() - interval '{days} days' WHERE plan_id = 'old'")
        )
    prune_at_night(night_settings)
    with engine.connect() as connection:
        assert [*connection.scalars(text("SELECT plan_id FROM plans"))] == ["used"]


@pytest.mark.slow
def test_nights_of_the_real_worker_promote_what_is_better_and_refuse_a_planted_bad_set(
    engine: Engine, database_url: str, tmp_path: Path
) -> None:
    hardware, measurements = made_up_nights.HARDWARE, MeasurementRepository(engine)
    trainings, promotions = TrainingRepository(engine), PromotionRepository(engine)
    measurements.add_compute_many(combinations("first", 250, earlier()))

    def a_night(cron: str, ended: int) -> dict[str, Outcome]:
        environment = clean_environment(
            DATABASE_URL=database_url, SHARDWRIGHT_MODEL_STORE=str(tmp_path / "models"), SHARDWRIGHT_NIGHTLY_CRON=cron
        )
        command = [sys.executable, "-m", "service", "worker", "--hardware", hardware]
        with (tmp_path / "log").open("a") as log:
            worker = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=log)
        try:
            wait_for(lambda: len(trainings.all(hardware, 100)) == ended, 300)
        finally:
            worker.terminate()
            assert worker.wait(60) == 0
        return {outcome.model: outcome for outcome in trainings.all(hardware, len(MODELS))}

    found = a_night(cron(2), len(MODELS))
    assert found["compute"].trained == f"{hardware}/compute/1"
    assert {found[model].ended for model in MODELS[1:]} == {Ended.FAILED}
    assert "0 exchanges" in found["communication"].reason
    measurements.add_compute_many(inverted(combinations("planted", 500, later(), seed=1)))
    refused = a_night(cron(), 2 * len(MODELS))["compute"]
    assert (refused.ended, refused.trained, refused.serving) == (Ended.REFUSED, None, f"{hardware}/compute/1")
    assert "when the serving version was trained is" in refused.reason
    assert len(promotions.history(hardware, "compute", 10)) == 1
