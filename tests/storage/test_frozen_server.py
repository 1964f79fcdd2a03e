import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread

import pytest
from sqlalchemy import Connection, Engine, text

from service.domain.errors import StorageUnavailable
from service.storage.embedded import EmbeddedPostgres
from service.storage.engine import build_engine, build_prompt_engine, storage_errors
from service.storage.impatient_connection import ImpatientConnection
from tests.conftest import own_folder
from tests.frozen import frozen

LIMIT_S = 0.4
CONNECT_S = 2.0
SPARE_S = 0.8


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with own_folder() as folder:
        yield folder


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    with EmbeddedPostgres(folder) as url:
        yield url


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    engine = build_engine(url, answer_timeout_s=LIMIT_S)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE IF NOT EXISTS kept (number int)"))
        connection.execute(text("TRUNCATE kept"))
    yield engine
    engine.dispose()


def _numbers(engine: Engine) -> list[int]:
    with engine.connect() as connection:
        return list(connection.scalars(text("SELECT number FROM kept ORDER BY number")))


INSERT = text("INSERT INTO kept VALUES (:number)")
CALLS: dict[str, Callable[[Connection], object]] = {
    "read": lambda connection: connection.scalar(text("SELECT 1")),
    "write": lambda connection: connection.execute(INSERT, {"number": 2}),
    "write of many": lambda connection: connection.execute(INSERT, [{"number": n} for n in range(2, 500)]),
    "commit": lambda connection: connection.commit(),
    "rollback": lambda connection: connection.rollback(),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_a_frozen_server_is_an_outage_and_serves_again_when_it_is_thawed(
    engine: Engine, folder: Path, call: Callable[[Connection], object]
) -> None:
    def call_frozen() -> None:
        with storage_errors(), engine.connect() as connection:
            connection.execute(INSERT, {"number": 1})
            with frozen(folder):
                began = time.monotonic()
                try:
                    call(connection)
                finally:
                    assert LIMIT_S <= time.monotonic() - began < LIMIT_S + SPARE_S
                    assert connection.invalidated

    with pytest.raises(StorageUnavailable, match="did not answer"):
        call_frozen()
    # Whether a commit that was not answered happened is not known.
    assert _numbers(engine) in ([], [1])
    with engine.begin() as connection:
        connection.execute(INSERT, {"number": 9})
    assert 9 in _numbers(engine)


def test_connections_that_rest_in_the_pool_are_not_trusted_either(engine: Engine, folder: Path) -> None:
    with engine.connect(), engine.connect():
        pass
    with frozen(folder):
        began = time.monotonic()
        with pytest.raises(StorageUnavailable), storage_errors():
            _numbers(engine)
        assert time.monotonic() - began < LIMIT_S + CONNECT_S + SPARE_S
    assert _numbers(engine) == []


def test_a_connection_may_rest_and_a_transaction_may_take_longer(engine: Engine) -> None:
    with engine.connect() as connection:
        for _ in range(2):
            time.sleep(0.7 * LIMIT_S)
            connection.execute(text("SELECT pg_sleep(:s)"), {"s": 0.7 * LIMIT_S})
    assert not connection.invalidated


def test_without_a_limit_a_statement_waits_until_the_server_is_thawed(url: str, folder: Path) -> None:
    engine, found = build_engine(url), []
    with engine.connect() as connection:
        connection.execute(text("SELECT 1"))
        with frozen(folder):
            reader = Thread(target=lambda: found.append(connection.scalar(text("SELECT 7"))))
            reader.start()
            reader.join(2 * LIMIT_S)
            assert reader.is_alive()
        reader.join()
    assert found == [7]
    engine.dispose()


def test_a_prompt_engine_lets_a_server_that_works_end_waits_and_statements_first(url: str) -> None:
    engine = build_prompt_engine(url)
    with engine.connect() as connection:
        driver = connection.connection.driver_connection
        assert isinstance(driver, ImpatientConnection)
        lock_s, statement_s = (
            connection.scalar(text(f"SELECT extract(epoch FROM current_setting('{name}')::interval)::float"))
            for name in ("lock_timeout", "statement_timeout")
        )
        assert driver.answer_timeout_s is not None
        assert 0 < lock_s < statement_s < driver.answer_timeout_s <= 6
    engine.dispose()
