"""What a database URL says of TLS holds for every connection: of the API, of workers, of the queue, of migrations."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import URL, text
from sqlalchemy.exc import OperationalError

from service.domain.errors import StorageUnavailable
from service.domain.profiles import ProfileState
from service.storage.engine import build_engine, libpq_parameters
from service.storage.engine import database_url as parsed_url
from service.storage.migrate import upgrade
from service.storage.profiles import ProfileRepository
from service.wiring import running_app
from tests.api.processes import kill, planning_processes, wait_for
from tests.api.support import FACTORY, listening, request, settings
from tests.jobs.supervised import PATIENCE_S, TERMS, profile, supervised, worker_pids
from tests.storage.tls_relay import Relay, certificate, relayed

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl for certificates")


def _through(relay: Relay, **query: str) -> str:
    """The URL of the relay's database as a client of the relay has it."""
    server = relay.server
    url = URL.create(
        "postgresql", server.username, server.password, "localhost", relay.port, server.database, query=query
    )
    return url.render_as_string(hide_password=False)


@pytest.mark.slow
def test_a_service_and_its_workers_check_the_servers_certificate(empty_database_url: str, tmp_path: Path) -> None:
    shown, asked, others = certificate(tmp_path, "localhost"), profile(), planning_processes(os.getpid())
    with relayed(parsed_url(empty_database_url), shown) as relay:
        url = _through(relay, sslmode="verify-full", sslrootcert=str(shown))
        with running_app(settings(url), FACTORY) as app, listening(app) as client:
            # Processes are started beside connections that are open, and have none of them.
            for seed in range(5):
                answer = client.post("/plan", json=request(seed=seed, time_limit_ms=30_000))
                assert answer.json()["saved"] is True
                for pid in planning_processes(os.getpid()) - others:
                    kill(pid)
            assert client.get("/readyz").json()["checks"]["database"] == "ok"
            engine = build_engine(url)
            with supervised(url, tmp_path):
                wait_for(lambda: bool(worker_pids(engine)), PATIENCE_S)
                profiles = ProfileRepository(engine)
                profiles.queue_new([asked], "someone", TERMS)
                wait_for(lambda: profiles.profiles(state=ProfileState.MEASURED) != [], PATIENCE_S)
            engine.dispose()
    assert relay.plain == set()
    assert {
        f"shardwright-{part}" for part in ("migrate", "promotions", "API-keys", "worker", "queue")
    } < relay.encrypted
    assert "shardwright" in relay.encrypted


def _ask(url: str) -> None:
    with build_engine(url).connect() as connection:
        connection.execute(text("SELECT 1"))


def _ask_the_queue(url: str) -> None:
    conninfo, options = libpq_parameters(url, "shardwright-queue")
    psycopg.connect(conninfo, **options).close()


@pytest.mark.parametrize(
    ("host", "mode", "said"),
    [
        (None, "require", "server does not support SSL, but SSL was required"),
        ("localhost", "verify-ca", "certificate verify failed"),
        ("elsewhere", "verify-full", 'server certificate for "elsewhere"'),
    ],
)
def test_a_server_that_is_not_the_one_is_told_nothing(
    database_url: str, tmp_path: Path, host: str | None, mode: str, said: str
) -> None:
    shown = certificate(tmp_path, host) if host else None
    trusted = shown if mode == "verify-full" else certificate(tmp_path, "other")
    with relayed(parsed_url(database_url), shown) as relay:
        url = _through(relay, sslmode=mode, sslrootcert=str(trusted))
        asking: list[Callable[[], None]] = [
            lambda: _ask(url),
            lambda: _ask_the_queue(url),
            lambda: upgrade(build_engine(url)),
        ]
        for ask in asking:
            with pytest.raises((StorageUnavailable, OperationalError, psycopg.OperationalError), match=said):
                ask()
    assert (relay.plain, relay.encrypted) == (set(), set())
