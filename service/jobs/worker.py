"""One worker: a process that does one job at a time for one device."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from dataclasses import dataclass
from multiprocessing import parent_process

from procrastinate.exceptions import ConnectorException
from procrastinate.worker import Worker
from psycopg_pool import PoolTimeout

from service.domain.errors import StorageUnavailable
from service.domain.profiles import queue_of
from service.jobs.application import build_app
from service.jobs.measuring import MeasuringProcess, MeasuringSpec
from service.jobs.nightly import NightJob, Nightly
from service.jobs.profile_job import ProfileJob
from service.storage.claims import ClaimRepository, Retries
from service.storage.engine import build_engine
from service.storage.nights import NightRepository
from service.storage.workers import WorkerRepository
from service.telemetry import logging as structured_logging

_REGISTRATION_POLL_S = 0.02
_SIDE_TASKS = {"listener", "update_heartbeats"}
_PERIODIC_TASKS = {"deferrer"}
"""Procrastinate's names of what must not end while a worker runs; the latter where something is done at night."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """Everything that a worker's process needs to know.

    Attributes:
        database_url: where the queue is.
        supervisor: name of the parent, unlike any other's.
        hardware: whose profiles it measures.
        measuring: how and on which device.
        nightly: what is done at night.
        retries: how failed tries are repeated.
        heartbeat_s: seconds between heartbeats.
        poll_s: seconds between looks at the queue, beside its notifications.
        job_timeout_s: most seconds that one profile may take.
        shutdown_s: seconds that a job in hand has to finish once the worker is to stop; then it is given back.
        log_level: of the process.
    """

    database_url: str
    supervisor: str
    hardware: str
    measuring: MeasuringSpec
    nightly: Nightly
    retries: Retries
    heartbeat_s: float
    poll_s: float
    job_timeout_s: float
    shutdown_s: float
    log_level: str


def main(spec: WorkerSpec) -> None:
    """Works until SIGTERM, SIGINT or the end of the parent; ends also where the queue's connection is lost for good."""
    structured_logging.configure(spec.log_level)
    # It tells of every job; what came of those is logged here.
    logging.getLogger("procrastinate").setLevel(logging.WARNING)
    try:
        asyncio.run(_work(spec))
    except (ConnectorException, PoolTimeout) as error:
        # The database is away, or forgot this worker while it was stopped: the supervisor starts another.
        _log.error("the worker lost the queue", extra={"fields": {"cause": repr(error.__cause__ or error)}})
        sys.exit(1)


async def _work(spec: WorkerSpec) -> None:
    engine = build_engine(spec.database_url, application_name="shardwright-worker", pool_size=2)
    measuring = MeasuringProcess(spec.measuring)
    profiles = ProfileJob(ClaimRepository(engine, spec.retries), measuring, spec.job_timeout_s)
    nights = NightRepository(engine, spec.retries.stalled_s)
    night = NightJob(spec.nightly, spec.hardware, spec.measuring.device.cpus, nights)
    app = build_app(spec.database_url, profiles, night)
    try:
        async with app.open_async():
            worker = Worker(
                app,
                queues=[queue_of(spec.hardware)],
                concurrency=1,
                fetch_job_polling_interval=spec.poll_s,
                shutdown_graceful_timeout=spec.shutdown_s,
                delete_jobs="always",
                install_signal_handlers=False,
                update_heartbeat_interval=spec.heartbeat_s,
                stalled_worker_timeout=spec.retries.stalled_s,
            )
            workers = WorkerRepository(engine, spec.retries.stalled_s)
            attending = asyncio.create_task(_attend(worker, workers, spec, _stop_wanted()))
            try:
                await worker.run()  # type: ignore[no-untyped-call]
            finally:
                attending.cancel()
    finally:
        measuring.end()
        engine.dispose()


def _stop_wanted() -> asyncio.Event:
    """Set once this process is told to stop, or its parent has ended."""
    wanted, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, wanted.set)
    # The supervisor held it back until here.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    parent = parent_process()
    if parent is not None:

        def orphaned() -> None:
            loop.remove_reader(parent.sentinel)
            wanted.set()

        loop.add_reader(parent.sentinel, orphaned)
    return wanted


async def _attend(worker: Worker, workers: WorkerRepository, spec: WorkerSpec, stop: asyncio.Event) -> None:
    """Registers the worker, and stops it when that is wanted or when it can no longer do its work.

    By itself it goes on without notifications or heartbeats where one of these fails (a restarted database is enough),
    or when it was stopped for so long that the queue forgot it. A new process has all of them again.
    """
    try:
        while worker.worker_id is None:
            await asyncio.sleep(_REGISTRATION_POLL_S)
        host, pid, device = socket.gethostname(), os.getpid(), str(spec.measuring.device)
        await asyncio.to_thread(workers.register, worker.worker_id, spec.supervisor, host, pid, spec.hardware, device)
        _log.info("working", extra={"fields": {"worker": worker.worker_id, "device": device}})
        needed = _SIDE_TASKS | (_PERIODIC_TASKS if spec.nightly.cron else set())
        while not await _happens(stop, spec.heartbeat_s):
            missing = needed - {task.get_name() for task in asyncio.all_tasks()}
            if missing or await _forgotten(workers, spec.supervisor, pid):
                _log.warning("the worker starts anew", extra={"fields": {"missing": sorted(missing)}})
                return
    except StorageUnavailable as error:
        _log.warning("the worker cannot register", extra={"fields": {"cause": error.detail}})
    finally:
        worker.stop()  # type: ignore[no-untyped-call]
    await _go_on_beating(worker, spec.heartbeat_s)


async def _go_on_beating(worker: Worker, every_s: float) -> None:
    """Heartbeats of a worker that stops: by itself it sends none while its job finishes, which others would take."""
    while (known := worker.worker_id) is not None:
        with contextlib.suppress(ConnectorException, PoolTimeout):
            await worker.app.job_manager.update_heartbeat(known)
        await asyncio.sleep(every_s)


async def _happens(event: asyncio.Event, within_s: float) -> bool:
    try:
        await asyncio.wait_for(event.wait(), within_s)
    except TimeoutError:
        return False
    return True


async def _forgotten(workers: WorkerRepository, supervisor: str, pid: int) -> bool:
    try:
        return await asyncio.to_thread(workers.heartbeat_age_s, supervisor, pid) is None
    except StorageUnavailable:
        return False
