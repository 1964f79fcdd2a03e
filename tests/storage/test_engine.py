from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, make_url, text

from service.domain.callers import WITHOUT_KEY
from service.domain.errors import StorageUnavailable
from service.domain.ports import StoredPlan
from service.storage.embedded import EmbeddedPostgres
from service.storage.engine import InvalidDatabaseUrl, build_engine, database_url, storage_errors
from service.storage.measurements import MeasurementRepository
from service.storage.migrate import current, upgrade
from service.storage.plans import PlanRepository
from service.storage.promotions import PromotionRepository

PLAN = StoredPlan("id", "cpu-fbgemm", "random", 1.0, {}, {})
NOBODY_LISTENS = "postgresql://user:s3cret@127.0.0.1:1/name"


@pytest.fixture
def server(server_folder: Path) -> Iterator[EmbeddedPostgres]:
    server = EmbeddedPostgres(server_folder)
    yield server
    server.stop()


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg"])
def test_every_usual_scheme_of_postgres_is_taken(scheme: str) -> None:
    url = database_url(f"{scheme}://user:p%40ss@host:6543/name?sslmode=require")
    assert (url.drivername, url.password, url.port, url.query["sslmode"]) == (
        "postgresql+psycopg",
        "p@ss",
        6543,
        "require",
    )


@pytest.mark.parametrize(
    "url",
    [
        "mysql://user:s3cret@host/name",
        "postgresql+asyncpg://user:s3cret@host/name",
        "postgresql://user:s3@cret@host/name",
        "postgresql://user:s3cret@host:port/name",
        "user:s3cret@host",
        "",
    ],
)
def test_other_urls_are_refused_without_repeating_them(url: str) -> None:
    with pytest.raises(InvalidDatabaseUrl) as caught:
        build_engine(url)
    assert "cret" not in f"{caught.value!r} {caught.value.data} {caught.value.__cause__!r}"


def test_sessions_have_their_name_and_timeouts(database_url: str) -> None:
    engine = build_engine(database_url, application_name="me", statement_timeout_ms=1234, lock_timeout_ms=567)
    with engine.connect() as connection:
        shown = [
            connection.scalar(text(f"SHOW {name}"))
            for name in ("application_name", "statement_timeout", "lock_timeout")
        ]
    assert shown == ["me", "1234ms", "567ms"]
    engine.dispose()


def test_what_the_url_states_of_a_connection_goes_first(database_url: str) -> None:
    stated = make_url(database_url).update_query_dict(
        {"options": "-c search_path=mine -c lock_timeout=99", "application_name": "theirs", "connect_timeout": "7"}
    )
    engine = build_engine(stated, application_name="ours", statement_timeout_ms=1234)
    names = ("search_path", "lock_timeout", "application_name", "statement_timeout")
    with engine.connect() as connection:
        shown = [connection.scalar(text(f"SHOW {name}")) for name in names]
        parameters = connection.connection.driver_connection.info.get_parameters()  # type: ignore[union-attr]
    assert shown == ["mine", "99ms", "theirs", "1234ms"]
    assert parameters["connect_timeout"] == "7"
    engine.dispose()


def test_a_connection_to_a_machine_that_is_gone_ends_within_seconds(database_url: str) -> None:
    engine = build_engine(database_url)
    with engine.connect() as connection:
        stated = connection.connection.driver_connection.info.get_parameters()  # type: ignore[union-attr]
    assert int(stated["tcp_user_timeout"]) <= 10_000
    assert int(stated["keepalives_idle"]) + int(stated["keepalives_interval"]) * int(stated["keepalives_count"]) <= 30
    engine.dispose()


@pytest.mark.parametrize("state", ["25006", "53100", "53300", "57P01", "57P03"])
def test_a_server_that_cannot_serve_now_is_an_outage(engine: Engine, state: str) -> None:
    raised = f"DO $$ BEGIN RAISE 'no' USING ERRCODE = '{state}'; END $$"
    with pytest.raises(StorageUnavailable), storage_errors(), engine.begin() as connection:
        connection.execute(text(raised))


