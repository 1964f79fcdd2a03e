"""Promotions as they are kept: the stack that serves, one change at a time, and what plans name."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from sqlalchemy import Engine, text

from service.domain.callers import ANONYMOUS, WITHOUT_KEY
from service.domain.errors import StorageUnavailable
from service.domain.launches import Launch
from service.domain.ports import StoredPlan
from service.domain.version_ports import PromotionStore
from service.domain.versions import Promotion, Version
from service.storage.engine import build_engine
from service.storage.launches import LaunchRepository
from service.storage.plans import PlanRepository
from service.storage.promotions import CHANNEL, PromotionRepository

MODEL = ("cpu-x", "compute")


def _version(number: int) -> Version:
    return Version(*MODEL, number)


def _promote(store: PromotionStore, number: int, undoes: int | None = None) -> Promotion:
    with store.changing() as change:
        return change.add(_version(number), "a test", f"number {number}", undoes=undoes)


def _standing(store: PromotionStore) -> list[int | None]:
    return [promotion.number for promotion in store.standing().get(MODEL, ())]


def test_a_promotion_comes_back_as_it_was_written(engine: Engine) -> None:
    store: PromotionStore = PromotionRepository(engine)
    with store.changing() as change:
        made = change.add(_version(3), "a test", "it's better", {"mape": [0.1, 0.09]})
        assert [promotion.number for promotion in change.standing()[MODEL]] == [3]
    assert store.history(*MODEL, 10) == [made]
    assert store.standing() == {MODEL: [made]}
    assert (made.number, made.promoted_by, made.reason) == (3, "a test", "it's better")
    assert made.comparison == {"mape": [0.1, 0.09]}
    assert abs(datetime.now(UTC) - made.promoted_at) < timedelta(seconds=60)


def test_an_analytic_version_is_promoted_without_a_number(engine: Engine) -> None:
    store = PromotionRepository(engine)
    with store.changing() as change:
        change.add(Version("h100", "compute", 2, analytic=True), "a test", "")
    (promotion,) = store.standing()[("h100", "compute")]
    assert (promotion.number, promotion.comparison) == (None, None)


def test_what_was_undone_does_not_stand_and_rollbacks_are_none_of_those_that_do(engine: Engine) -> None:
    store = PromotionRepository(engine)
    made = [_promote(store, number) for number in (1, 2, 3)]
    _promote(store, 2, undoes=made[2].id)
    assert _standing(store) == [2, 1]
    _promote(store, 1, undoes=made[1].id)
    assert _standing(store) == [1]
    _promote(store, 4)
    assert _standing(store) == [4, 1]
    assert [p.number for p in store.history(*MODEL, 10)] == [4, 1, 2, 3, 2, 1]
    assert [p.number for p in store.history(*MODEL, 2)] == [4, 1]


def test_models_stand_apart(engine: Engine) -> None:
    store = PromotionRepository(engine)
    _promote(store, 1)
    with store.changing() as change:
        change.add(Version("cpu-y", "compute", 7), "a test", "")
    assert {model: [p.number for p in stack] for model, stack in store.standing().items()} == {
        MODEL: [1],
        ("cpu-y", "compute"): [7],
    }


def test_a_change_that_fails_changes_nothing_and_tells_nobody(engine: Engine, listener: "Listener") -> None:
    store = PromotionRepository(engine)

    def fail() -> None:
        with store.changing() as change:
            change.add(_version(1), "a test", "")
            raise LookupError

    with pytest.raises(LookupError):
        fail()
    assert store.standing() == {}
    assert listener.heard(seconds=0.3) == 0
    _promote(store, 2)
    assert listener.heard(seconds=5) == 1


class Listener:
    """Hears notifications on a connection of its own."""

    def __init__(self, connection: "psycopg.Connection[tuple[object, ...]]") -> None:
        self._connection = connection
        connection.execute(f"LISTEN {CHANNEL}")

    def heard(self, seconds: float) -> int:
        """How many notifications come with the first, which is waited for."""
        return len(list(self._connection.notifies(timeout=seconds, stop_after=1)))


@pytest.fixture
def listener(database_url: str) -> Iterator[Listener]:
    with psycopg.connect(database_url.replace("+psycopg", ""), autocommit=True) as connection:
        yield Listener(connection)


def test_one_change_at_a_time_and_readers_do_not_wait(database_url: str) -> None:
    engine = build_engine(database_url, pool_size=10)
    store = PromotionRepository(engine)
    inside, most, counting = 0, 0, threading.Lock()

    def promote(number: int) -> None:
        nonlocal inside, most
        with store.changing() as change:
            with counting:
                inside += 1
                most = max(most, inside)
            store.standing()
            change.add(_version(number), "a test", "")
            with counting:
                inside -= 1

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(promote, range(1, 9)))
    assert most == 1
    assert sorted(number for number in _standing(store) if number) == list(range(1, 9))
    engine.dispose()


def test_a_change_that_takes_too_long_holds_up_the_next_for_a_while_only(database_url: str) -> None:
    engine = build_engine(database_url, lock_timeout_ms=100)
    store = PromotionRepository(engine)
    with store.changing(), pytest.raises(StorageUnavailable, match="lock timeout"):
        _promote(store, 1)
    engine.dispose()


PLAN = StoredPlan("0", "cpu-x", "auto", 1.0, {}, {})


def test_plans_name_the_versions_that_they_were_made_with_while_they_are_used(engine: Engine) -> None:
    plans = PlanRepository(engine)
    for plan_id, models in enumerate(
        ({"compute": "cpu-x/compute/1", "communication": "cpu-x/communication/1"}, {"compute": "cpu-x/compute/2"}, None)
    ):
        answer = {"status": "complete"} | ({"models": models} if models else {})
        plans.put(replace(PLAN, plan_id=str(plan_id), answer=answer), WITHOUT_KEY)
    assert plans.models_named(1) == {"cpu-x/compute/1", "cpu-x/communication/1", "cpu-x/compute/2"}
    with engine.begin() as connection:
        connection.execute(text("UPDATE plans SET last_used_at = now() - interval '25 hours' WHERE plan_id = '0'"))
    assert plans.models_named(1) == {"cpu-x/compute/2"}
    assert plans.models_named(0) == set()
    assert plans.get("0", WITHOUT_KEY)
    assert plans.models_named(1) == {"cpu-x/compute/1", "cpu-x/communication/1", "cpu-x/compute/2"}


def test_what_a_launch_was_answered_names_its_versions_when_its_plan_has_others_by_now(engine: Engine) -> None:
    plans, launches = PlanRepository(engine), LaunchRepository(engine)
    launch, given = Launch(ANONYMOUS, "night", "0"), {"models": {"compute": "cpu-x/compute/1"}}
    plans.put(replace(PLAN, answer={"status": "complete", "models": {"compute": "cpu-x/compute/2"}}), WITHOUT_KEY)
    assert launches.claim(launch, "me")
    launches.keep(launch, "me", PLAN.plan_id, given)
    with engine.begin() as connection:
        connection.execute(text("UPDATE plans SET last_used_at = now() - interval '25 hours'"))
    assert plans.models_named(1) == {"cpu-x/compute/1"}


def test_a_frozen_change_is_ended_by_the_server(engine: Engine) -> None:
    with PromotionRepository(engine).changing() as change:
        connection = change._connection
        assert connection.scalar(text("SHOW idle_in_transaction_session_timeout")) == "10s"
