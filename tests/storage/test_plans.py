from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import DataError, ProgrammingError

from service.domain.callers import THROUGH_PROXY, WITHOUT_KEY, Caller, Scope
from service.domain.ports import PlanStore, StoredPlan
from service.storage.engine import build_engine
from service.storage.plans import PlanRepository
from tests.storage.locks import wait_for_a_lock

PLAN = StoredPlan(
    plan_id="f00d",
    hardware="cpu-fbgemm",
    algorithm="neuroshard",
    max_cost_ms=0.1 + 0.2,
    request={"tables": [{"name": "größe \"x\" 'y'", "pooling_factor": 1e-300, "distinct_rows": None}], "seed": 2**53},
    answer={"max_cost_ms": 9007199254740993.0, "shards": [], "saved": True, "costs": [0.1, 5e-324, 3.0]},
)


def test_a_plan_comes_back_as_it_was_put(engine: Engine) -> None:
    store: PlanStore = PlanRepository(engine)
    assert store.put(PLAN, WITHOUT_KEY) == PLAN
    assert store.get("f00d", WITHOUT_KEY) == PLAN


def test_a_plan_that_was_never_put_is_none(engine: Engine) -> None:
    assert PlanRepository(engine).get("f00d", WITHOUT_KEY) is None


def test_a_plan_is_there_for_another_engine_as_soon_as_put_returns(engine: Engine, database_url: str) -> None:
    PlanRepository(engine).put(PLAN, WITHOUT_KEY)
    other = build_engine(database_url)
    assert PlanRepository(other).get("f00d", WITHOUT_KEY) == PLAN
    other.dispose()


def test_the_first_plan_put_wins_and_later_ones_get_it(engine: Engine) -> None:
    store = PlanRepository(engine)
    store.put(PLAN, WITHOUT_KEY)
    assert store.put(replace(PLAN, max_cost_ms=9.0, answer={"other": 1}), WITHOUT_KEY) == PLAN
    assert store.get("f00d", WITHOUT_KEY) == PLAN


def test_a_plan_that_was_cut_short_gives_way_to_a_better_one_only(engine: Engine) -> None:
    store = PlanRepository(engine)
    cut = replace(PLAN, max_cost_ms=5.0, answer={"status": "cut_short", "n": 1})
    worse = replace(cut, max_cost_ms=5.5, answer={"status": "cut_short", "n": 2})
    cheaper = replace(cut, max_cost_ms=4.5, answer={"status": "cut_short", "n": 3})
    complete = replace(cut, max_cost_ms=4.5, answer={"status": "complete", "n": 4})
    later = replace(cut, max_cost_ms=4.0, answer={"status": "complete", "n": 5})
    assert store.put(cut, WITHOUT_KEY) == cut
    assert store.put(worse, WITHOUT_KEY) == cut
    assert store.put(cheaper, WITHOUT_KEY) == cheaper
    assert store.put(complete, WITHOUT_KEY) == complete
    assert store.put(later, WITHOUT_KEY) == complete
    assert store.get("f00d", WITHOUT_KEY) == complete


def test_of_sixteen_plans_put_at_once_one_wins_for_all(database_url: str) -> None:
    engine = build_engine(database_url, pool_size=16)
    store, barrier = PlanRepository(engine), Barrier(16)

    def put(i: int) -> StoredPlan:
        barrier.wait()
        return store.put(replace(PLAN, answer={"writer": i}), WITHOUT_KEY)

    with ThreadPoolExecutor(16) as pool:
        answers = [plan.answer["writer"] for plan in pool.map(put, range(16))]
    stored = store.get("f00d", WITHOUT_KEY)
    assert stored is not None
    assert set(answers) == {stored.answer["writer"]}
    engine.dispose()


def test_a_plan_that_json_cannot_hold_is_refused_and_not_called_an_outage(engine: Engine) -> None:
    with pytest.raises(DataError):
        PlanRepository(engine).put(replace(PLAN, answer={"max_cost_ms": float("nan")}), WITHOUT_KEY)


def test_a_missing_table_is_not_called_an_outage(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE plans CASCADE"))
    with pytest.raises(ProgrammingError):
        PlanRepository(engine).get("f00d", WITHOUT_KEY)


def last_used(engine: Engine) -> float:
    with engine.connect() as connection:
        hours = connection.scalar(text("SELECT extract(epoch FROM now() - last_used_at) / 3600 FROM plans"))
    return float(hours or 0.0)


def test_a_use_is_noted_once_an_hour(engine: Engine) -> None:
    store = PlanRepository(engine)
    store.put(PLAN, WITHOUT_KEY)
    for hours, noted in ((0.9, False), (1.1, True), (5000, True)):
        with engine.begin() as connection:
            connection.execute(text(f"UPDATE plans SET last_used_at = now() - interval '{hours} hours'"))
        assert store.get("f00d", WITHOUT_KEY) == PLAN
        assert (last_used(engine) < 0.01) is noted


def test_a_plan_that_is_pruned_while_it_is_asked_for_is_none(engine: Engine, database_url: str) -> None:
    PlanRepository(engine).put(PLAN, WITHOUT_KEY)
    with engine.begin() as connection:
        connection.execute(text("UPDATE plans SET last_used_at = now() - interval '100 days'"))
    with engine.connect() as pruning, ThreadPoolExecutor(1) as pool:
        pruning.execute(text("DELETE FROM plans"))
        asked = pool.submit(PlanRepository(engine).get, "f00d", WITHOUT_KEY)
        wait_for_a_lock(engine)
        pruning.commit()
        assert asked.result(10) is None


def test_the_plan_that_was_running_is_named_in_a_column_of_its_own(engine: Engine) -> None:
    store = PlanRepository(engine)
    store.put(PLAN, WITHOUT_KEY)
    store.put(replace(PLAN, plan_id="next", request={"previous_plan_id": "f00d"}), WITHOUT_KEY)
    with engine.connect() as connection:
        named = connection.execute(text("SELECT plan_id, previous_plan_id FROM plans ORDER BY plan_id")).all()
    assert [tuple(row) for row in named] == [("f00d", None), ("next", "f00d")]


def test_plans_belong_to_who_puts_them_or_asks(engine: Engine) -> None:
    plans, plan = PlanRepository(engine), StoredPlan("p", "cpu-x", "auto", 1.0, {}, {"status": "complete"})
    ann, bob = (Caller(name, frozenset({Scope.PLAN})) for name in ("ann", "bob"))
    assert plans.ask("p", ann) is None
    plans.put(plan, ann)
    assert (plans.get("p", ann), plans.get("p", bob), plans.get("p", THROUGH_PROXY)) == (plan, None, None)
    assert plans.get("p", WITHOUT_KEY) == plan
    assert plans.ask("p", bob) == plan == plans.get("p", bob)
    plans.put(plan, THROUGH_PROXY)
    assert plans.get("p", THROUGH_PROXY) == plan
