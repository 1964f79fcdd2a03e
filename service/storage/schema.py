"""All tables that the database is to have."""

from typing import Any

from service.storage import access_rows, idempotency_rows, profile_rows, under_way_rows  # noqa: F401
from service.storage.rows import Row

# Of all modules of rows: each adds its tables.
METADATA = Row.metadata

QUEUE_TABLES = "procrastinate_"
"""Beginning of the names of the job queue's tables, which are not declared here: its own schema makes them."""


def declared_here(name: str | None, kind: str, parents: Any) -> bool:
    """Whether a table that Alembic finds in a database is a matter of ``METADATA``; its ``include_name``."""
    return not (kind == "table" and name is not None and name.startswith(QUEUE_TABLES))
