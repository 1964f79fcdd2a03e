"""One answer a launch, one claimant at a time, whoever is slow, dead or twice there."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, text

from service.domain.callers import ANONYMOUS, WITHOUT_KEY
from service.domain.launch_ports import LaunchStore
from service.domain.launches import LEASE_S, Launch
from service.domain.ports import StoredPlan
from service.storage.engine import build_engine
from service.storage.launches import LaunchRepository
from service.storage.plans import PlanRepository
from tests.examples import examples

LAUNCH = Launch(ANONYMOUS, "night", "f" * 32)
PLANS = ("a", "b")


def answer(plan_id: str, n: int) -> dict[str, Any]:
    return {"plan_id": plan_id, "z": n, "a": [0.1, 5e-324]}


@pytest.fixture
def store(engine: Engine) -> LaunchStore:
    for plan_id in PLANS:
        PlanRepository(engine).put(StoredPlan(plan_id, "cpu-x", "auto", 1.0, {}, {"status": "complete"}), WITHOUT_KEY)
    return LaunchRepository(engine)


def run_out(engine: Engine) -> None:
    """Ends all claims, an hour ago."""
    with engine.begin() as connection:
        connection.execute(text("UPDATE launches SET claimed_until = now() - interval '1 hour'"))


def last(engine: Engine) -> None:
    """Has claims that were made or renewed in the last minutes last: no pause of this process ends them."""
    fresh = (
        "UPDATE launches SET claimed_until = now() + interval '1 hour' WHERE claimed_until > now() - interval '30 min'"
    )
    with engine.begin() as connection:
        connection.execute(text(fresh))


def left_s(engine: Engine) -> float:
    with engine.connect() as connection:
        return float(connection.scalar(text("SELECT extract(epoch FROM claimed_until - now()) FROM launches")) or 0)


def test_what_was_kept_first_is_the_answer_members_in_their_order(store: LaunchStore) -> None:
    assert store.get(LAUNCH) is None
    assert store.claim(LAUNCH, "me")
    assert store.get(LAUNCH) is None
    assert store.keep(LAUNCH, "me", "a", answer("a", 1)) == answer("a", 1)
    assert store.keep(LAUNCH, "me", "b", answer("b", 2)) == answer("a", 1)
    found = store.get(LAUNCH)
    assert found is not None
    assert list(found.items()) == list(answer("a", 1).items())


@pytest.mark.parametrize("field", ["key", "launch_id", "request_hash"])
def test_another_key_launch_or_request_is_another_entry(store: LaunchStore, field: str) -> None:
    other = replace(LAUNCH, **{field: "other"})
    store.keep(LAUNCH, "me", "a", answer("a", 1))
    assert store.get(other) is None
    assert store.claim(other, "me")
    assert store.keep(other, "me", "b", answer("b", 2)) == answer("b", 2)
    assert store.get(LAUNCH) == answer("a", 1)


def test_of_sixteen_claimants_at_once_one_has_the_claim_and_of_sixteen_answers_one_stays(
    store: LaunchStore, database_url: str
) -> None:
    engine = build_engine(database_url, pool_size=16)
    many, barrier = LaunchRepository(engine), Barrier(16)

    def claimed_and_kept(i: int) -> tuple[bool, Any]:
        barrier.wait()
        claimed = many.claim(LAUNCH, str(i))
        barrier.wait()
        return claimed, many.keep(LAUNCH, str(i), "a", answer("a", i))["z"]

    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(claimed_and_kept, range(16)))
    assert sum(claimed for claimed, _ in found) == 1
    assert len({kept for _, kept in found}) == 1
    engine.dispose()


def test_a_claim_holds_for_its_lease_and_longer_where_it_is_renewed(store: LaunchStore, engine: Engine) -> None:
    assert store.claim(LAUNCH, "me")
    assert -1_000 < left_s(engine) <= LEASE_S
    last(engine)
    assert not store.claim(LAUNCH, "other")
    assert not store.claim(LAUNCH, "me")
    run_out(engine)
    store.renew(LAUNCH, "me")
    assert -1_000 < left_s(engine) <= LEASE_S
    last(engine)
    assert not store.claim(LAUNCH, "other")
    run_out(engine)
    assert store.claim(LAUNCH, "other")
    run_out(engine)
    store.renew(LAUNCH, "me")
    assert left_s(engine) < -1_000, "a claim that had passed to another was renewed"
    assert store.claim(LAUNCH, "me")


def test_a_claim_that_is_given_up_is_free_at_once_and_one_of_another_cannot_be(store: LaunchStore) -> None:
    store.claim(LAUNCH, "me")
    store.release(LAUNCH, "other")
    assert not store.claim(LAUNCH, "other")
    store.release(LAUNCH, "me")
    assert store.claim(LAUNCH, "other")


def test_an_answer_can_be_neither_claimed_nor_given_up(store: LaunchStore, engine: Engine) -> None:
    store.claim(LAUNCH, "me")
    store.keep(LAUNCH, "me", "a", answer("a", 1))
    store.release(LAUNCH, "me")
    run_out(engine)
    assert not store.claim(LAUNCH, "other")
    assert store.get(LAUNCH) == answer("a", 1)


def test_the_one_that_lost_its_claim_gets_the_answer_of_the_one_that_took_over(
    store: LaunchStore, engine: Engine
) -> None:
    store.claim(LAUNCH, "frozen")
    run_out(engine)
    assert store.claim(LAUNCH, "other")
    assert store.keep(LAUNCH, "other", "a", answer("a", 1)) == answer("a", 1)
    assert store.keep(LAUNCH, "frozen", "b", answer("b", 2)) == answer("a", 1)


def test_answers_that_many_launches_got_are_kept_once(store: LaunchStore, engine: Engine) -> None:
    for i in range(5):
        store.keep(replace(LAUNCH, launch_id=str(i)), "me", "a", answer("a", i % 2))
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM given_answers")) == 2


@pytest.fixture(scope="module")
def numbers() -> Iterator[int]:
    return iter(range(10**9))


STEPS = st.lists(
    st.tuples(st.sampled_from(["claim", "renew", "release", "run out", "keep", "get"]), st.sampled_from("xyz")),
    min_size=1,
    max_size=25,
)


@given(steps=STEPS)
@settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_happens_all_answers_after_the_first_are_it(
    store: LaunchStore, engine: Engine, numbers: Iterator[int], steps: list[tuple[str, str]]
) -> None:
    launch, kept, owner, runs = replace(LAUNCH, launch_id=f"l{next(numbers)}"), None, None, False
    for n, (step, who) in enumerate(steps):
        if step == "claim":
            claimed = store.claim(launch, who)
            assert claimed is (kept is None and not runs)
            owner, runs = (who, True) if claimed else (owner, runs)
        elif step == "renew":
            store.renew(launch, who)
            runs = runs or owner == who
        elif step == "release":
            store.release(launch, who)
            owner, runs = (None, False) if owner == who else (owner, runs)
        elif step == "run out":
            run_out(engine)
            runs = False
        elif step == "keep":
            kept = kept or answer("a", n)
            assert store.keep(launch, who, "a", answer("a", n)) == kept
        last(engine)
        assert store.get(launch) == kept
