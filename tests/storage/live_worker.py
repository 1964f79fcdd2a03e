"""A worker as the database sees it."""

import itertools

from sqlalchemy import Engine, text

from service.storage.workers import WorkerRepository

_pids = itertools.count(1)


def live_worker(engine: Engine, hardware: str, age_s: float = 0.0) -> int:
    """Registers a worker whose last heartbeat is ``age_s`` seconds old; its id."""
    with engine.begin() as connection:
        statement = """
            INSERT INTO procrastinate_workers (last_heartbeat) VALUES (now() - make_interval(secs => :age)) RETURNING id
        """
        worker = int(connection.scalar(text(statement), {"age": age_s}) or 0)
    WorkerRepository(engine, 30).register(worker, "supervisor", "host", next(_pids), hardware, "cpu")
    return worker


def fetched(engine: Engine, worker: int, hardware: str) -> int:
    """The job that a worker takes from its queue; fails where there is none."""
    with engine.begin() as connection:
        statement = "SELECT id FROM procrastinate_fetch_job_v2(ARRAY['profile-' || :hardware], :worker)"
        job = connection.scalar(text(statement), {"hardware": hardware, "worker": worker})
    assert job is not None
    return int(job)
