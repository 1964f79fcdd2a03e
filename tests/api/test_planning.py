"""Planning over stores and planners that do what a test needs."""

import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from service.api.model_versions import ModelVersions
from service.api.outages import OutageMemory
from service.domain.callers import WITHOUT_KEY, Caller
from service.domain.errors import (
    ModelsUnavailable,
    NoPlanInTime,
    PlannerBusy,
    StorageUnavailable,
    UnsupportedAlgorithm,
)
from service.domain.plan import Algorithm
from service.domain.ports import CostModels, PlanStore, StoredPlan
from service.registry.store import ModelStore
from service.storage.plans import PlanRepository
from service.usecases.make_plan import PlanStatus
from tests.api.fake_store import FakeStore
from tests.api.here import Clock, HerePlanner, fresh_metrics, planning_with
from tests.api.support import request
from tests.cost_models.small_model import COMMUNICATION_FACTS, FACTS, exchange_weights, weights

BODY = json.dumps(request()).encode()


class AwayStore(PlanStore):
    """A database behind a network that swallows everything."""

    def __init__(self, clock: Clock, wait_s: float) -> None:
        self.clock, self.wait_s, self.asked = clock, wait_s, 0

    def get(self, plan_id: str, caller: Caller) -> StoredPlan | None:
        self.asked += 1
        self.clock.now += self.wait_s
        raise StorageUnavailable("connection to 10.1.2.3 timed out", retry_after_s=2)

    def ask(self, plan_id: str, caller: Caller) -> StoredPlan | None:
        return self.get(plan_id, caller)

    def put(self, plan: StoredPlan, caller: Caller) -> StoredPlan:
        raise AssertionError(plan)

    def delete(self, plan_id: str, caller: Caller) -> None:
        raise NotImplementedError


class OneStore(PlanStore):
    """Keeps the plan put last."""

    def __init__(self) -> None:
        self.plan: StoredPlan | None = None

    def get(self, plan_id: str, caller: Caller) -> StoredPlan | None:
        return self.plan

    def ask(self, plan_id: str, caller: Caller) -> StoredPlan | None:
        return self.get(plan_id, caller)

    def put(self, plan: StoredPlan, caller: Caller) -> StoredPlan:
        self.plan = plan
        return plan

    def delete(self, plan_id: str, caller: Caller) -> None:
        self.plan = None


def test_the_wait_for_a_database_that_is_away_does_not_count_against_the_time_limit() -> None:
    clock, planner = Clock(), HerePlanner()
    arrived = clock.now
    answer = planning_with(AwayStore(clock, wait_s=5.0), planner, clock).plan(BODY, arrived, WITHOUT_KEY)
    assert answer["saved"] is False
    assert [deadline.at for deadline in planner.deadlines] == [arrived + 5.0 + 2.0]


