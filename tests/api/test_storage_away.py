"""What is answered while the database cannot be reached, and once it is back."""

import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from sqlalchemy import make_url, text

from service.storage.engine import build_engine
from service.wiring import running_app
from tests.api.processes import wait_for
from tests.api.support import FACTORY, GIB, kind, listening, request, settings
from tests.conftest import Databases
from tests.frozen import frozen


@pytest.fixture
def own_client(database_url: str) -> Iterator[httpx.Client]:
    with running_app(settings(database_url), FACTORY) as app, listening(app) as served:
        yield served


def _away(databases: Databases, url: str, away: bool) -> None:
    name = make_url(url).database
    databases.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS {not away}")
    databases.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")


def test_plans_are_made_but_not_saved_while_the_database_is_away(
    databases: Databases, database_url: str, own_client: httpx.Client
) -> None:
    stored = own_client.post("/plan", json=request(seed=1)).json()
    _away(databases, database_url, True)

    unsaved = own_client.post("/plan", json=request(seed=2))
    assert unsaved.status_code == 200
    assert unsaved.json()["saved"] is False
    assert "shardwright_plans_unsaved_total 1.0" in own_client.get("/metrics").text

    body = request(shards=stored["shards"])
    del body["algorithm"]
    assert own_client.post("/estimate", json=body).status_code == 200
    observed = {"observations": [{"rank": 0, "steps": [0, 9], "forward_compute_ms": 1, "backward_compute_ms": 1}]}
    for response in (
        own_client.get(f"/plans/{stored['plan_id']}"),
        own_client.post("/estimate", json={"plan_id": stored["plan_id"]}),
        own_client.post("/plan", json=request(previous_plan_id=stored["plan_id"])),
        own_client.post("/plan", json=request(seed=1, launch_id="night")),
        own_client.get(f"/plans/{stored['plan_id']}/diff/{stored['plan_id']}"),
        own_client.get(f"/plans/{stored['plan_id']}/observations"),
        own_client.post(f"/plans/{stored['plan_id']}/observations", json=observed),
        own_client.post("/plan", json=request(seed=2), headers={"idempotency-key": "k"}),
        own_client.get("/plans"),
    ):
        assert (response.status_code, kind(response)) == (503, "storage_unavailable")
        assert int(response.headers["retry-after"]) >= 1
        assert response.json()["detail"] == "the database is not available"
    assert own_client.get("/healthz").status_code == 200
    ready = own_client.get("/readyz")
    parts = {"models": "ok", "database": "not reachable", "planner": "ok"}
    assert (ready.status_code, ready.json()["checks"]) == (503, parts)

    _away(databases, database_url, False)
    assert own_client.get("/readyz").json() == {"ready": True, "checks": parts | {"database": "ok"}}
    # The outage is remembered for a while.
    wait_for(lambda: bool(own_client.post("/plan", json=request(seed=2)).json()["saved"]))
    again = own_client.post("/plan", json=request(seed=2)).json()
    assert again["plan_id"] == unsaved.json()["plan_id"]
    assert own_client.get(f"/plans/{again['plan_id']}").json() == again


