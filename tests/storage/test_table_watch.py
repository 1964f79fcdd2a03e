"""Promotions are heard of within seconds: by notification, by looking, and after any loss of the connection."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Thread

import pytest
from sqlalchemy import Engine, text

from service.domain.versions import Standing, Version
from service.storage.embedded import EmbeddedPostgres
from service.storage.engine import build_engine
from service.storage.migrate import upgrade
from service.storage.promotions import CHANNEL, PromotionRepository, standing_promotions
from service.storage.table_watch import TableWatch, application_name
from tests.api.processes import wait_for
from tests.frozen import frozen

MODEL = ("cpu-x", "compute")
NEVER_S = 60.0


class Follower:
    """Notes what it is told; fails as often as it is to."""

    def __init__(self) -> None:
        self.told: list[Standing] = []
        self.failures = 0

    def __call__(self, standing: Standing) -> None:
        if self.failures:
            self.failures -= 1
            raise LookupError("a defect")
        self.told.append(standing)

    def knows(self, number: int) -> Callable[[], bool]:
        return lambda: bool(self.told) and [p.number for p in self.told[-1].get(MODEL, ())][:1] == [number]


def _watch(engine: Engine, follower: Follower, poll_s: float) -> TableWatch[Standing]:
    return TableWatch(engine, "promotions", CHANNEL, standing_promotions, follower, poll_s)


@contextmanager
def _watched(engine: Engine, poll_s: float) -> Iterator[Follower]:
    follower = Follower()
    with _watch(engine, follower, poll_s):
        wait_for(lambda: bool(follower.told))
        yield follower


def _promote(engine: Engine, number: int) -> None:
    with PromotionRepository(engine).changing() as change:
        change.add(Version(*MODEL, number), "a test", "")


def _listening(engine: Engine) -> list[int]:
    """Server processes of the connections that listen, in this database."""
    query = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = :name"
    with engine.connect() as connection:
        return list(connection.scalars(text(query), {"name": application_name("promotions")}))


def test_a_promotion_is_heard_of_at_once(engine: Engine) -> None:
    with _watched(engine, poll_s=NEVER_S) as follower:
        for number in (1, 2, 3):
            _promote(engine, number)
            # Long before the next look.
            wait_for(follower.knows(number), NEVER_S / 3)


def test_a_promotion_that_nobody_is_notified_of_is_found(engine: Engine) -> None:
    with _watched(engine, poll_s=0.5) as follower:
        with engine.begin() as connection:
            connection.execute(
                text(
                    "INSERT INTO promotions (hardware, model, version_number, promoted_by, reason)"
                    " VALUES ('cpu-x', 'compute', 9, 'a test', '')"
                )
            )
        wait_for(follower.knows(9))


def test_a_connection_that_is_cut_is_opened_again_and_what_came_meanwhile_is_told(engine: Engine) -> None:
    with _watched(engine, poll_s=NEVER_S) as follower:
        for number in (1, 2):
            (pid,) = _listening(engine)
            with engine.connect() as connection:
                connection.execute(text("SELECT pg_terminate_backend(:pid, 5000)"), {"pid": pid})
            _promote(engine, number)
            wait_for(follower.knows(number))
            assert pid not in _listening(engine)
        _promote(engine, 3)
        wait_for(follower.knows(3))
    wait_for(lambda: not _listening(engine))


def test_a_failure_to_follow_is_logged_and_tried_again(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    with _watched(engine, poll_s=NEVER_S) as follower:
        follower.failures = 1
        _promote(engine, 1)
        wait_for(follower.knows(1))
    assert any("not followed" in record.message and record.exc_info for record in caplog.records)


def test_a_watch_ends_soon_also_while_the_database_is_away() -> None:
    engine = build_engine("postgresql://nobody@127.0.0.1:1/none")
    with _watch(engine, Follower(), 3.0):
        time.sleep(1.0)
        began = time.monotonic()
    assert time.monotonic() - began < 3


def test_a_frozen_server_holds_up_neither_what_is_told_once_it_is_thawed_nor_the_end(
    server_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_s, poll_s = 0.5, 1.0
    monkeypatch.setattr("service.storage.table_watch.ANSWER_TIMEOUT_S", limit_s)
    with EmbeddedPostgres(server_folder) as url, ExitStack() as watching:
        engine = build_engine(url)
        upgrade(engine)
        follower = watching.enter_context(_watched(engine, poll_s))
        (first,) = _listening(engine)
        # Between two looks a connection only listens, for longer than an answer may take.
        wait_for(lambda: len(follower.told) >= 3)
        assert _listening(engine) == [first]
        with frozen(server_folder):
            time.sleep(poll_s + 2 * limit_s)
        _promote(engine, 1)
        wait_for(follower.knows(1))
        assert first not in _listening(engine)
        with frozen(server_folder):
            time.sleep(poll_s + limit_s / 2)
            end = Thread(target=watching.close)
            end.start()
            end.join(5)
            assert not end.is_alive()
        engine.dispose()


def test_promotions_are_followed_after_the_server_was_restarted(server_folder: Path) -> None:
    server = EmbeddedPostgres(server_folder)
    engine = build_engine(server.start())
    try:
        upgrade(engine)
        with _watched(engine, poll_s=NEVER_S) as follower:
            _promote(engine, 1)
            wait_for(follower.knows(1))
            server.stop()
            time.sleep(1.0)
            server.start()
            _promote(engine, 2)
            wait_for(follower.knows(2))
    finally:
        engine.dispose()
        server.stop()