class SlowStore(OneStore):
    """Answers after some seconds."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def ask(self, plan_id: str, caller: Caller) -> StoredPlan | None:
        self._clock.now += 5.0
        return None


def test_neither_does_that_for_one_that_is_slow() -> None:
    clock, planner = Clock(), HerePlanner()
    arrived = clock.now
    assert planning_with(SlowStore(clock), planner, clock).plan(BODY, arrived, WITHOUT_KEY)["saved"] is True
    assert [deadline.at for deadline in planner.deadlines] == [arrived + 5.0 + 2.0]


def test_an_outage_is_remembered_until_it_is_worth_another_try(caplog: pytest.LogCaptureFixture) -> None:
    clock, planner = Clock(), HerePlanner()
    store = AwayStore(clock, wait_s=5.0)
    planning = planning_with(OutageMemory(store, clock), planner, clock)
    for _ in range(3):
        assert planning.plan(BODY, clock.now, WITHOUT_KEY)["saved"] is False
    assert store.asked == 1
    clock.now += 1.5
    with pytest.raises(StorageUnavailable) as caught:
        planning.stored("0" * 32, WITHOUT_KEY)
    assert caught.value.data["retry_after_s"] == 1
    assert store.asked == 1
    clock.now += 0.6
    planning.plan(BODY, clock.now, WITHOUT_KEY)
    assert store.asked == 2
    logged = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert [record.__dict__["fields"]["cause"] for record in logged] == ["connection to 10.1.2.3 timed out"] * 2


def test_a_database_that_is_back_is_used_again() -> None:
    clock, store = Clock(), OneStore()
    planning = planning_with(OutageMemory(store, clock), HerePlanner(), clock)
    assert planning.plan(BODY, clock.now, WITHOUT_KEY)["saved"] is True
    assert store.plan is not None


def test_a_stored_answer_is_handed_on_as_it_is() -> None:
    store = OneStore()
    planning = planning_with(store, HerePlanner())
    made = planning.plan(BODY, 1000.0, WITHOUT_KEY)
    assert store.plan is not None
    missing = ("assumptions", "max_cost_interval_ms")
    other = {key: value for key, value in made.items() if key not in missing} | {"of_another_version": [1]}
    store.plan = replace(store.plan, answer=other)
    assert planning.plan(BODY, 1000.0, WITHOUT_KEY) == other
    assert planning.stored("0" * 32, WITHOUT_KEY) == other


def test_a_plan_that_another_version_stored_can_be_estimated() -> None:
    store = OneStore()
    planning = planning_with(store, HerePlanner())
    made = planning.plan(BODY, 1000.0, WITHOUT_KEY)
    assert store.plan is not None
    kept: dict[str, Any] = json.loads(json.dumps(dict(store.plan.request)))
    for name in ("constraints", "seed", "time_limit_ms"):
        del kept[name]
    kept |= {"algorithm": "not invented yet", "launch_id": None}
    kept["tables"][0]["later"] = 1
    shards = [shard | {"row_range": None} for shard in made["shards"]]
    store.plan = replace(store.plan, request=kept, answer={"shards": shards})
    answer = planning.estimates.answer(json.dumps({"plan_id": "0" * 32}).encode(), WITHOUT_KEY)
    assert answer.model_dump()["devices"] == made["devices"]


def test_a_plan_that_was_cut_short_is_made_anew_until_one_is_complete(engine: Engine) -> None:
    planner = HerePlanner()
    planning = planning_with(PlanRepository(engine), planner)
    planner.status = PlanStatus.CUT_SHORT
    cut = planning.plan(BODY, 1000.0, WITHOUT_KEY)
    assert planning.stored(cut["plan_id"], WITHOUT_KEY) == cut
    # No better than the one that is there, which therefore stays.
    assert planning.plan(BODY, 999.0, WITHOUT_KEY) == cut
    planner.status = PlanStatus.COMPLETE
    complete = planning.plan(BODY, 1000.0, WITHOUT_KEY)
    assert (complete["status"], complete["plan_id"]) == ("complete", cut["plan_id"])
    assert planning.stored(cut["plan_id"], WITHOUT_KEY) == complete
    assert len(planner.deadlines) == 3
    assert planning.plan(BODY, 1000.0, WITHOUT_KEY) == complete
    assert len(planner.deadlines) == 3


@pytest.mark.parametrize("error", [NoPlanInTime("late"), PlannerBusy("full", retry_after_s=1)])
def test_a_plan_that_was_cut_short_is_better_than_none(error: Exception) -> None:
    planner = HerePlanner()
    planning = planning_with(OneStore(), planner)
    planner.status = PlanStatus.CUT_SHORT
    cut = planning.plan(BODY, 1000.0, WITHOUT_KEY)
    planner.error = error
    assert planning.plan(BODY, 1000.0, WITHOUT_KEY) == cut


def test_an_estimate_ends_with_the_default_time_limit() -> None:
    clock, planner = Clock(), HerePlanner()
    body = request(shards=[{"table": f"t{i}", "columns": [0, 64 + 64 * (i == 1)], "device": 0} for i in range(3)])
    del body["algorithm"]
    planning_with(OneStore(), planner, clock).estimates.answer(json.dumps(body).encode(), WITHOUT_KEY)
    assert [deadline.at for deadline in planner.deadlines] == [clock.now + 2.0]


def test_an_unexpected_error_is_counted() -> None:
    planner, metrics = HerePlanner(), fresh_metrics()
    planner.error = LookupError("defect")
    with pytest.raises(LookupError):
        planning_with(OneStore(), planner, metrics=metrics).plan(BODY, 1000.0, WITHOUT_KEY)
    assert b'shardwright_plans_total{algorithm="dim_greedy",outcome="internal_error"} 1.0' in metrics.exposition()


class PolicyLater(FakeStore):
    """Has a policy of DreamShard once it is trained."""

    trained = False

    def policies(self, hardware: str) -> list[Algorithm]:
        return super().policies(hardware) if self.trained else []


def test_a_policy_that_is_trained_after_it_was_asked_for_is_found() -> None:
    source = PolicyLater("")
    models = ModelVersions(source, fresh_metrics())
    with pytest.raises(UnsupportedAlgorithm):
        models.of("fake", Algorithm.DREAMSHARD)
    source.trained = True
    found = models.of("fake", Algorithm.DREAMSHARD).identity
    assert found["dreamshard"] == "fake/dreamshard/1"
    source.trained = False
    assert models.of("fake", Algorithm.DREAMSHARD).identity == found


class UnreadableStore(FakeStore):
    """A model store on a disk that went away."""

    def hardware(self) -> list[str]:
        raise ModelsUnavailable("the model store cannot be read: '/secret'", retry_after_s=10)


def test_damaged_models_of_one_hardware_do_not_make_the_others_unusable(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "damaged").write_text("slow")
    check = ModelVersions(FakeStore(str(tmp_path)), fresh_metrics()).check()
    assert check.usable
    assert check.state.startswith("slow: slow/compute/1 is incomplete or altered")
    assert "secret" not in check.state
    assert "/secret/manifest.json" in caplog.records[0].__dict__["fields"]["cause"]


def test_without_any_sound_models_the_service_is_not_ready(tmp_path: Path) -> None:
    (tmp_path / "damaged").write_text("slow fake broken stuck")
    check = ModelVersions(FakeStore(str(tmp_path)), fresh_metrics()).check()
    assert not check.usable
    assert "fake/compute/1" in check.state


def test_a_service_without_measured_models_is_ready_and_says_so(tmp_path: Path) -> None:
    check = ModelVersions(ModelStore(str(tmp_path)), fresh_metrics()).check()
    assert check.usable
    assert check.state.startswith("no measured cost models")


def test_data_sheets_do_not_make_a_service_ready_whose_measured_models_are_damaged(
    tmp_path: Path,
) -> None:
    store = ModelStore(str(tmp_path))
    for kind, arrays, facts in (
        ("compute", weights(), FACTS),
        ("communication", exchange_weights(), COMMUNICATION_FACTS),
    ):
        store.write("cpu-x", kind, arrays, facts)
    assert ModelVersions(store, fresh_metrics()).check().state == "ok"
    (tmp_path / "cpu-x" / "compute" / "1" / "weights.safetensors").unlink()
    check = ModelVersions(store, fresh_metrics()).check()
    assert not check.usable
    assert check.state.startswith("cpu-x: cpu-x/compute/1 is incomplete or altered")


def test_a_model_store_that_cannot_be_read_is_said_so() -> None:
    check = ModelVersions(UnreadableStore(""), fresh_metrics()).check()
    assert (check.usable, check.state) == (False, "the model store cannot be read")


class OtherWeights(FakeStore):
    """The same version names for other weights."""

    def cost_models(
        self, hardware: str, versions: Mapping[str, str] | None = None, policy: Algorithm | None = None
    ) -> CostModels:
        return replace(super().cost_models(hardware, versions, policy), digest="other")


def test_a_plan_of_other_weights_under_the_same_version_names_is_another_plan() -> None:
    first = planning_with(OneStore(), HerePlanner()).plan(BODY, 1000.0, WITHOUT_KEY)
    other = planning_with(OneStore(), HerePlanner(), source=OtherWeights("")).plan(BODY, 1000.0, WITHOUT_KEY)
    assert first["models"] == other["models"]
    assert first["plan_id"] != other["plan_id"]
