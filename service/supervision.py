"""Composition root of the worker pool: a supervisor from the settings."""

import contextlib
import logging
import threading
import uuid
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from sqlalchemy import Engine

from service.domain.errors import ModelStoreUnwritable
from service.domain.trainings import MODELS, Ended, Outcome
from service.jobs.measuring import OPERATOR_BENCH, Device, MeasuringSpec
from service.jobs.nightly import Nightly
from service.settings import Settings
from service.storage.claims import ClaimRepository, Retries
from service.storage.nights import NightRepository
from service.storage.trainings import TrainingRepository
from service.storage.workers import WorkerRepository

if TYPE_CHECKING:
    from service.jobs.supervisor import Supervisor

RETRAIN = "service.upkeep:retrain_at_night"
_PRUNE = "service.upkeep:prune_at_night"

_LEAST_SHUTDOWN_S = 0.1

_log = logging.getLogger(__name__)


def beside_serving(settings: Settings) -> Settings:
    """Settings of a worker that stops while the API lets its requests finish, in the same time."""
    from service.jobs.supervisor import GRACE_S

    left = max(_LEAST_SHUTDOWN_S, settings.shutdown_timeout_s - GRACE_S)
    return settings.model_copy(update={"worker_shutdown_s": min(settings.worker_shutdown_s, left)})


def nightly(settings: Settings, engine: Engine, retrain_with: str = RETRAIN) -> Nightly:
    """What the workers on the database of an engine do at night."""
    at_database = settings.model_copy(update={"database_url": engine.url.render_as_string(hide_password=False)})
    return Nightly(
        cron=settings.nightly_cron,
        timeout_s=settings.nightly_timeout_h * 3600,
        settings=at_database,
        retrain=retrain_with,
        prune=_PRUNE,
    )


def build_supervisor(
    settings: Settings,
    engine: Engine,
    hardware: str,
    devices: Sequence[Device],
    nightly: Nightly,
    bench: str = OPERATOR_BENCH,
) -> "Supervisor":
    """A supervisor of one worker a device, on the database of an engine.

    Raises:
        StorageUnavailable: the database cannot be reached.
    """
    # Whatever only plans or serves does without the queue's packages.
    from service.jobs.supervisor import Supervisor
    from service.jobs.worker import WorkerSpec

    retries = Retries(
        settings.profile_tries, settings.profile_retry_s, settings.profile_expires_days, settings.worker_stalled_s
    )
    name, memory_bytes = uuid.uuid4().hex, int(settings.worker_memory_gib * 2**30)
    specs = [
        WorkerSpec(
            database_url=engine.url.render_as_string(hide_password=False),
            supervisor=name,
            hardware=hardware,
            measuring=MeasuringSpec(device, memory_bytes, settings.profile_noisy_spread, bench),
            nightly=nightly,
            retries=retries,
            heartbeat_s=settings.worker_heartbeat_s,
            poll_s=settings.worker_poll_s,
            job_timeout_s=settings.worker_job_timeout_s,
            shutdown_s=settings.worker_shutdown_s,
            log_level=settings.log_level,
        )
        for device in devices
    ]
    if nightly.cron:
        _note_unwritable(settings.model_store, TrainingRepository(engine), hardware)
    workers = WorkerRepository(engine, settings.worker_stalled_s)
    nights = NightRepository(engine, settings.worker_stalled_s)
    return Supervisor(specs, ClaimRepository(engine, retries), nights, workers, settings.worker_sweep_s)


def _note_unwritable(model_store: str, trainings: TrainingRepository, hardware: str) -> None:
    """Where no night could write what it trains, says so now: in the log, and as a training that failed, once."""
    from service.registry.store import ModelStore

    try:
        ModelStore(model_store).refuse_unwritable()
    except ModelStoreUnwritable as error:
        _log.warning("nights will train nothing", extra={"fields": {"cause": error.detail}})
        last = trainings.of_model(hardware, MODELS[0], 1)
        if not last or last[0].reason != error.detail:
            now = trainings.now()
            trainings.add(Outcome(hardware, MODELS[0], Ended.FAILED, error.detail, now, now))


@contextlib.contextmanager
def supervised(supervisor: "Supervisor", stop: threading.Event) -> Iterator[None]:
    """A supervisor at work in a thread; it stops its workers once ``stop`` is set, at the end at the latest."""
    thread = threading.Thread(target=supervisor.run, args=(stop,), name="supervisor")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
