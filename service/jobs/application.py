"""The job queue's application: procrastinate over the service's database, with the service's tasks."""

from procrastinate import App, JobContext, PsycopgConnector

from service.jobs.profile_job import ProfileJob
from service.storage.engine import libpq_parameters
from service.storage.profile_queue import TASK

_POOL_TIMEOUT_S = 10.0


def build_app(database_url: str, job: ProfileJob) -> App:
    """An application whose task measures profiles; connects when it is opened.

    The queue only carries: what a profile's state is, who may write it and how often it is tried is in ``profiles``
    (see ``service.storage.claims``). So a task never fails for the queue, nor is tried again by it.
    """
    conninfo, options = libpq_parameters(database_url, application_name="shardwright-queue")
    connector = PsycopgConnector(conninfo=conninfo, kwargs=options, min_size=1, max_size=4, timeout=_POOL_TIMEOUT_S)
    app = App(connector=connector)

    @app.task(name=TASK, pass_context=True)
    async def measure_profile(context: JobContext, profile: str) -> None:
        if context.job.id is not None and context.job.worker_id is not None:
            await job.run(profile, context.job.id, context.job.worker_id)

    return app
