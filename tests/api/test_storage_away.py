"""What is answered while the database cannot be reached, and once it is back."""

from collections.abc import Iterator

import httpx
import pytest
from sqlalchemy import make_url, text

from service.storage.engine import build_engine
from service.wiring import running_app
from tests.api.support import FACTORY, kind, listening, request, settings
from tests.conftest import Databases


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
    for response in (
        own_client.get(f"/plans/{stored['plan_id']}"),
        own_client.post("/estimate", json={"plan_id": stored["plan_id"]}),
    ):
        assert (response.status_code, kind(response)) == (503, "storage_unavailable")
        assert int(response.headers["retry-after"]) >= 1
    assert own_client.get("/healthz").status_code == 200
    ready = own_client.get("/readyz")
    assert (ready.status_code, ready.json()["checks"]) == (503, {"models": "ok", "database": "not reachable"})

    _away(databases, database_url, False)
    assert own_client.get("/readyz").json() == {"ready": True, "checks": {"models": "ok", "database": "ok"}}
    again = own_client.post("/plan", json=request(seed=2)).json()
    assert again["saved"] is True
    assert again["plan_id"] == unsaved.json()["plan_id"]
    assert own_client.get(f"/plans/{again['plan_id']}").json() == again


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
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM plans")) == 0
    engine.dispose()


def test_a_schema_that_is_not_at_head_is_not_ready(database_url: str, own_client: httpx.Client) -> None:
    engine = build_engine(database_url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = 'other'"))
    engine.dispose()
    ready = own_client.get("/readyz")
    assert ready.status_code == 503
    assert ready.json()["checks"]["database"].startswith("the schema is at other")
