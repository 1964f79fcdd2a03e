"""The job queue's application: procrastinate over the service's database, with the service's tasks."""

from procrastinate import App, JobContext, PsycopgConnector

from service.domain.profiles import queue_of
from service.jobs.nightly import NightJob
from service.jobs.profile_job import ProfileJob
from service.storage.engine import libpq_parameters
from service.storage.nights import PRUNE, RETRAIN
from service.storage.profile_queue import TASK

_POOL_TIMEOUT_S = 3.0
"""Longer than a connection takes; a worker that stops waits for it twice where the database is gone."""

_BEFORE_PROFILES = 1
"""Priority of what is done at night: profiles that wait have 0, and would hold it up for as long as there are any."""


def build_app(database_url: str, job: ProfileJob, night: NightJob) -> App:
    """An application that measures profiles and does what is done at night; connects when it is opened.

    The queue only carries: what a profile's state is, who may write it and how often it is tried is in ``profiles``
    (see ``service.storage.claims``), and what a training came to is in ``trainings``. So a task never fails for the
    queue, nor is tried again by it.
    """
    conninfo, options = libpq_parameters(database_url, application_name="shardwright-queue")
    connector = PsycopgConnector(conninfo=conninfo, kwargs=options, min_size=1, max_size=4, timeout=_POOL_TIMEOUT_S)
    app = App(connector=connector)

    @app.task(name=TASK, pass_context=True)
    async def measure_profile(context: JobContext, profile: str) -> None:
        if context.job.id is not None and context.job.worker_id is not None:
            await job.run(profile, context.job.id, context.job.worker_id)

    _add_night(app, night)
    return app


def _add_night(app: App, night: NightJob) -> None:
    """Once a night for a hardware, and once for the database, however many workers there are.

    Every worker asks for the job of a night, the first to do so makes it, and one that is free takes it. No lock of the
    queue's: a dead worker would keep it.
    """

    @app.task(name=RETRAIN, pass_context=True)
    async def retrain(context: JobContext, timestamp: int, hardware: str) -> None:
        if context.job.id is not None:
            await night.retrain(context.job.id)

    @app.task(name=PRUNE)
    async def prune(timestamp: int) -> None:
        await night.prune()

    if cron := night.nightly.cron:
        hardware, queue = night.hardware, queue_of(night.hardware)
        app.periodic(
            cron=cron, periodic_id=hardware, task_kwargs={"hardware": hardware},
            queue=queue, queueing_lock=f"{RETRAIN} {hardware}", priority=_BEFORE_PROFILES,
        )(retrain)  # fmt: skip
        app.periodic(
            cron=cron, periodic_id="database", queue=queue, queueing_lock=PRUNE, priority=_BEFORE_PROFILES
        )(prune)  # fmt: skip