def test_a_frozen_database_is_one_that_is_away(
    databases: Databases, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if databases.folder is None:
        pytest.skip("the processes of a server that somebody else runs cannot be stopped")
    monkeypatch.setattr("service.storage.engine.ANSWER_TIMEOUT_S", 0.5)
    with running_app(settings(database_url), FACTORY) as app, listening(app) as client:
        plan = client.post("/plan", json=request()).json()
        with frozen(databases.folder):
            began = time.monotonic()
            response = client.get(f"/plans/{plan['plan_id']}")
            # Half a second for the connection that was open, two for another.
            assert 0.5 <= time.monotonic() - began < 4
            assert (response.status_code, kind(response)) == (503, "storage_unavailable")
            assert client.post("/plan", json=request()).json()["saved"] is False
        wait_for(lambda: client.get(f"/plans/{plan['plan_id']}").status_code == 200)
        wait_for(lambda: bool(client.post("/plan", json=request(seed=2)).json()["saved"]))


def test_a_failing_commit_is_an_error_without_internals_and_nothing_is_stored(
    database_url: str, own_client: httpx.Client
) -> None:
    engine = build_engine(database_url)
    with engine.begin() as connection:
        connection.execute(
            text(
                "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'secret'; END $$;"
                "CREATE CONSTRAINT TRIGGER late AFTER INSERT ON plans DEFERRABLE INITIALLY DEFERRED"
                " FOR EACH ROW EXECUTE FUNCTION refuse()"
            )
        )
    response = own_client.post("/plan", json=request())
    assert (response.status_code, kind(response)) == (500, "internal_error")
    assert "secret" not in response.text
    assert "plan_id" not in response.json()
    counted = 'shardwright_plans_total{algorithm="dim_greedy",outcome="internal_error"} 1.0'
    assert counted in own_client.get("/metrics").text
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM plans")) == 0
    engine.dispose()


@pytest.mark.parametrize("row", ["launches", "observations"])
def test_what_is_not_committed_is_not_answered(database_url: str, own_client: httpx.Client, row: str) -> None:
    plan = own_client.post("/plan", json=request()).json()
    engine = build_engine(database_url)
    with engine.begin() as connection:
        connection.execute(
            text(
                "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'secret'; END $$;"
                f"CREATE CONSTRAINT TRIGGER late AFTER INSERT OR UPDATE ON {row} DEFERRABLE INITIALLY DEFERRED"
                " FOR EACH ROW EXECUTE FUNCTION refuse()"
            )
        )
    seen = {"observations": [{"rank": 0, "steps": [0, 9], "forward_compute_ms": 1, "backward_compute_ms": 1}]}
    posts = {
        "launches": ("/plan", request(launch_id="night")),
        "observations": (f"/plans/{plan['plan_id']}/observations", seen),
    }
    url, body = posts[row]
    response = own_client.post(url, json=body)
    assert (response.status_code, kind(response)) == (500, "internal_error")
    assert "plan_id" not in response.json()
    with engine.begin() as connection:
        assert connection.scalar(text(f"SELECT count(*) FROM {row}")) == 0
        connection.execute(text(f"DROP TRIGGER late ON {row}"))
    assert own_client.post(url, json=body).status_code in (200, 201)
    engine.dispose()


def test_the_cause_of_an_outage_is_logged_and_not_told(
    databases: Databases, database_url: str, own_client: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    _away(databases, database_url, True)
    name = str(make_url(database_url).database)
    for path in ("/readyz", f"/plans/{'0' * 32}"):
        response = own_client.get(path)
        assert response.status_code == 503
        assert name not in response.text
    causes = [record.__dict__.get("fields", {}).get("cause", "") for record in caplog.records]
    assert len([cause for cause in causes if name in cause]) >= 2
    _away(databases, database_url, False)


def test_damaged_models_are_named_without_the_path_of_their_files(
    database_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "damaged").write_text("slow")
    with running_app(settings(database_url, model_store=str(tmp_path)), FACTORY) as app, listening(app) as client:
        devices = {"count": 2, "memory_bytes": GIB, "hardware": "slow"}
        response = client.post("/plan", json=request(devices=devices))
        assert (response.status_code, kind(response)) == (503, "damaged_artifact")
        ready = client.get("/readyz")
        assert ready.status_code == 200
        for text in (response.json()["detail"], ready.json()["checks"]["models"]):
            assert "slow/compute/1" in text
            assert "secret" not in text
        assert client.post("/plan", json=request()).status_code == 200
    assert any("/secret/manifest.json" in str(record.__dict__.get("fields")) for record in caplog.records)


def _set_revision(url: str, statement: str) -> None:
    engine = build_engine(url)
    with engine.begin() as connection:
        connection.execute(text(statement))
    engine.dispose()


def test_a_schema_that_is_not_at_head_is_not_ready(database_url: str, own_client: httpx.Client) -> None:
    _set_revision(database_url, "DELETE FROM alembic_version")
    ready = own_client.get("/readyz")
    assert ready.status_code == 503
    assert ready.json()["checks"]["database"].startswith("the schema is at None")


def test_a_schema_of_a_newer_version_leaves_this_one_ready(database_url: str, own_client: httpx.Client) -> None:
    _set_revision(database_url, "UPDATE alembic_version SET version_num = 'later'")
    ready = own_client.get("/readyz")
    assert ready.status_code == 200
    assert ready.json()["checks"]["database"] == "the schema is newer"


def test_a_revision_that_cannot_be_read_is_not_ready_and_no_failure(
    database_url: str, own_client: httpx.Client
) -> None:
    _set_revision(database_url, "ALTER TABLE alembic_version RENAME COLUMN version_num TO other")
    ready = own_client.get("/readyz")
    assert ready.status_code == 503
    assert ready.json()["checks"]["database"] == "the schema's revision cannot be read"
