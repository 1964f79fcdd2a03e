"""Making plans in the background: what becomes of each that ends as it should not."""

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine

from service.api.answers import UnderWayAnswer
from service.api.leases import renewed
from service.api.making import Answer
from service.api.planning import Planning
from service.api.plans_under_way import Patience, PlansUnderWay
from service.domain.callers import ANONYMOUS, WITHOUT_KEY, Caller, Scope
from service.domain.errors import Infeasible, PlanCancelled, PlannerBusy, PlanNotFound, StorageUnavailable
from service.domain.launches import LEASE_S
from service.domain.plans_under_way import PlanNotMade, PlanUnderWay
from service.domain.waiting import Waiting
from service.storage.plans import PlanRepository
from service.storage.plans_under_way import UnderWayRepository
from service.usecases.make_plan import PlanResult, PlanStatus
from tests.api.here import Clock, HerePlanner, planning_with
from tests.api.processes import wait_for
from tests.api.support import request
from tests.api.test_planning import AwayStore

PLAN = PlanUnderWay(ANONYMOUS, "a" * 32)
ANSWER: Answer = {"plan_id": PLAN.plan_id, "saved": True}
PATIENCE = Patience(poll_s=60.0, stop_s=60.0)
BODY = json.dumps(request()).encode()


class Plan:
    """A plan that is made when it is told to, and then comes to what it is told."""

    def __init__(self) -> None:
        self.outcome: Mapping[str, Any] | Exception = ANSWER
        self.go_on = threading.Event()
        self.taken_back = 0

    def make(self, waiting: Waiting) -> Answer:
        waiting.admitted()
        while not self.go_on.wait(0.01):
            if waiting.gone():
                raise PlanCancelled("nobody waits for the plan any more")
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    def take_back(self) -> None:
        self.taken_back += 1


@pytest.fixture
def store(engine: Engine) -> UnderWayRepository:
    return UnderWayRepository(engine)


@pytest.fixture
def under_way(store: UnderWayRepository) -> Iterator[PlansUnderWay]:
    with PlansUnderWay(store, PATIENCE, threading.Event()) as made:
        yield made


def failed(under_way: PlansUnderWay) -> PlanNotMade:
    """Why the plan was not made, as everyone is told."""
    found: list[PlanNotMade] = []

    def looked() -> bool:
        try:
            assert under_way.is_made(PLAN)
        except PlanNotMade as error:
            found.append(error)
        return bool(found)

    wait_for(looked)
    return found[0]


@pytest.mark.parametrize(
    ("outcome", "kind", "detail"),
    [
        (PlannerBusy("the service is stopping", retry_after_s=1), "plan_not_made", "stopping: ask POST /plan again"),
        (Infeasible("no", reason="packing", proven=False, shortfall_bytes=7), "infeasible", "no"),
        ({**ANSWER, "saved": False}, "plan_not_made", "the database is not available: ask POST /plan again"),
        (LookupError("secret"), "plan_not_made", "an unexpected error, logged under request"),
    ],
)
def test_why_a_plan_was_not_made_is_told_to_who_looks(
    under_way: PlansUnderWay, outcome: Any, kind: str, detail: str, caplog: pytest.LogCaptureFixture
) -> None:
    plan = Plan()
    plan.outcome = outcome
    assert under_way.begin(PLAN, plan.make, plan.take_back, 0.0) is None
    plan.go_on.set()
    error = failed(under_way)
    assert (error.kind, detail in error.detail) == (kind, True)
    assert error.data.get("shortfall_bytes") == (7 if kind == "infeasible" else None)
    assert "secret" not in error.detail
    assert [record.exc_info is not None for record in caplog.records if record.levelno == logging.ERROR] == (
        [True] if isinstance(outcome, LookupError) else []
    )


