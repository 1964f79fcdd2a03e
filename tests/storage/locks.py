"""Waiting for what transactions do to each other."""

import time

from sqlalchemy import Engine, text


def wait_for_a_lock(engine: Engine) -> None:
    """Until some statement waits for a lock."""
    waiting = text(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )
    while True:
        with engine.connect() as connection:
            if connection.scalar(waiting):
                return
        time.sleep(0.01)
