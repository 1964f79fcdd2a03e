"""Brings a database's schema to what the code expects, one migrator at a time."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from typing import Any

from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, inspect, text

from service.domain.errors import ShardwrightError
from service.storage.engine import build_unpooled_engine, storage_errors
from service.storage.schema import METADATA, QUEUE_TABLES, declared_here

LOCK_KEY = 0x5368_6172_6477_7267
"""Key of the advisory lock that a migrator holds."""

_LOCK_POLL_S = 0.1
_STATEMENT_TIMEOUT_MS = 600_000
_LOCK_TIMEOUT_MS = 10_000


class MigrationFailed(ShardwrightError):
    """The schema is not, and was not brought, to what the code expects."""

    kind = "migration_failed"


class UnknownRevision(MigrationFailed):
    """The database is at a revision that this version does not know, most likely one of a newer version."""

    kind = "unknown_revision"


def head() -> str:
    """The revision that this version of the code expects."""
    revision = ScriptDirectory.from_config(_config()).get_current_head()
    if revision is None:
        raise MigrationFailed("the installation holds no migrations")
    return revision


def known() -> frozenset[str]:
    """All revisions that this version of the code knows."""
    return frozenset(script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions())


def current(engine: Engine) -> str | None:
    """The database's revision, or None where it was never migrated.

    Raises:
        StorageUnavailable: the database cannot be reached.
    """
    with storage_errors(), engine.connect() as connection:
        return MigrationContext.configure(connection).get_current_revision()


def drift(engine: Engine) -> list[Any]:
    """Differences between the database and the rows declared in code, as Alembic's operations; empty at head.

    Raises:
        StorageUnavailable: the database cannot be reached.
    """
    with storage_errors(), engine.connect() as connection:
        options = {"compare_type": True, "compare_server_default": True, "include_name": declared_here}
        return list(compare_metadata(MigrationContext.configure(connection, opts=options), METADATA))


def upgrade(engine: Engine, lock_wait_s: float = 60.0) -> None:
    """Migrates the database to ``head``, all in one transaction; does nothing where it is there already.

    Args:
        engine: says which database; its pool is not used.
        lock_wait_s: the longest wait for another migrator, seconds.

    Raises:
        UnknownRevision: the database's revision is not one of this version's; nothing was touched.
        MigrationFailed: another migrator took too long, or the schema is not at head afterwards.
        StorageUnavailable: the database cannot be reached, or a statement or a wait for a lock took too long.
    """
    own = build_unpooled_engine(
        engine.url,
        application_name="shardwright-migrate",
        statement_timeout_ms=_STATEMENT_TIMEOUT_MS,
        lock_timeout_ms=_LOCK_TIMEOUT_MS,
    )
    with storage_errors(), _one_migrator(own, lock_wait_s):
        _refuse_unknown(current(own))
        with own.begin() as connection:
            command.upgrade(_config(connection), "head")
        _verify(own)


@contextmanager
def _one_migrator(engine: Engine, wait_s: float) -> Iterator[None]:
    """Holds the advisory lock on a connection of its own; the server frees it when that connection ends."""
    deadline = time.monotonic() + wait_s
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        # It idles while the migration runs, which must not cost it the lock; a machine that is gone must.
        connection.execute(text("SET idle_session_timeout = 0"))
        connection.execute(text("SET tcp_keepalives_idle = 30"))
        while not connection.scalar(text("SELECT pg_try_advisory_lock(:key)"), {"key": LOCK_KEY}):
            if time.monotonic() >= deadline:
                raise MigrationFailed(f"another process has been migrating this database for {wait_s:g} s")
            time.sleep(_LOCK_POLL_S)
        yield


def _refuse_unknown(revision: str | None) -> None:
    if revision is not None and revision not in known():
        raise UnknownRevision(
            f"the database is at revision {revision!r}, which this version does not know; run the version that made it",
            revision=revision,
            head=head(),
        )


def _verify(engine: Engine) -> None:
    """Looks, over a connection of its own, at what the migration left behind."""
    revision, wanted = current(engine), head()
    if revision != wanted:
        raise MigrationFailed(f"the database is at revision {revision!r} after migrating to {wanted!r}")
    wanted_tables = {*METADATA.tables, f"{QUEUE_TABLES}jobs", f"{QUEUE_TABLES}workers"}
    missing = wanted_tables - set(inspect(engine).get_table_names())
    if missing:
        raise MigrationFailed(f"the database is at revision {revision!r} but lacks {', '.join(sorted(missing))}")


def _config(connection: Connection | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(files("migrations")).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config
