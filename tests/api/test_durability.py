"""A 2xx means that what was asked is durable and visible to the next request, whichever process it comes to."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine, text

from service.wiring import running_app
from tests.api.processes import wait_for
from tests.api.support import FACTORY, kind, listening, request, settings, table
from tests.storage.live_worker import live_worker

PROFILES = {"tables": [table()], "hardware": "fake", "global_batch_size": 64, "optimizer": "sgd"}
LATE = """
    CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'secret'; END $$;
    CREATE CONSTRAINT TRIGGER late AFTER INSERT OR UPDATE ON {row} DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION refuse()
"""

KILLED = LATE.replace("RAISE 'secret';", "PERFORM pg_terminate_backend(pg_backend_pid());")
"""The connection is lost between the statements and their commit."""

OBSERVED = {"observations": [{"rank": 0, "steps": [0, 9], "forward_compute_ms": 1, "backward_compute_ms": 1}]}


@pytest.fixture
def replicas(database_url: str) -> Iterator[tuple[httpx.Client, httpx.Client]]:
    """Two services on one database."""
    one = settings(database_url)
    with (
        running_app(one, FACTORY) as first,
        running_app(one, FACTORY) as second,
        listening(first) as asked,
        listening(second) as other,
    ):
        yield asked, other


@pytest.mark.parametrize(
    ("row", "path", "body"),
    [
        ("plan_owners", "/plan", request()),
        ("profiles", "/profiles", PROFILES),
        ("promotions", "/models/fake/compute/2/promote", {}),
        ("promotions", "/models/fake/compute/rollback", {}),
        ("audit_log", "/models/fake/compute/2/promote", {}),
        ("audit_log", "/models/fake/compute/rollback", {}),
    ],
)
def test_what_cannot_be_committed_is_not_answered(
    database_url: str, engine: Engine, tmp_path: Any, row: str, path: str, body: Any
) -> None:
    (tmp_path / "latest").write_text("3")
    configured = settings(database_url, model_store=str(tmp_path))
    with running_app(configured, FACTORY) as app, listening(app) as client:
        live_worker(engine, "fake")
        client.post("/models/fake/compute/1/promote", json={}).raise_for_status()
        before = client.get("/models/fake/compute").json()["promotions"]
        with engine.begin() as connection:
            count = connection.scalar(text(f"SELECT count(*) FROM {row}"))
            connection.execute(text(LATE.format(row=row)))
        refused = client.post(path, json=body)
        assert (refused.status_code, kind(refused)) == (500, "internal_error")
        assert "secret" not in refused.text
        with engine.begin() as connection:
            assert connection.scalar(text(f"SELECT count(*) FROM {row}")) == count
            connection.execute(text(f"DROP TRIGGER late ON {row}"))
        assert client.get("/models/fake/compute").json()["promotions"] == before
        assert client.post(path, json=body).is_success


def test_a_connection_that_is_lost_before_the_commit_is_no_success(
    database_url: str, engine: Engine, tmp_path: Any
) -> None:
    (tmp_path / "latest").write_text("3")
    with running_app(settings(database_url, model_store=str(tmp_path)), FACTORY) as app, listening(app) as client:
        live_worker(engine, "fake")
        client.post("/models/fake/compute/1/promote", json={}).raise_for_status()
        stored = client.post("/plan", json=request()).raise_for_status().json()["plan_id"]
        for row, path, body in (
            ("profiles", "/profiles", PROFILES),
            ("promotions", "/models/fake/compute/2/promote", {}),
            ("promotions", "/models/fake/compute/rollback", {}),
            ("observations", f"/plans/{stored}/observations", OBSERVED),
            ("launches", "/plan", request(launch_id="night")),
        ):
            before = _rows(engine, row)
            with _killed(engine, row):
                refused = client.post(path, json=body)
                assert (refused.status_code, kind(refused)) == (503, "storage_unavailable"), path
                assert int(refused.headers["retry-after"]) >= 1
                assert _rows(engine, row) == before
            wait_for(partial(_succeeds, client, path, body))
            assert _rows(engine, row) > before

        before = _rows(engine, "plans")
        with _killed(engine, "plans"):
            unsaved = client.post("/plan", json=request(seed=1)).raise_for_status().json()
            assert unsaved["saved"] is False
            assert _rows(engine, "plans") == before
        where = f"/plans/{unsaved['plan_id']}"
        wait_for(lambda: client.get(where).status_code == 404)
        assert client.post("/plan", json=request(seed=1)).raise_for_status().json()["saved"] is True
        assert client.get(where).status_code == 200


@contextmanager
def _killed(engine: Engine, row: str) -> Iterator[None]:
    """Meanwhile no transaction that writes such a row comes to its commit."""
    with engine.begin() as connection:
        connection.execute(text(KILLED.format(row=row)))
    yield
    with engine.begin() as connection:
        connection.execute(text(f"DROP TRIGGER late ON {row}; DROP FUNCTION refuse"))


def _succeeds(client: httpx.Client, path: str, body: Any) -> bool:
    return client.post(path, json=body).is_success


def _rows(engine: Engine, table: str) -> int:
    with engine.connect() as connection:
        return connection.scalar(text(f"SELECT count(*) FROM {table}")) or 0


def test_what_was_answered_is_there_for_the_next_request_to_another_process(
    engine: Engine, replicas: tuple[httpx.Client, httpx.Client]
) -> None:
    asked, other = replicas
    live_worker(engine, "fake")

    def visible(seed: int) -> tuple[int, int]:
        plan = asked.post("/plan", json=request(seed=seed)).raise_for_status().json()
        profiles = asked.post("/profiles", json=PROFILES | {"tables": [table(num_embeddings=seed + 1)]})
        return (
            other.get(f"/plans/{plan['plan_id']}").status_code,
            other.get(profiles.raise_for_status().headers["location"]).status_code,
        )

    with ThreadPoolExecutor(4) as threads:
        assert set(threads.map(visible, range(60))) == {(200, 200)}
