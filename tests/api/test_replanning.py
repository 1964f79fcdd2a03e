"""Plans that are reached from one that is running, and what lies between two stored plans."""

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import httpx
import pytest

from service.api.stored_plans import plan_diff
from service.domain.callers import WITHOUT_KEY, Caller
from service.domain.errors import PlanNotFound
from service.domain.plan import Running, Shard
from service.domain.ports import PlanStore, StoredPlan
from tests.api.here import HerePlanner, planning_with
from tests.api.support import GIB, kind, request, table

UNKNOWN = "0" * 32


def _devices(count: int) -> dict[str, Any]:
    return {"count": count, "memory_bytes": GIB, "hardware": "fake"}


def _plan(client: httpx.Client, **changes: Any) -> dict[str, Any]:
    response = client.post("/plan", json=request(**changes))
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def test_columns_on_devices_that_are_gone_must_move_and_the_answer_says_from_where_to_where(
    client: httpx.Client,
) -> None:
    before = _plan(client, devices=_devices(3), optimizer="adam", seed=20)
    after = _plan(client, devices=_devices(1), optimizer="adam", seed=20, previous_plan_id=before["plan_id"])
    rows = {body["name"]: body["num_embeddings"] for body in request()["tables"]}
    gone = [shard for shard in before["shards"] if shard["device"]]
    assert gone
    # fp32 weights, and Adam's two moments.
    sizes = [rows[shard["table"]] * (shard["columns"][1] - shard["columns"][0]) * 12 for shard in gone]
    assert after["moves"] == [
        {"table": s["table"], "columns": s["columns"], "from_device": s["device"], "to_device": 0, "bytes": size}
        for s, size in zip(gone, sizes, strict=True)
    ]
    assert after["moved_bytes"] == sum(sizes)
    assert client.get(f"/plans/{after['plan_id']}").json() == after


def test_a_plan_of_the_same_question_with_a_previous_plan_is_a_plan_of_its_own(client: httpx.Client) -> None:
    first = _plan(client, seed=21)
    changes: list[dict[str, Any]] = [{}, {"previous_plan_id": first["plan_id"]}]
    changes.append(changes[1] | {"max_moved_bytes": GIB})
    ids = [_plan(client, seed=21, **changed)["plan_id"] for changed in changes]
    assert len(set(ids)) == 3
    assert _plan(client, seed=21, **changes[1])["plan_id"] == ids[1]
    assert _plan(client, seed=21, previous_plan_id=None, max_moved_bytes=None)["plan_id"] == ids[0]


def test_a_previous_plan_that_is_not_there_is_pointed_at(client: httpx.Client) -> None:
    response = client.post("/plan", json=request(previous_plan_id=UNKNOWN))
    assert (response.status_code, kind(response)) == (404, "plan_not_found")
    assert response.json()["pointer"] == "/previous_plan_id"
    assert UNKNOWN in response.json()["detail"]


class _Plans(PlanStore):
    """Keeps plans in memory."""

    def __init__(self) -> None:
        self.kept: dict[str, StoredPlan] = {}

    def get(self, plan_id: str, caller: Caller) -> StoredPlan | None:
        return self.kept.get(plan_id)

    def ask(self, plan_id: str, caller: Caller) -> StoredPlan | None:
        return self.get(plan_id, caller)

    def put(self, plan: StoredPlan, caller: Caller) -> StoredPlan:
        return self.kept.setdefault(plan.plan_id, plan)

    def delete(self, plan_id: str, caller: Caller) -> None:
        raise NotImplementedError


def _body(**changes: Any) -> bytes:
    return json.dumps(request(**changes)).encode()


def test_the_planner_is_told_what_is_running_and_how_much_may_move() -> None:
    plans, planner = _Plans(), HerePlanner()
    planning = planning_with(plans, planner)
    previous = planning.plan(_body(), 1000.0, WITHOUT_KEY)
    planning.plan(_body(seed=1, previous_plan_id=previous["plan_id"], max_moved_bytes=10**9), 1000.0, WITHOUT_KEY)
    assert planner.running[0] is None
    running = planner.running[1]
    assert isinstance(running, Running)
    assert [(t.name, t.num_embeddings, t.embedding_dim) for t in running.tables] == [
        ("t0", 1000, 64), ("t1", 50_000, 128), ("t2", 1000, 64),
    ]  # fmt: skip
    placed = [(s["table"], s["columns"], s["device"]) for s in previous["shards"]]
    assert running.shards == tuple(Shard(name, start, stop, device) for name, (start, stop), device in placed)
    assert running.max_moved_bytes == 10**9


