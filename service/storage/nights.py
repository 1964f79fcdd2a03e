"""The repository of nightly jobs: what became of one that did not come to its end by itself."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Connection, Engine, func, insert, select, text

from service.domain.trainings import MODELS, Ended
from service.storage.engine import short_transaction
from service.storage.profile_queue import LEFT_JOBS
from service.storage.rows import TrainingRow

RETRAIN, PRUNE = "retrain_at_night", "prune_at_night"
"""Names of the queue's tasks; both get the ``timestamp`` of their night, the first one ``hardware`` too."""

_BEGAN = text("SELECT max(at) FROM procrastinate_events WHERE job_id = :job AND type = 'started'")
_LEFT = text(
    f"""
    DELETE FROM procrastinate_jobs WHERE id IN ({LEFT_JOBS})
    RETURNING task_name, args ->> 'hardware' AS hardware,
        (SELECT max(at) FROM procrastinate_events WHERE job_id = procrastinate_jobs.id AND type = 'started') AS began
    """  # noqa: S608
)


class NightRepository:
    """Ends nightly jobs in Postgres; each method is one transaction."""

    def __init__(self, engine: Engine, stalled_s: float) -> None:
        """Uses the engine's pool; a worker counts as dead after ``stalled_s`` seconds without a heartbeat."""
        self._engine = engine
        self._stalled_s = stalled_s

    def fail(self, job: int, hardware: str, reason: str) -> None:
        """Stores that the training which a job was at has failed, unless a sweep did so and deleted the job.

        Raises:
            StorageUnavailable: the database cannot be reached.
        """
        with short_transaction(self._engine) as connection:
            began = connection.scalar(_BEGAN, {"job": job})
            if began is not None:
                _fail(connection, hardware, began, reason)

    def sweep(self) -> Sequence[str]:
        """Deletes jobs whose worker is gone; hardware whose training ended with it, and is stored as failed.

        Any number may sweep at the same time. The next night begins anew.

        Raises:
            StorageUnavailable: the database cannot be reached.
        """
        values = {"tasks": [RETRAIN, PRUNE], "alive_s": self._stalled_s}
        with short_transaction(self._engine) as connection:
            left = [found for found in connection.execute(_LEFT, values).all() if found.task_name == RETRAIN]
            for found in left:
                _fail(connection, found.hardware, found.began, "the worker that trained it ended or hung")
        return [found.hardware for found in left]


def _fail(connection: Connection, hardware: str, began: datetime, reason: str) -> None:
    """Of the first model that has no outcome since a night began; models are trained in their order."""
    row = TrainingRow
    of_night = select(row.model, row.finished_at).where(row.hardware == hardware, row.finished_at >= began)
    done = {found.model: found.finished_at for found in connection.execute(of_night)}
    model = next((model for model in MODELS if model not in done), None)
    if model is not None:
        values = {"hardware": hardware, "model": model, "outcome": Ended.FAILED.value, "reason": reason}
        times = {"started_at": max([*done.values(), began]), "finished_at": func.clock_timestamp()}
        connection.execute(insert(row).values(**values, **times))
