"""POST /plan, GET /plans/{id}, POST /estimate: what they answer when all is well."""

import json
from typing import Any

import httpx
import pytest

from tests.api.support import GIB, kind, pointers, request, table

ESTIMATED = ("devices", "max_cost_ms", "max_cost_interval_ms", "models", "assumptions")


def _plan(client: httpx.Client, **changes: Any) -> dict[str, Any]:
    response = client.post("/plan", json=request(**changes))
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def test_a_plan_has_every_field_of_the_contract_and_places_every_table(client: httpx.Client) -> None:
    answer = _plan(client, seed=1)
    assert set(answer) == {
        "plan_id", "status", "saved", "algorithm", "shards", "devices", "max_cost_ms",
        "max_cost_interval_ms", "lower_bound_ms", "moved_bytes", "moves", "models", "assumptions", "planning_ms",
    }  # fmt: skip
    assert (answer["status"], answer["saved"], answer["algorithm"]) == ("complete", True, "dim_greedy")
    assert {shard["table"]: shard["columns"] for shard in answer["shards"]} == {
        "t0": [0, 64],
        "t1": [0, 128],
        "t2": [0, 64],
    }
    assert {shard["sharding_type"] for shard in answer["shards"]} == {"table_wise"}
    assert answer["models"] == {"compute": "fake/compute/1", "communication": "fake/communication/1"}
    for device in answer["devices"]:
        memory, cost = device["memory_bytes"], device["cost_ms"]
        assert memory["total"] == memory["weights"] + memory["optimizer"] + memory["buffers"]
        assert memory["total"] <= device["memory_limit_bytes"] == GIB
        assert abs(cost["total"] - sum(value for part, value in cost.items() if part != "total")) < 1e-9
        assert set(device["cost_interval_ms"]) == set(cost)
        for part, (low, high) in device["cost_interval_ms"].items():
            assert 0 <= low <= cost[part] <= high
            assert low < high or part == "forward_wait"
    low, high = answer["max_cost_interval_ms"]
    assert 0 < low < answer["max_cost_ms"] < high
    assert answer["max_cost_ms"] == max(device["cost_ms"]["total"] for device in answer["devices"])
    assert 0 < answer["lower_bound_ms"] <= answer["max_cost_ms"]
    assert (answer["moved_bytes"], answer["moves"]) == (None, None)


def test_the_same_question_gets_the_stored_answer_however_it_is_spelled(client: httpx.Client) -> None:
    first = _plan(client, seed=2)
    devices = {"hardware": "fake", "memory_bytes": [GIB, GIB], "count": 2}
    constraints = {"sharding_types": ["column_wise", "table_wise", "table_wise"], "count_buffers": True}
    assert _plan(client, seed=2, devices=devices, constraints=constraints, time_limit_ms=2000) == first


def test_another_question_gets_another_id(client: httpx.Client) -> None:
    assert _plan(client, seed=3)["plan_id"] != _plan(client, seed=4)["plan_id"]


def test_a_plan_is_found_by_its_id(client: httpx.Client) -> None:
    answer = _plan(client, seed=5)
    assert client.get(f"/plans/{answer['plan_id']}").json() == answer


def test_an_unknown_id_is_not_found(client: httpx.Client) -> None:
    for plan_id in ("0" * 32, "nonsense", "%00", "%ff", "a" * 5000):
        response = client.get(f"/plans/{plan_id}")
        assert (response.status_code, kind(response)) == (404, "plan_not_found")


def test_memory_may_differ_from_device_to_device(client: httpx.Client) -> None:
    answer = _plan(client, devices={"count": 2, "memory_bytes": [GIB, 2 * GIB], "hardware": "fake"})
    assert [device["memory_limit_bytes"] for device in answer["devices"]] == [GIB, 2 * GIB]


def test_a_table_that_must_be_cut_is_column_wise(client: httpx.Client) -> None:
    answer = _plan(client, constraints={"max_shard_dim": 64})
    cut = [shard for shard in answer["shards"] if shard["table"] == "t1"]
    assert {shard["sharding_type"] for shard in cut} == {"column_wise"}
    assert sorted(shard["columns"] for shard in cut) == [[0, 64], [64, 128]]


def test_pasting_a_plan_into_an_estimate_gives_its_costs(client: httpx.Client) -> None:
    question = request(seed=6)
    plan = _plan(client, seed=6)
    body = {key: question[key] for key in ("tables", "devices", "global_batch_size", "optimizer")}
    response = client.post("/estimate", json=body | {"shards": plan["shards"]})
    assert response.status_code == 200, response.text
    assert response.json() == {key: plan[key] for key in ESTIMATED}


def test_estimating_a_stored_plan_by_its_id_gives_its_costs(client: httpx.Client) -> None:
    plan = _plan(client, seed=7, constraints={"max_shard_dim": 64, "count_buffers": False})
    answer = client.post("/estimate", json={"plan_id": plan["plan_id"]}).json()
    assert answer["devices"] == plan["devices"]
    assert answer["max_cost_ms"] == plan["max_cost_ms"]