def _as_of_another_release(stored: StoredPlan) -> StoredPlan:
    """Without the fields that this release's planning adds or does not need, and with some that it does not know."""
    asked = json.loads(json.dumps(dict(stored.request)))
    for name in ("constraints", "seed", "time_limit_ms", "algorithm", "previous_plan_id", "max_moved_bytes"):
        del asked[name]
    asked["later"] = asked["tables"][0]["later"] = 1
    asked["tables"][0]["pooling_mode"] = "not invented yet"
    shards = [shard | {"sharding_type": "of another kind"} for shard in stored.answer["shards"]]
    return replace(stored, request=asked, answer={"shards": shards})


def test_a_plan_of_another_release_can_be_the_one_that_is_running() -> None:
    plans, planner = _Plans(), HerePlanner()
    planning = planning_with(plans, planner)
    plan_id = planning.plan(_body(), 1000.0, WITHOUT_KEY)["plan_id"]
    planning.plan(_body(seed=1, previous_plan_id=plan_id), 1000.0, WITHOUT_KEY)
    plans.kept[plan_id] = _as_of_another_release(plans.kept[plan_id])
    planning.plan(_body(seed=2, previous_plan_id=plan_id), 1000.0, WITHOUT_KEY)
    assert planner.running[1] == planner.running[2]
    assert planning.diff(plan_id, plan_id, WITHOUT_KEY).moves == []


def test_a_plan_for_other_hardware_and_more_devices_can_follow() -> None:
    plans, planner = _Plans(), HerePlanner()
    planning = planning_with(plans, planner)
    first = planning.plan(_body(), 1000.0, WITHOUT_KEY)
    other = {"count": 4, "memory_bytes": GIB, "hardware": "slow"}
    second = planning.plan(_body(devices=other, previous_plan_id=first["plan_id"]), 1000.0, WITHOUT_KEY)
    here = {(shard["table"], shard["device"]) for shard in first["shards"]}
    # Tables of one shard each: what is on another device than before has moved.
    assert {move["table"] for move in second["moves"]} == {
        shard["table"] for shard in second["shards"] if (shard["table"], shard["device"]) not in here
    }
    assert len(planning.diff(first["plan_id"], second["plan_id"], WITHOUT_KEY).devices) == 4


def test_what_follows_a_plan_that_gave_way_to_a_better_one_is_planned_anew() -> None:
    plans, planner = _Plans(), HerePlanner()
    planning = planning_with(plans, planner)
    plan_id = planning.plan(_body(), 1000.0, WITHOUT_KEY)["plan_id"]
    question = _body(previous_plan_id=plan_id)
    first = planning.plan(question, 1000.0, WITHOUT_KEY)
    assert planning.plan(question, 1000.0, WITHOUT_KEY) == first
    shards = [shard | {"device": 1 - shard["device"]} for shard in plans.kept[plan_id].answer["shards"]]
    plans.kept[plan_id] = replace(plans.kept[plan_id], answer=dict(plans.kept[plan_id].answer) | {"shards": shards})
    assert planning.plan(question, 1000.0, WITHOUT_KEY)["plan_id"] != first["plan_id"]