def test_a_primary_that_became_read_only_is_an_outage(engine: Engine, database_url: str) -> None:
    url = make_url(database_url).update_query_dict({"options": "-c default_transaction_read_only=on"})
    read_only = build_engine(url)
    with pytest.raises(StorageUnavailable):
        PlanRepository(read_only).put(PLAN, WITHOUT_KEY)
    read_only.dispose()
    assert PlanRepository(engine).get(PLAN.plan_id, WITHOUT_KEY) is None


def test_an_unreachable_server_is_an_outage_that_names_no_password() -> None:
    with pytest.raises(StorageUnavailable) as caught:
        PlanRepository(build_engine(NOBODY_LISTENS)).get("id", WITHOUT_KEY)
    assert caught.value.data["retry_after_s"] > 0
    assert "s3cret" not in f"{caught.value!r} {caught.value.__cause__!r}"


def test_every_repository_call_reports_an_outage(server: EmbeddedPostgres) -> None:
    engine = build_engine(server.start())
    server.stop()
    plans, measurements = PlanRepository(engine), MeasurementRepository(engine)
    promotions = PromotionRepository(engine)
    calls: list[Callable[[], object]] = [
        lambda: plans.get("id", WITHOUT_KEY),
        lambda: plans.put(PLAN, WITHOUT_KEY),
        lambda: measurements.compute("h"),
        lambda: measurements.communication("h"),
        lambda: measurements.measured_indices("c"),
        lambda: plans.models_named(1),
        promotions.standing,
        lambda: promotions.history("h", "compute", 1),
        lambda: promotions.changing().__enter__(),
        lambda: current(engine),
        lambda: upgrade(engine),
    ]
    for call in calls:
        with pytest.raises(StorageUnavailable):
            call()


def test_the_same_engine_serves_again_when_the_server_is_back(server: EmbeddedPostgres) -> None:
    engine = build_engine(server.start())
    upgrade(engine)
    repository = PlanRepository(engine)
    repository.put(PLAN, WITHOUT_KEY)
    server.stop()
    for _ in range(3):
        with pytest.raises(StorageUnavailable):
            repository.get("id", WITHOUT_KEY)
    server.start()
    assert repository.get("id", WITHOUT_KEY) == PLAN
    engine.dispose()


def test_a_restart_between_two_calls_goes_unnoticed(server: EmbeddedPostgres) -> None:
    engine = build_engine(server.start())
    upgrade(engine)
    repository = PlanRepository(engine)
    repository.put(PLAN, WITHOUT_KEY)
    server.stop()
    server.start()
    assert repository.get("id", WITHOUT_KEY) == PLAN
    engine.dispose()


def test_a_session_that_the_server_ends_midway_is_an_outage_and_the_next_call_works(engine: Engine) -> None:
    with engine.connect() as connection, engine.connect() as other:
        pid = connection.scalar(text("SELECT pg_backend_pid()"))
        other.execute(text("SELECT pg_terminate_backend(:pid, 5000)"), {"pid": pid})
        with pytest.raises(StorageUnavailable), storage_errors():
            connection.execute(text("SELECT 1"))
    assert PlanRepository(engine).get("id", WITHOUT_KEY) is None


def test_an_exhausted_pool_is_an_outage(database_url: str) -> None:
    engine = build_engine(database_url, pool_size=1)
    with engine.connect(), engine.connect(), pytest.raises(StorageUnavailable, match="in use"):
        PlanRepository(engine).get("id", WITHOUT_KEY)
    engine.dispose()


def test_a_statement_that_takes_too_long_is_cancelled_and_an_outage(database_url: str) -> None:
    engine = build_engine(database_url, statement_timeout_ms=50)
    with pytest.raises(StorageUnavailable, match="timeout"), storage_errors(), engine.connect() as connection:
        connection.execute(text("SELECT pg_sleep(5)"))
    engine.dispose()


def test_a_wait_for_a_lock_ends(database_url: str) -> None:
    engine = build_engine(database_url, lock_timeout_ms=50)
    with engine.begin() as holder:
        holder.execute(text("LOCK TABLE plans"))
        with pytest.raises(StorageUnavailable, match="lock timeout"):
            PlanRepository(engine).get("id", WITHOUT_KEY)
    engine.dispose()
