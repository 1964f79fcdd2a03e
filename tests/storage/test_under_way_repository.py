"""Plans under way: one maker at a time, whoever is slow, dead or gone, and what is told of each."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from sqlalchemy import Engine, text

from service.domain.plans_under_way import Making, PlanUnderWay
from service.domain.retention import Kept
from service.storage.plans_under_way import UnderWayRepository
from service.storage.retention import RetentionRepository
from tests.storage.test_retention import KEEP

PLAN = PlanUnderWay("night", "a" * 32)
ERROR = {"kind": "infeasible", "detail": "no", "data": {"reason": "packing", "tables": ["t"]}}
PATIENCE_S = 60.0


@pytest.fixture
def store(engine: Engine) -> UnderWayRepository:
    return UnderWayRepository(engine)


def aged(engine: Engine, column: str, ago: str) -> None:
    with engine.begin() as connection:
        connection.execute(text(f"UPDATE plans_under_way SET {column} = now() - interval '{ago}'"))


def test_one_of_many_makes_a_plan(store: UnderWayRepository) -> None:
    barrier = Barrier(8)

    def claim(number: int) -> bool:
        barrier.wait()
        return store.claim(PLAN, str(number))

    with ThreadPoolExecutor(8) as threads:
        assert sorted(threads.map(claim, range(8))) == [False] * 7 + [True]
    assert store.claim(PlanUnderWay("day", PLAN.plan_id), "me")
    assert store.look(PLAN) == Making(lost=False, error=None)
    assert store.look(PlanUnderWay("evening", PLAN.plan_id)) is None


def test_what_a_dead_process_had_is_lost_until_another_makes_it(store: UnderWayRepository, engine: Engine) -> None:
    assert store.claim(PLAN, "dead")
    aged(engine, "claimed_until", "1 second")
    assert store.look(PLAN) == Making(lost=True, error=None)
    assert store.claim(PLAN, "next")
    assert store.look(PLAN) == Making(lost=False, error=None)
    # The dead one was only slow: nothing of the other's is its own.
    assert not store.renew(PLAN, "dead", PATIENCE_S)
    store.fail(PLAN, "dead", ERROR)
    assert not store.finish(PLAN, "dead")
    assert store.look(PLAN) == Making(lost=False, error=None)
    assert store.renew(PLAN, "next", PATIENCE_S)


def test_a_claim_holds_as_long_as_somebody_looks(store: UnderWayRepository, engine: Engine) -> None:
    assert store.claim(PLAN, "me")
    aged(engine, "claimed_until", "1 second")
    assert store.renew(PLAN, "me", PATIENCE_S)
    assert store.look(PLAN) == Making(lost=False, error=None)
    aged(engine, "looked_for_at", "61 seconds")
    assert not store.renew(PLAN, "me", PATIENCE_S)
    store.look(PLAN)
    assert store.renew(PLAN, "me", PATIENCE_S)


def test_why_it_failed_is_told_for_minutes(store: UnderWayRepository, engine: Engine) -> None:
    assert store.claim(PLAN, "me")
    store.fail(PLAN, "me", ERROR)
    told = store.look(PLAN)
    assert told is not None
    assert told.error == ERROR
    assert not store.renew(PLAN, "me", PATIENCE_S)
    aged(engine, "claimed_until", "9 minutes")
    assert store.look(PLAN) is not None
    assert RetentionRepository(engine).prune(Kept.PLANS_UNDER_WAY, KEEP, (), 10) == 0
    aged(engine, "claimed_until", "11 minutes")
    assert store.look(PLAN) is None
    assert not store.give_up(PLAN)
    assert RetentionRepository(engine).prunable(KEEP, ())[Kept.PLANS_UNDER_WAY] == 1
    assert RetentionRepository(engine).prune(Kept.PLANS_UNDER_WAY, KEEP, (), 10) == 1


def test_a_failed_one_may_be_made_again(store: UnderWayRepository) -> None:
    assert store.claim(PLAN, "me")
    store.fail(PLAN, "me", ERROR)
    assert store.claim(PLAN, "me again")
    assert store.look(PLAN) == Making(lost=False, error=None)


@pytest.mark.parametrize("fails", [True, False])
def test_nothing_is_told_of_one_that_was_given_up(store: UnderWayRepository, engine: Engine, fails: bool) -> None:
    assert not store.give_up(PLAN)
    assert store.claim(PLAN, "me")
    assert store.give_up(PLAN)
    assert not store.give_up(PLAN)
    assert store.look(PLAN) is None
    assert not store.renew(PLAN, "me", PATIENCE_S)
    if fails:
        store.fail(PLAN, "me", ERROR)
    else:
        assert store.finish(PLAN, "me")
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM plans_under_way")) == 0


def test_one_that_was_given_up_may_be_asked_for_again_at_once(store: UnderWayRepository) -> None:
    assert store.claim(PLAN, "me")
    assert store.give_up(PLAN)
    assert store.claim(PLAN, "next")
    assert not store.finish(PLAN, "me")
    assert store.look(PLAN) == Making(lost=False, error=None)
    assert not store.finish(PLAN, "next")
    assert store.look(PLAN) is None
