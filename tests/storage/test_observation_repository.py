"""Observations are stored once, each with the answer that it is of."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, text
from sqlalchemy.exc import IntegrityError

from service.domain.callers import ANONYMOUS, THROUGH_PROXY, WITHOUT_KEY, Caller, Scope
from service.domain.launch_ports import ObservationStore
from service.domain.launches import Launch
from service.domain.observations import Observation, StoredObservation
from service.domain.ports import StoredPlan
from service.storage.engine import build_engine
from service.storage.launches import LaunchRepository
from service.storage.observations import ObservationRepository
from service.storage.plans import PlanRepository
from tests.examples import examples

REQUEST = {"tables": [{"name": "größe"}], "devices": {"memory_bytes": [1, 1]}}


def plan(plan_id: str = "p", n: int = 1, **changes: Any) -> StoredPlan:
    answer = {"plan_id": plan_id, "status": "cut_short", "z": n, "a": 0.1}
    return replace(StoredPlan(plan_id, "cpu-x", "auto", 10.0 - n, REQUEST, answer), **changes)


def observation(rank: int = 0, start: int = 0, stop: int = 100, launch_id: str = "", ms: float = 1.0) -> Observation:
    return Observation(launch_id, rank, start, stop, ms, 2.0, None, 0.1 + 0.2, None, {"device": "x"})


@pytest.fixture
def store(engine: Engine) -> ObservationStore:
    PlanRepository(engine).put(plan(), WITHOUT_KEY)
    return ObservationRepository(engine)


def add(store: ObservationStore, *observations: Observation) -> tuple[list[StoredObservation], set[int]]:
    added = store.add("p", observations, WITHOUT_KEY)
    assert added is not None
    return added


def test_observations_come_back_as_they_were_in_their_order(store: ObservationStore) -> None:
    given = [observation(rank=1), observation(start=100, stop=2**53 - 1), observation()]
    stored, new = add(store, *given)
    assert [each.observation for each in stored] == given
    assert new == {each.id for each in stored}
    assert {each.answer["z"] for each in stored} == {1}
    again = store.of_plan("p", WITHOUT_KEY, 0, 10)
    assert {each.id: each for each in again} == {each.id: each for each in stored}
    assert [each.id for each in again] == sorted(new)


def test_a_plan_that_is_not_stored_has_none_and_takes_none(store: ObservationStore) -> None:
    assert store.add("q", [observation()], WITHOUT_KEY) is None
    assert store.of_plan("q", WITHOUT_KEY, 0, 10) == []


def test_pages_follow_each_other(store: ObservationStore) -> None:
    add(store, *(observation(rank) for rank in range(5)))
    pages, after = [], 0
    while page := store.of_plan("p", WITHOUT_KEY, after, 2):
        pages.append([each.observation.rank for each in page])
        after = page[-1].id
    assert pages == [[0, 1], [2, 3], [4]]


@pytest.mark.parametrize(
    "other", [observation(rank=1), observation(start=1), observation(stop=99), observation(launch_id="other")]
)
def test_another_rank_range_or_launch_is_another_observation(store: ObservationStore, other: Observation) -> None:
    add(store, observation())
    assert len(add(store, other)[1]) == 1


def test_the_first_under_a_rank_and_steps_stays(store: ObservationStore) -> None:
    first, _ = add(store, observation(ms=1.0))
    again, new = add(store, observation(ms=5.0), observation(rank=1))
    assert again[0] == first[0]
    assert new == {again[1].id}


def test_what_others_observe_of_the_same_plan_is_theirs_also_under_the_same_launch(
    store: ObservationStore, engine: Engine
) -> None:
    ann, bob = (Caller(name, frozenset({Scope.PLAN, Scope.OBSERVE})) for name in ("ann", "bob"))
    for caller, ms in ((ann, 1.0), (bob, 5.0)):
        assert PlanRepository(engine).ask("p", caller)
        (stored,), new = store.add("p", [observation(ms=ms)], caller) or ([], set())
        assert new == {stored.id}
        assert [each.observation.forward_compute_ms for each in store.of_plan("p", caller, 0, 10)] == [ms]
    assert [each.observation.forward_compute_ms for each in store.of_plan("p", WITHOUT_KEY, 0, 10)] == [1.0, 5.0]
    assert store.of_plan("p", THROUGH_PROXY, 0, 10) == []
    (observed,) = store.observed("cpu-x")
    assert len(observed.observations) == 2


POSTED = st.lists(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(3, 4), st.floats(0, 1e9)),
        min_size=1,
        max_size=6,
        unique_by=lambda each: each[:3],
    ),
    min_size=1,
    max_size=5,
)


@given(posted=POSTED)
@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_is_posted_how_often_the_first_of_each_stays(
    store: ObservationStore, engine: Engine, posted: list[list[tuple[int, int, int, float]]]
) -> None:
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM observations"))
    first: dict[tuple[int, int, int], float] = {}
    for batch in (*posted, *posted):
        known = len(first)
        stored, new = add(store, *(observation(rank, start, stop, ms=ms) for rank, start, stop, ms in batch))
        for rank, start, stop, ms in batch:
            first.setdefault((rank, start, stop), ms)
        assert [each.observation.forward_compute_ms for each in stored] == [first[each[:3]] for each in batch]
        assert len(new) == len(first) - known
    kept = store.of_plan("p", WITHOUT_KEY, 0, 1_000)
    assert {(o.rank, o.start, o.stop): o.forward_compute_ms for each in kept for o in [each.observation]} == first


def test_many_that_post_the_same_at_once_store_it_once(store: ObservationStore, database_url: str) -> None:
    engine = build_engine(database_url, pool_size=8)
    many, barrier = ObservationRepository(engine), Barrier(8)
    posted = [observation(rank, start, start + 1) for rank in range(8) for start in range(20)]

    def post(i: int) -> set[int]:
        barrier.wait()
        return add(many, *(posted[i:] + posted[:i]))[1]

    with ThreadPoolExecutor(8) as pool:
        new = list(pool.map(post, range(8)))
    assert sum(map(len, new)) == len(posted) == len(set().union(*new))
    engine.dispose()


def test_an_observation_stays_with_the_answer_that_it_is_of(store: ObservationStore, engine: Engine) -> None:
    plans, launches = PlanRepository(engine), LaunchRepository(engine)
    launches.keep(Launch(ANONYMOUS, "night", "0"), "me", "p", plan().answer)
    add(store, observation())
    assert plans.put(plan(n=2), WITHOUT_KEY).answer["z"] == 2
    add(store, observation(rank=1), observation())
    add(store, observation(launch_id="night"))
    add(store, observation(launch_id="never asked"))
    kept = store.of_plan("p", WITHOUT_KEY, 0, 10)
    assert [(each.observation.rank, each.observation.launch_id, each.answer["z"]) for each in kept] == [
        (0, "", 1), (1, "", 2), (0, "night", 1), (0, "never asked", 2),
    ]  # fmt: skip
    observed = {each.answer["z"]: each for each in store.observed("cpu-x")}
    assert {z: len(each.observations) for z, each in observed.items()} == {1: 2, 2: 2}
    assert observed[1].request == REQUEST


def test_observed_plans_are_those_of_the_hardware(store: ObservationStore, engine: Engine) -> None:
    PlanRepository(engine).put(plan("q", hardware="h200"), WITHOUT_KEY)
    PlanRepository(engine).put(plan("never observed"), WITHOUT_KEY)
    add(store, observation())
    assert store.add("q", [observation(rank=1), observation()], WITHOUT_KEY) is not None
    assert [each.plan_id for each in store.observed("cpu-x")] == ["p"]
    (found,) = store.observed("h200")
    assert [each.observation.rank for each in found.observations] == [0, 1]
    assert list(store.observed("other")) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"rank": -1},
        {"stop": 0},
        {"start": -1},
        {"forward_compute_ms": float("nan")},
        {"backward_compute_ms": float("inf")},
        {"forward_comm_ms": -1.0},
        {"total_ms": float("nan")},
    ],
)
def test_an_impossible_observation_is_refused_with_all_that_came_with_it(
    store: ObservationStore, changes: dict[str, Any]
) -> None:
    with pytest.raises(IntegrityError):
        store.add("p", [observation(rank=1), replace(observation(), **changes)], WITHOUT_KEY)
    assert store.of_plan("p", WITHOUT_KEY, 0, 10) == []