def test_who_waits_is_told_what_came_of_it(under_way: PlansUnderWay) -> None:
    plan = Plan()
    plan.go_on.set()
    assert under_way.begin(PLAN, plan.make, plan.take_back, 20.0) == ANSWER
    assert not under_way.is_made(PLAN)
    plan.outcome = PlannerBusy("full", retry_after_s=1)
    with pytest.raises(PlannerBusy, match="full"):
        under_way.begin(PLAN, plan.make, plan.take_back, 20.0)


def test_one_that_is_given_up_as_it_is_stored_is_taken_back(under_way: PlansUnderWay) -> None:
    plan = Plan()
    under_way.begin(PLAN, plan.make, plan.take_back, 0.0)
    assert under_way.give_up(PLAN)
    plan.go_on.set()
    wait_for(lambda: plan.taken_back == 1)
    assert not under_way.is_made(PLAN)


class GatedPlanner(HerePlanner):
    """Plans once it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()

    def plan(self, *args: Any) -> PlanResult:
        args[-1].admitted()
        assert self.go_on.wait(20)
        return super().plan(*args)


def given_up(planning: Planning, store: UnderWayRepository, caller: Caller) -> str:
    """The id of a plan that is being made for a caller who does not want it any more, as another replica knows."""
    begun = planning.plan_in_background(BODY, 1000.0, caller, 0.0)
    assert isinstance(begun, UnderWayAnswer)
    assert store.give_up(PlanUnderWay(caller.name, begun.plan_id))
    return begun.plan_id


def test_one_that_is_given_up_is_kept_where_another_call_waits_for_it(
    engine: Engine, store: UnderWayRepository, under_way: PlansUnderWay
) -> None:
    plans, planner = PlanRepository(engine), GatedPlanner()
    planning = planning_with(plans, planner, under_way=under_way)
    plan_id = given_up(planning, store, WITHOUT_KEY)
    with ThreadPoolExecutor(1) as threads:
        other = threads.submit(planning.plan, BODY, 1000.0, WITHOUT_KEY)
        time.sleep(0.3)
        planner.go_on.set()
        assert other.result(20)["saved"]
    wait_for(lambda: not under_way._threads)
    assert len(planner.deadlines) == 1
    assert plans.get(plan_id, WITHOUT_KEY) is not None


def test_one_that_is_taken_back_from_an_admin_stays_with_others(
    engine: Engine, store: UnderWayRepository, under_way: PlansUnderWay
) -> None:
    admin, other = (Caller(scope.value, frozenset({scope}), "id") for scope in (Scope.ADMIN, Scope.PLAN))
    plans, planner = PlanRepository(engine), GatedPlanner()
    plan_id = given_up(planning_with(plans, planner, under_way=under_way), store, admin)
    planning_with(plans, HerePlanner()).plan(BODY, 1000.0, other)
    planner.go_on.set()
    wait_for(lambda: not under_way._threads)
    assert plans.get(plan_id, other) is not None
    assert plans.get(plan_id, replace(admin, scopes=other.scopes)) is None


def test_a_stored_plan_is_deleted_also_where_its_making_failed_before(
    engine: Engine, store: UnderWayRepository, under_way: PlansUnderWay
) -> None:
    planning = planning_with(PlanRepository(engine), HerePlanner(), under_way=under_way)
    plan_id = planning.plan(BODY, 1000.0, WITHOUT_KEY)["plan_id"]
    failed_before = PlanUnderWay(WITHOUT_KEY.name, plan_id)
    assert store.claim(failed_before, "me")
    store.fail(failed_before, "me", {"kind": "no_plan_in_time", "detail": "late", "data": {}})
    planning.delete(plan_id, WITHOUT_KEY)
    with pytest.raises(PlanNotFound):
        planning.stored(plan_id, WITHOUT_KEY)


def test_who_waits_is_told_also_where_that_cannot_be_kept(engine: Engine) -> None:
    class Forgetful(UnderWayRepository):
        def fail(self, plan: PlanUnderWay, claimant: str, error: Mapping[str, Any]) -> None:
            raise ValueError("cannot be kept")

    plan = Plan()
    plan.outcome = PlannerBusy("full", retry_after_s=1)
    plan.go_on.set()
    with PlansUnderWay(Forgetful(engine), PATIENCE, threading.Event()) as under_way, pytest.raises(PlannerBusy):
        under_way.begin(PLAN, plan.make, plan.take_back, 5.0)


def test_a_thread_that_cannot_be_had_is_not_waited_for(
    store: UnderWayRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with PlansUnderWay(store, PATIENCE, threading.Event()) as under_way, monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        with pytest.raises(RuntimeError, match="new thread"):
            under_way.begin(PLAN, Plan().make, lambda: None, 0.0)


def test_the_end_of_a_service_that_was_not_told_to_stop_ends_what_it_makes(store: UnderWayRepository) -> None:
    with PlansUnderWay(store, PATIENCE, threading.Event()) as first:
        assert first.begin(PLAN, Plan().make, lambda: None, 0.0) is None
    with PlansUnderWay(store, PATIENCE, threading.Event()) as second:
        assert "stopped" in failed(second).detail


def test_a_claim_is_renewed_also_where_the_database_was_away_for_once() -> None:
    renewals = 0

    def renew() -> None:
        nonlocal renewals
        renewals += 1
        raise StorageUnavailable("away", retry_after_s=2)

    with renewed(renew):
        wait_for(lambda: renewals == 2, 3 * LEASE_S)


def made_with(engine: Engine, planner: HerePlanner, under_way: PlansUnderWay) -> Callable[[], Any]:
    planning = planning_with(PlanRepository(engine), planner, under_way=under_way)
    return lambda: planning.plan_in_background(BODY, 1000.0, WITHOUT_KEY, 20.0)


def test_a_stored_plan_is_the_answer_also_where_it_was_cut_short(engine: Engine, under_way: PlansUnderWay) -> None:
    planner = HerePlanner()
    ask = made_with(engine, planner, under_way)
    planner.status = PlanStatus.CUT_SHORT
    cut = ask()
    assert (cut["status"], cut["saved"]) == ("cut_short", True)
    assert ask() == cut
    assert len(planner.deadlines) == 1


def test_without_the_database_nobody_could_come_back(under_way: PlansUnderWay) -> None:
    clock, planner = Clock(), HerePlanner()
    planning = planning_with(AwayStore(clock, 0.1), planner, clock, under_way=under_way)
    with pytest.raises(StorageUnavailable):
        planning.plan_in_background(BODY, clock.now, WITHOUT_KEY, 0.0)
    assert planner.deadlines == []


def test_a_plan_that_is_stored_between_two_looks_is_found(engine: Engine, store: UnderWayRepository) -> None:
    plans = PlanRepository(engine)
    planning = planning_with(plans, HerePlanner())
    made = planning.plan(BODY, 1000.0, WITHOUT_KEY)
    kept = plans.get(made["plan_id"], WITHOUT_KEY)
    plans.delete(made["plan_id"], WITHOUT_KEY)

    class StoredMeanwhile(PlansUnderWay):
        def is_made(self, plan: PlanUnderWay) -> bool:
            assert kept is not None
            plans.put(kept, WITHOUT_KEY)
            return super().is_made(plan)

    late = planning_with(plans, HerePlanner(), under_way=StoredMeanwhile(store, PATIENCE, threading.Event()))
    assert late.stored(made["plan_id"], WITHOUT_KEY) == made
    plans.delete(made["plan_id"], WITHOUT_KEY)
    with pytest.raises(PlanNotFound):
        planning.stored(made["plan_id"], WITHOUT_KEY)


def test_who_waits_longer_than_others_look_is_waited_for(store: UnderWayRepository) -> None:
    plan = Plan()
    with (
        PlansUnderWay(store, Patience(poll_s=0.5, stop_s=60.0), threading.Event()) as under_way,
        ThreadPoolExecutor(1) as threads,
    ):
        answer = threads.submit(under_way.begin, PLAN, plan.make, plan.take_back, 20.0)
        time.sleep(2.5 * LEASE_S / 3)
        plan.go_on.set()
        assert answer.result(20) == ANSWER