def test_the_way_between_two_plans_is_told(client: httpx.Client) -> None:
    kept, big = table("kept"), table("big", num_embeddings=50_000, embedding_dim=128)
    before = _plan(client, tables=[kept, big, table("gone"), table("other")], devices=_devices(3), seed=22)
    tables = [table("new"), kept, table("other", num_embeddings=999), big]
    after = _plan(client, tables=tables, devices=_devices(1), previous_plan_id=before["plan_id"], seed=22)

    response = client.get(f"/plans/{before['plan_id']}/diff/{after['plan_id']}")
    assert response.status_code == 200, response.text
    diff = response.json()
    assert (diff["from_plan_id"], diff["to_plan_id"]) == (before["plan_id"], after["plan_id"])
    assert (diff["from_max_cost_ms"], diff["to_max_cost_ms"]) == (before["max_cost_ms"], after["max_cost_ms"])
    assert diff["max_cost_difference_ms"] == pytest.approx(after["max_cost_ms"] - before["max_cost_ms"], abs=1e-6)
    assert (diff["removed_tables"], diff["added_tables"]) == (["gone"], ["new"])
    assert diff["changed_tables"] == ["other"]
    assert (diff["moves"], diff["moved_bytes"]) == (after["moves"], after["moved_bytes"])
    assert {move["table"] for move in diff["moves"]} <= {"kept", "big"}

    out = Counter[int]()
    for move in diff["moves"]:
        out[move["from_device"]] += move["bytes"]
    came = [diff["moved_bytes"], 0, 0]
    assert diff["moved_bytes"] > 0
    assert diff["devices"] == [{"device": i, "bytes_in": came[i], "bytes_out": out[i]} for i in range(3)]


def test_the_way_back_moves_the_same_columns(client: httpx.Client) -> None:
    one, other = _plan(client, devices=_devices(3), seed=23), _plan(client, devices=_devices(1), seed=23)
    there = client.get(f"/plans/{one['plan_id']}/diff/{other['plan_id']}").json()
    back = client.get(f"/plans/{other['plan_id']}/diff/{one['plan_id']}").json()
    assert there["moves"]
    ends = ("from_device", "to_device")
    assert [{**move, ends[0]: move[ends[1]], ends[1]: move[ends[0]]} for move in back["moves"]] == there["moves"]
    assert back["max_cost_difference_ms"] == -there["max_cost_difference_ms"]
    assert [(d["bytes_in"], d["bytes_out"]) for d in back["devices"]] == [
        (d["bytes_out"], d["bytes_in"]) for d in there["devices"]
    ]


def test_nothing_lies_between_a_plan_and_itself(client: httpx.Client) -> None:
    plan = _plan(client, seed=24)
    diff = client.get(f"/plans/{plan['plan_id']}/diff/{plan['plan_id']}").json()
    assert (diff["moves"], diff["moved_bytes"], diff["max_cost_difference_ms"]) == ([], 0, 0.0)
    assert (diff["removed_tables"], diff["added_tables"], diff["changed_tables"]) == ([], [], [])


def test_an_id_without_a_plan_is_named(client: httpx.Client) -> None:
    plan_id = _plan(client, seed=25)["plan_id"]
    for first, second in ((UNKNOWN, plan_id), (plan_id, UNKNOWN), ("nonsense", plan_id), (plan_id, "nonsense")):
        response = client.get(f"/plans/{first}/diff/{second}")
        assert (response.status_code, kind(response)) == (404, "plan_not_found")
        missing = first if second == plan_id else second
        assert missing in response.json()["detail"]
        assert plan_id not in response.json()["detail"]


def test_optimizer_state_that_is_to_move_is_that_of_the_second_plan() -> None:
    plans = _Plans()
    planning = planning_with(plans, HerePlanner())
    ids = [
        planning.plan(_body(tables=[table("t")], devices=_devices(4), optimizer=optimizer), 1000.0, WITHOUT_KEY)[
            "plan_id"
        ]
        for optimizer in ("sgd", "adagrad")
    ]
    first, second = (plans.kept[plan_id] for plan_id in ids)
    elsewhere = replace(second, answer={"shards": [dict(second.answer["shards"][0]) | {"device": 3}]})
    assert plan_diff(first, elsewhere).moved_bytes == 1000 * 64 * (4 + 4)
    assert plan_diff(elsewhere, first).moved_bytes == 1000 * 64 * 4


def test_a_plan_that_cannot_be_found_is_not_planned_from() -> None:
    planner = HerePlanner()
    with pytest.raises(PlanNotFound):
        planning_with(_Plans(), planner).plan(_body(previous_plan_id=UNKNOWN), 1000.0, WITHOUT_KEY)
    assert planner.running == []
