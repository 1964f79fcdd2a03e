"""One real service, a process of its own, for the tests of this folder; and its database."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from sqlalchemy import URL, Engine

from service.storage.engine import build_engine
from tests.api.processes import clean_environment, wait_for
from tests.conftest import Databases

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 60


class RealService:
    """A service with fake cost models that can be killed and started again under the same address."""

    def __init__(self, database_url: str, log: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._environment = clean_environment(
            DATABASE_URL=database_url, PORT=str(self.port), SHARDWRIGHT_PLANNER_PROCESSES="1"
        )
        self._log = log
        self.start()

    def start(self) -> None:
        """Starts it; does not wait until it answers."""
        with self._log.open("a") as log:
            command = [sys.executable, "-m", "tests.api.serve_fake"]
            self._process = subprocess.Popen(command, cwd=ROOT, env=self._environment, stderr=log)

    def kill(self) -> None:
        """Ends it at once."""
        self._process.kill()
        self._process.wait()

    def restart(self) -> None:
        """Ends it at once and starts it under the same address, with the same database."""
        self.kill()
        self.start()

    def plans(self) -> bool:
        """Whether it makes a plan at this moment."""
        return self.answers() and "shardwright_planner_running 1.0" in self._get("/metrics").text

    def answers(self) -> bool:
        """Whether it serves; fails where it has ended."""
        assert self._process.poll() is None, self._log.read_text()
        try:
            return self._get("/readyz").status_code == 200
        except httpx.TransportError:
            return False

    def _get(self, path: str) -> httpx.Response:
        return httpx.get(self.url + path, trust_env=False)


@pytest.fixture(scope="session")
def service_database(databases: Databases, migrated_template: URL) -> Iterator[str]:
    """URL of the service's database."""
    url = databases.create(migrated_template)
    yield url.render_as_string(hide_password=False)
    databases.drop(url)


@pytest.fixture(scope="session")
def real_service(service_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealService]:
    """A service that answers."""
    service = RealService(service_database, tmp_path_factory.mktemp("service") / "log")
    try:
        wait_for(service.answers, PATIENCE_S)
        yield service
    finally:
        service.kill()


@pytest.fixture
def service_engine(service_database: str) -> Iterator[Engine]:
    """An engine on the service's database."""
    engine = build_engine(service_database)
    yield engine
    engine.dispose()
