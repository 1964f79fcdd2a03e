"""Plans are given up while others ask for them, move from them, launch and observe them: nothing breaks on it."""

import random
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Engine

from service.domain.callers import WITHOUT_KEY, Caller, Scope
from service.domain.errors import PlanNotFound, StorageUnavailable
from service.domain.launches import Launch
from service.domain.observations import Observation
from service.domain.ports import StoredPlan
from service.storage.engine import build_engine
from service.storage.launches import LaunchRepository
from service.storage.observations import ObservationRepository
from service.storage.plans import PlanRepository

_SECONDS = 2.5


@pytest.fixture
def many(database_url: str) -> Iterator[Engine]:
    engine = build_engine(database_url, pool_size=8)
    yield engine
    engine.dispose()


class _User:
    """Does something with some plan, again and again; everything that may go wrong is told from what may not."""

    def __init__(self, engine: Engine, seed: int) -> None:
        self.plans, self.launches = PlanRepository(engine), LaunchRepository(engine)
        self.observations = ObservationRepository(engine)
        self.rng, self.done = random.Random(seed), Counter[str]()
        self.caller = Caller(f"caller-{seed % 2}", frozenset({Scope.PLAN})) if seed else WITHOUT_KEY

    def run(self) -> Counter[str]:
        over = time.monotonic() + _SECONDS
        while time.monotonic() < over:
            action = self.rng.choice([self._ask, self._move, self._launch, self._observe, self._delete, self._delete])
            self.done[action(str(self.rng.randrange(3)))] += 1
        return self.done

    def _put(self, plan_id: str, previous: str | None = None) -> StoredPlan:
        request, answer = {"previous_plan_id": previous}, {"plan_id": plan_id, "status": "complete"}
        return self.plans.put(StoredPlan(plan_id, "cpu-x", "auto", 1.0, request, answer), self.caller)

    def _ask(self, plan_id: str) -> str:
        (self.plans.ask(plan_id, self.caller) or self._put(plan_id))
        return "asked"

    def _move(self, plan_id: str) -> str:
        self._put(f"{plan_id} next", previous=plan_id)
        self._delete(f"{plan_id} next")
        return "moved"

    def _launch(self, plan_id: str) -> str:
        launch = Launch(self.caller.name, str(self.rng.randrange(50)), plan_id)
        try:
            self.launches.keep(launch, "me", plan_id, self._put(plan_id).answer)
        except StorageUnavailable as error:
            assert "deleted" in error.detail
            return "not launched"
        return "launched"

    def _observe(self, plan_id: str) -> str:
        seen = Observation("", 0, 0, 1, 1.0, 1.0, None, None, None, {})
        found = self.observations.add(plan_id, [seen], self.caller)
        return "observed" if found else "not observed"

    def _delete(self, plan_id: str) -> str:
        try:
            self.plans.delete(plan_id, self.caller)
        except PlanNotFound:
            return "not deleted"
        return "deleted"


def test_plans_that_are_given_up_while_they_are_used_break_nothing(many: Engine) -> None:
    with ThreadPoolExecutor(5) as pool:
        done = sum(pool.map(lambda seed: _User(many, seed).run(), range(5)), Counter[str]())
    assert all(done[what] > 0 for what in ("asked", "moved", "launched", "observed", "deleted", "not deleted")), done


def test_a_plan_that_is_deleted_as_another_is_made_from_it_leaves_that_one_whole(engine: Engine) -> None:
    plans, ann = PlanRepository(engine), Caller("ann", frozenset({Scope.PLAN}))
    plans.put(StoredPlan("before", "cpu-x", "auto", 1.0, {}, {"status": "complete"}), ann)
    plans.delete("before", ann)
    after = StoredPlan("after", "cpu-x", "auto", 1.0, {"previous_plan_id": "before"}, {"status": "complete"})
    assert plans.put(after, ann) == after
    assert plans.get("after", ann) == after
