"""The one way in which a profile comes to wait: with a job of its own in the queue, made in the same transaction."""

from collections.abc import Sequence

from sqlalchemy import Connection, text

from service.domain.profiles import QUEUE_PREFIX

TASK = "measure_profile"
"""Name of the queue's task; its one argument is ``profile``, the profile's id."""

# A job is used once: a try after a failure has a new one. So the job's id says who may still write (the fencing token).
_QUEUE = text(
    """
    WITH deferred AS MATERIALIZED (
        SELECT id, (procrastinate_defer_jobs_v1(ARRAY[ROW(
            :prefix || hardware, :task, 0, NULL, NULL, jsonb_build_object('profile', id),
            CASE WHEN :delay_s > 0 THEN now() + make_interval(secs => :delay_s) END
        )::procrastinate_job_to_defer_v1]))[1] AS job
        FROM profiles WHERE id = ANY(:ids)
    )
    UPDATE profiles SET state = 'queued', claim = deferred.job, worker_id = NULL
    FROM deferred WHERE profiles.id = deferred.id
    """
)

LIVE_WORKER = "SELECT id FROM procrastinate_workers WHERE last_heartbeat > now() - make_interval(secs => :alive_s)"
"""Ids of the queue's workers that sent a heartbeat within ``:alive_s`` seconds."""

LEFT_JOBS = f"""
    SELECT id FROM procrastinate_jobs
    WHERE task_name = ANY(:tasks) AND status = 'doing' AND (worker_id IS NULL OR worker_id NOT IN ({LIVE_WORKER}))
    FOR UPDATE SKIP LOCKED
"""  # noqa: S608
"""Ids of jobs of ``:tasks`` that were begun and whose worker is gone, locked."""

CARRIED = f"""
    EXISTS (
        SELECT FROM procrastinate_jobs
        WHERE procrastinate_jobs.id = profiles.claim
            AND (status = 'todo' OR status = 'doing' AND procrastinate_jobs.worker_id IN ({LIVE_WORKER}))
    )
"""
"""Whether a profile's job still waits, or is with a live worker."""


def queue(connection: Connection, ids: Sequence[str], delay_s: float = 0.0) -> None:
    """Makes a job for each of these profiles, to be begun after ``delay_s`` seconds; whoever had one has it no more."""
    if ids:
        connection.execute(_QUEUE, {"prefix": QUEUE_PREFIX, "task": TASK, "delay_s": delay_s, "ids": sorted(ids)})
