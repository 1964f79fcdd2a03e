"""A real Postgres for the tests: one server a run, and for each test its own copy of a migrated database."""

import os
import shutil
import signal
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import URL, Engine, text

from service.storage.embedded import EmbeddedPostgres
from service.storage.engine import build_engine, build_unpooled_engine
from service.storage.engine import database_url as parsed_url
from service.storage.migrate import upgrade


def pytest_configure() -> None:
    """Undoes what a shell does to the runs that it starts in the background: their children would be deaf to Ctrl-C."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


class Databases:
    """Makes and drops databases on one server."""

    def __init__(self, server_url: str, folder: Path | None = None) -> None:
        self.folder = folder
        """Of the embedded server; None for one that somebody else runs."""
        self._server_url = parsed_url(server_url)
        self._admin = build_unpooled_engine(
            self._server_url, application_name="tests", statement_timeout_ms=60_000, lock_timeout_ms=60_000
        )
        with self._admin.connect() as connection:
            version = int(connection.execute(text("SHOW server_version_num")).scalar_one())
        # A copy by files takes a quarter of the work of one through the log; before 15 there is no other.
        self._copying = "STRATEGY FILE_COPY" if version >= 150_000 else ""

    def execute(self, statement: str) -> None:
        """Runs a statement outside any transaction."""
        with self._admin.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text(statement))

    def create(self, template: URL | None = None) -> URL:
        """A new database, empty or a copy of another, which nobody may be connected to."""
        name = f"test_{uuid.uuid4().hex}"
        copied = template.database if template else "template0"
        self.execute(f"CREATE DATABASE {name} TEMPLATE {copied} {self._copying}")
        return self._server_url.set(database=name)

    def drop(self, url: URL) -> None:
        """Drops a database, whoever is connected to it."""
        self.execute(f"DROP DATABASE {url.database} WITH (FORCE)")


@contextmanager
def own_folder() -> Iterator[Path]:
    """A folder that an embedded server can live in, gone at the end."""
    # Not under pytest's temporary folder: as root the server runs as another user, and every run of pytest that starts
    # meanwhile closes that folder to others again.
    folder = Path(tempfile.mkdtemp(prefix="shardwright-tests-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def server_folder() -> Iterator[Path]:
    """An empty folder that an embedded server of the test's own can live in."""
    with own_folder() as folder:
        yield folder


@pytest.fixture(scope="session")
def databases() -> Iterator[Databases]:
    """The server named by TEST_DATABASE_URL, or an embedded one in a temporary folder, gone after the run."""
    external = os.environ.get("TEST_DATABASE_URL")
    if external:
        yield Databases(external)
        return
    with own_folder() as folder, EmbeddedPostgres(folder) as url:
        server = Databases(url, folder)
        _write_to_disk_late(server, "autovacuum = off")
        yield server


def _write_to_disk_late(server: Databases, *more: str) -> None:
    """What outlives processes, but no crash of the machine, is enough for tests."""
    for setting in ("fsync = off", "full_page_writes = off", *more):
        server.execute(f"ALTER SYSTEM SET {setting}")
    server.execute("SELECT pg_reload_conf()")


@pytest.fixture(scope="session")
def cluster_at_head() -> Iterator[Path]:
    """The folder of an embedded server that is stopped, its schema at head; to be copied, which is much quicker."""
    with own_folder() as folder:
        with EmbeddedPostgres(folder) as url:
            _write_to_disk_late(Databases(url))
            migrator = build_engine(url)
            upgrade(migrator)
            migrator.dispose()
        yield folder


@pytest.fixture(scope="session")
def migrated_template(databases: Databases) -> Iterator[URL]:
    """A database at head, to be copied and never connected to."""
    url = databases.create()
    migrator = build_engine(url)
    upgrade(migrator)
    migrator.dispose()
    yield url
    databases.drop(url)


@pytest.fixture
def database_url(databases: Databases, migrated_template: URL) -> Iterator[str]:
    """URL of a fresh database at head, dropped after the test."""
    url = databases.create(migrated_template)
    yield url.render_as_string(hide_password=False)
    databases.drop(url)


@pytest.fixture
def empty_database_url(databases: Databases) -> Iterator[str]:
    """URL of a fresh database without any table, dropped after the test."""
    url = databases.create()
    yield url.render_as_string(hide_password=False)
    databases.drop(url)


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    """An engine on a fresh database at head."""
    engine = build_engine(database_url)
    yield engine
    engine.dispose()


@pytest.fixture
def empty_engine(empty_database_url: str) -> Iterator[Engine]:
    """An engine on a fresh database without any table."""
    engine = build_engine(empty_database_url)
    yield engine
    engine.dispose()
