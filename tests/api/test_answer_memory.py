"""What was asked a moment ago is answered from memory, for as long as the answer would be the same."""

import json
from pathlib import Path

from service.api.answer_memory import AnswerMemory, Given
from service.api.model_versions import ModelVersions
from service.domain.callers import WITHOUT_KEY, Caller, Scope
from service.usecases.make_plan import PlanStatus
from tests.api.fake_store import FakeStore
from tests.api.here import Clock, HerePlanner, fresh_metrics, planning_with
from tests.api.support import request
from tests.api.test_planning import OneStore

BODY = json.dumps(request()).encode()
SHARDS = [{"table": f"t{i}", "columns": [0, 64 + 64 * (i == 1)], "device": 0} for i in range(3)]
ESTIMATE = {**{key: value for key, value in request().items() if key != "algorithm"}, "shards": SHARDS}


def test_a_stored_plan_is_given_again_for_a_second() -> None:
    clock = Clock()
    planning = planning_with(OneStore(), HerePlanner(), clock)
    assert planning.plan_given_before(BODY, WITHOUT_KEY) is None
    made = planning.plan(BODY, clock.now, WITHOUT_KEY)
    assert json.loads(planning.plan_given_before(BODY, WITHOUT_KEY) or "") == made
    assert planning.plan_given_before(BODY + b" ", WITHOUT_KEY) is None
    clock.now += 1.0
    assert planning.plan_given_before(BODY, WITHOUT_KEY) is None
    # A look at the database, and it is known again.
    planning.plan(BODY, clock.now, WITHOUT_KEY)
    assert planning.plan_given_before(BODY, WITHOUT_KEY) is not None


def test_another_caller_gets_nothing_and_what_was_deleted_is_forgotten() -> None:
    planning = planning_with(OneStore(), HerePlanner())
    made = planning.plan(BODY, 1000.0, WITHOUT_KEY)
    assert planning.plan_given_before(BODY, Caller("another", frozenset({Scope.PLAN}), "k")) is None
    planning.delete(made["plan_id"], WITHOUT_KEY)
    assert planning.plan_given_before(BODY, WITHOUT_KEY) is None


def test_a_plan_by_pinned_versions_is_not_remembered() -> None:
    planning = planning_with(OneStore(), HerePlanner())
    body = json.dumps(request(models={"compute": "fake/compute/1"})).encode()
    planning.plan(body, 1000.0, WITHOUT_KEY)
    assert planning.plan_given_before(body, WITHOUT_KEY) is None


def test_a_plan_that_was_cut_short_is_not_remembered() -> None:
    planner = HerePlanner()
    planner.status = PlanStatus.CUT_SHORT
    planning = planning_with(OneStore(), planner)
    planning.plan(BODY, 1000.0, WITHOUT_KEY)
    assert planning.plan_given_before(BODY, WITHOUT_KEY) is None


def test_an_estimate_is_priced_once(tmp_path: Path) -> None:
    clock, planner = Clock(), HerePlanner()
    planning = planning_with(OneStore(), planner, clock, source=FakeStore(str(tmp_path)))
    body = json.dumps(ESTIMATE).encode()
    assert planning.estimates.given_before(body, WITHOUT_KEY) is None
    answer = planning.estimates.answer(body, WITHOUT_KEY)
    assert json.loads(planning.estimates.given_before(body, WITHOUT_KEY) or "") == answer.model_dump(mode="json")
    pinned = json.dumps(ESTIMATE | {"models": {"compute": "fake/compute/1"}}).encode()
    planning.estimates.answer(pinned, WITHOUT_KEY)
    assert planning.estimates.given_before(pinned, WITHOUT_KEY) is None
    clock.now += 61.0
    assert planning.estimates.given_before(body, WITHOUT_KEY) is None


def test_few_answers_to_bodies_of_no_great_size_are_kept_for_each_caller() -> None:
    models = ModelVersions(FakeStore(""), fresh_metrics())
    memory = AnswerMemory(models, 1.0, Clock())
    given = Given({"a": 1}, "fake", None, models.of("fake"))
    for number in range(100):
        memory.note("a", b"%d" % number, given)
    memory.note("a", b" " * 200_000, given)
    assert memory.find("a", b"99") is given
    assert memory.find("b", b"99") is None
    assert memory.find("a", b"0") is None
    assert memory.find("a", b" " * 200_000) is None
    assert given.json == b'{"a": 1}'