@pytest.mark.parametrize("constraints", [{"max_shard_dim": 64}, {"sharding_types": ["column_wise"]}])
def test_pasting_a_plan_with_its_constraints_gives_its_costs_where_they_kept_slices_apart(
    client: httpx.Client, constraints: dict[str, Any]
) -> None:
    devices = {"count": 1, "memory_bytes": GIB, "hardware": "fake"}
    question = request(devices=devices, constraints=constraints, optimizer="rowwise_adagrad", seed=8)
    plan = client.post("/plan", json=question).json()
    assert len([shard for shard in plan["shards"] if shard["table"] == "t1"]) == 2
    body = {key: question[key] for key in ("tables", "devices", "global_batch_size", "optimizer")}
    answer = client.post("/estimate", json=body | {"shards": plan["shards"], "constraints": constraints}).json()
    assert answer == {key: plan[key] for key in ESTIMATED}
    merged = client.post("/estimate", json=body | {"shards": plan["shards"]}).json()
    assert merged["max_cost_ms"] != plan["max_cost_ms"]


def test_estimating_an_unknown_plan_is_not_found(client: httpx.Client) -> None:
    assert kind(client.post("/estimate", json={"plan_id": "0" * 32})) == "plan_not_found"


def test_an_estimate_counts_buffers_unless_told_not_to(client: httpx.Client) -> None:
    question = request()
    body = {key: question[key] for key in ("tables", "devices", "global_batch_size", "optimizer")}
    body["shards"] = [
        {"table": entry["name"], "columns": [0, entry["embedding_dim"]], "device": 0} for entry in question["tables"]
    ]
    counted = client.post("/estimate", json=body).json()["devices"][0]["memory_bytes"]
    left_out = client.post("/estimate", json=body | {"constraints": {"count_buffers": False}}).json()
    assert counted["buffers"] > 0
    assert left_out["devices"][0]["memory_bytes"]["buffers"] == 0


def test_shards_that_do_not_tile_are_refused_by_name(client: httpx.Client) -> None:
    body = request(shards=[{"table": "t0", "columns": [0, 32], "device": 0}], tables=[table("t0")])
    del body["algorithm"]
    response = client.post("/estimate", json=body)
    assert pointers(response) == {"/shards"}
    assert "columns 32 to 64" in response.json()["faults"][0]["message"]


def test_a_shard_whose_type_contradicts_its_columns_is_refused(client: httpx.Client) -> None:
    shards = [
        {"table": "t0", "columns": [0, 32], "device": 0, "sharding_type": "table_wise"},
        {"table": "t0", "columns": [32, 64], "device": 1, "sharding_type": "column_wise"},
    ]
    body = request(shards=shards, tables=[table("t0")])
    del body["algorithm"]
    assert pointers(client.post("/estimate", json=body)) == {"/shards/0/sharding_type"}


def test_a_request_that_cannot_be_met_says_why_and_what_would_help(client: httpx.Client) -> None:
    response = client.post("/plan", json=request(devices={"count": 2, "memory_bytes": 1024, "hardware": "fake"}))
    assert (response.status_code, kind(response)) == (422, "infeasible")
    problem = response.json()
    assert (problem["reason"], problem["proven"]) == ("total_memory", True)
    assert problem["shortfall_bytes"] > 0
    assert problem["tables"] == ["t0", "t1", "t2"]
    assert problem["remedies"]


def test_a_trained_policy_places_tables_and_the_plan_names_its_version(client: httpx.Client) -> None:
    response = client.post("/plan", json=request(algorithm="dreamshard"))
    assert response.status_code == 200
    plan = response.json()
    assert plan["algorithm"] == "dreamshard"
    priced_by = {"compute": "fake/compute/1", "communication": "fake/communication/1"}
    assert plan["models"] == {**priced_by, "dreamshard": "fake/dreamshard/1"}
    assert {tuple(shard["columns"]) for shard in plan["shards"] if shard["table"] == "t2"}
    assert client.post("/plan", json=request(algorithm="dreamshard")).json() == plan
    other = client.post("/plan", json=request(algorithm="neuroshard")).json()
    assert other["models"] == priced_by
    assert client.post("/estimate", json={"plan_id": plan["plan_id"]}).json()["models"] == priced_by


def test_an_algorithm_without_a_policy_is_refused_with_the_remedy_and_others_are_named(client: httpx.Client) -> None:
    response = client.post("/plan", json=request(algorithm="autoshard"))
    assert "shardwright train autoshard --hardware fake" in response.json()["detail"]
    assert (response.status_code, kind(response)) == (422, "unsupported_algorithm")
    assert response.json()["pointer"] == "/algorithm"
    assert {"neuroshard", "dreamshard"} <= set(response.json()["available"])


def test_unknown_hardware_names_what_is_known(client: httpx.Client) -> None:
    devices = {"count": 2, "memory_bytes": GIB, "hardware": "abacus"}
    response = client.post("/plan", json=request(devices=devices))
    assert (response.status_code, kind(response)) == (422, "unknown_hardware")
    assert response.json()["known"] == ["broken", "fake", "slow", "stuck"]


def test_time_that_runs_out_before_a_plan_is_said_so_and_not_called_infeasible(client: httpx.Client) -> None:
    devices = {"count": 2, "memory_bytes": GIB, "hardware": "slow"}
    response = client.post("/plan", json=request(devices=devices, time_limit_ms=100))
    assert (response.status_code, kind(response)) == (422, "no_plan_in_time")
    assert "allow a longer time_limit_ms" in response.json()["detail"]
    assert "proven" not in json.loads(response.text)
