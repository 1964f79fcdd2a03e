"""Bodies that are wrong: every fault is listed at once, and nothing hostile makes the service fail."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.support import GIB, kind, pointers, request, table

CASES = Path(__file__).resolve().parents[2].parent / "shared" / "cases" / "planner_cases.json"
JSON = {"content-type": "application/json"}


def _faults(response: httpx.Response) -> dict[str, dict[str, Any]]:
    assert (response.status_code, kind(response)) == (422, "invalid_request")
    return {fault["pointer"]: fault for fault in response.json()["faults"]}


def test_every_fault_is_listed_at_once_with_its_table(client: httpx.Client) -> None:
    body = request(
        tables=[
            table("a", num_embeddings=0),
            table("twice"),
            table("b/~", embedding_dim=10, pooling_factor=-5),
            table("twice", pooling_factor="3"),
            table("empty", reuse_histogram={"batch_size": 8, "fractions": [0.0] * 17}),
            {"name": "bare"},
        ],
        devices={"count": 3, "memory_bytes": [GIB, 0], "hardware": "fake"},
        optimizer="sdg",
        launch="x",
    )
    del body["global_batch_size"]
    faults = _faults(client.post("/plan", json=body))
    assert set(faults) == {
        "/tables/0/num_embeddings",
        "/tables/1/name",
        "/tables/2/embedding_dim",
        "/tables/2/pooling_factor",
        "/tables/3/name",
        "/tables/3/pooling_factor",
        "/tables/4/reuse_histogram/fractions",
        "/tables/5/num_embeddings",
        "/tables/5/embedding_dim",
        "/tables/5/pooling_factor",
        "/devices/memory_bytes/1",
        "/global_batch_size",
        "/optimizer",
        "/launch",
    }
    assert faults["/tables/2/embedding_dim"]["table"] == "b/~"
    assert faults["/launch"]["message"] == "there is no such field"


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"tables": []}, "/tables"),
        ({"tables": {}}, "/tables"),
        ({"tables": [1]}, "/tables/0"),
        ({"tables": [table(name="")]}, "/tables/0/name"),
        ({"tables": [table(name="a\0b")]}, "/tables/0/name"),
        ({"tables": [table(pooling_factor=True)]}, "/tables/0/pooling_factor"),
        ({"tables": [table(num_embeddings=10.5)]}, "/tables/0/num_embeddings"),
        ({"tables": [table(num_embeddings=2**70)]}, "/tables/0/num_embeddings"),
        ({"tables": [table(num_embeddings="1")]}, "/tables/0/num_embeddings"),
        ({"tables": [table() | {"a/b~c": 1}]}, "/tables/0/a~1b~0c"),
        (
            {"tables": [table(reuse_histogram={"batch_size": 8, "fractions": [1]})]},
            "/tables/0/reuse_histogram/fractions",
        ),
        ({"devices": {"count": True, "memory_bytes": 8, "hardware": "fake"}}, "/devices/count"),
        ({"devices": {"count": 1, "memory_bytes": "8", "hardware": "fake"}}, "/devices/memory_bytes"),
        ({"devices": {"count": 1, "memory_bytes": 0, "hardware": "fake"}}, "/devices/memory_bytes"),
        ({"devices": {"count": 1, "memory_bytes": [], "hardware": "fake"}}, "/devices/memory_bytes"),
        ({"devices": {"count": 2, "memory_bytes": [8], "hardware": "fake"}}, "/devices/memory_bytes"),
        ({"devices": {"count": 1, "memory_bytes": 8, "hardware": "../fake"}}, "/devices/hardware"),
        ({"devices": None}, "/devices"),
        ({"algorithm": "best"}, "/algorithm"),
        ({"seed": -1}, "/seed"),
        ({"time_limit_ms": 0}, "/time_limit_ms"),
        ({"time_limit_ms": 60_001}, "/time_limit_ms"),
        ({"constraints": {"column_multiple": 6}}, "/constraints/column_multiple"),
        ({"constraints": {"min_shard_dim": 64, "max_shard_dim": 32}}, "/constraints/min_shard_dim"),
        ({"constraints": {"sharding_types": []}}, "/constraints/sharding_types"),
        ({"constraints": {"row_multiple": 4}}, "/constraints/row_multiple"),
        ({"previous_plan_id": "0" * 31}, "/previous_plan_id"),
        ({"previous_plan_id": 0, "max_moved_bytes": 1}, "/previous_plan_id"),
        ({"max_moved_bytes": 0}, "/max_moved_bytes"),
        ({"previous_plan_id": "0" * 32, "max_moved_bytes": -1}, "/max_moved_bytes"),
    ],
)
def test_a_field_at_fault_is_pointed_at(client: httpx.Client, changes: dict[str, Any], pointer: str) -> None:
    assert pointers(client.post("/plan", json=request(**changes))) == {pointer}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "is empty"),
        (b" \n", "{} where there is nothing to say"),
        (b"{", "not JSON"),
        (b"[]", "JSON object"),
        (b"null", "JSON object"),
        (b'"\xff"', "not UTF-8"),
        (b'{"seed": 1, "seed": 2}', "given twice: 'seed'"),
        (b'{"\\ud800": 1, "\\ud800": 2}', "given twice"),
        (b'{"seed": ' + b"1" * 5000 + b"}", "too many digits"),
        (b'{"seed": ' + b"[" * 40_000 + b"}", "nested too deeply"),
        (b'{"seed": ' + b'{"a":' * 15_000 + b"}", "nested too deeply"),
        (json.dumps({str(i): i for i in range(100)}).encode(), "more than 16 members"),
        ("{}".encode("utf-16"), "not UTF-8"),
    ],
)
def test_a_body_that_is_no_json_object_is_refused(client: httpx.Client, body: bytes, said: str) -> None:
    for path in ("/plan", "/estimate"):
        response = client.post(path, content=body, headers=JSON)
        assert pointers(response) == {""}
        assert said in response.json()["detail"]


def test_every_number_that_is_none_is_pointed_at(client: httpx.Client) -> None:
    body = (
        b'{"tables": [{"pooling_factor": 1.5}, {"pooling_factor": NaN}], "seed": -Infinity, "a/b": [[], 1, Infinity]}'
    )
    for path in ("/plan", "/estimate"):
        response = client.post(path, content=body, headers=JSON)
        assert [fault["pointer"] for fault in response.json()["faults"]] == [
            "/tables/1/pooling_factor", "/seed", "/a~1b/2",
        ]  # fmt: skip
        assert "NaN and infinities are no JSON numbers" in response.json()["detail"]


@pytest.mark.parametrize(
    ("text", "pointer"),
    [
        ('"pooling_factor": 1e999', "/tables/0/pooling_factor"),
        ('"pooling_factor": ' + "9" * 400, "/tables/0/pooling_factor"),
        ('"num_embeddings": ' + "9" * 400, "/tables/0/num_embeddings"),
        ('"name": "\\ud800"', "/tables/0/name"),
        ('"name": "\\udc00\\u0000", "pooling_factor": -1', "/tables/0/name"),
        ('"\\ud800": 1', "/tables/0"),
    ],
)
def test_values_that_json_allows_but_nothing_can_hold_are_refused(
    client: httpx.Client, text: str, pointer: str
) -> None:
    body = json.dumps(request(tables=["TABLE"])).replace('"TABLE"', f'{{"embedding_dim": 4, {text}}}')
    assert pointer in pointers(client.post("/plan", content=body, headers=JSON))


def test_shards_that_are_wrong_are_pointed_at(client: httpx.Client) -> None:
    shards = [
        {"table": "t0", "columns": [0], "device": 0},
        {"table": "t0", "columns": [0, -4], "device": True},
        {"table": "t0", "columns": "0:4", "device": 0, "sharding_type": "rowwise"},
    ]
    body = request(shards=shards)
    del body["algorithm"]
    response = client.post("/estimate", json=body)
    assert pointers(response) == {
        "/shards/0/columns",
        "/shards/1/columns/1",
        "/shards/1/device",
        "/shards/2/columns",
        "/shards/2/sharding_type",
    }
    assert {fault["table"] for fault in response.json()["faults"]} == {"t0"}


def test_an_estimate_takes_a_plan_id_or_tables_but_not_both(client: httpx.Client) -> None:
    assert pointers(client.post("/estimate", json={"plan_id": "0" * 32, "seed": 1})) == {"/seed"}
    assert pointers(client.post("/estimate", json={"plan_id": "../" * 11})) == {"/plan_id"}
    assert "/shards" in pointers(client.post("/estimate", json=request()))


@pytest.mark.parametrize("name", ["row_wise", "data_parallel", "table_row_wise", "grid_shard", "table_column_wise"])
def test_sharding_that_is_not_modelled_is_named(client: httpx.Client, name: str) -> None:
    response = client.post("/plan", json=request(constraints={"sharding_types": ["table_wise", name]}))
    assert (response.status_code, kind(response)) == (422, "unsupported_sharding")
    problem = response.json()
    assert problem["unsupported"] == [name]
    assert problem["supported"] == ["column_wise", "table_wise"]
    assert problem["pointers"] == ["/constraints/sharding_types/1"]


def test_an_estimate_takes_the_constraints_of_a_plan_and_refuses_what_it_refuses(client: httpx.Client) -> None:
    body = request(shards=[{"table": "t0", "columns": [0, 64], "device": 0}], tables=[table("t0")])
    del body["algorithm"]
    response = client.post("/estimate", json=body | {"constraints": {"sharding_types": ["row_wise"]}})
    assert (response.status_code, kind(response)) == (422, "unsupported_sharding")
    wrong = client.post("/estimate", json=body | {"constraints": {"min_shard_dim": 64, "max_shard_dim": 32}})
    assert pointers(wrong) == {"/constraints/min_shard_dim"}


def test_unpooled_lookups_are_not_modelled(client: httpx.Client) -> None:
    response = client.post("/plan", json=request(tables=[table("a"), table("b", pooling_mode="none")]))
    assert (response.status_code, kind(response)) == (422, "unsupported_sharding")
    assert response.json()["pointers"] == ["/tables/1/pooling_mode"]


def test_more_tables_than_the_service_takes_are_refused_at_once(client: httpx.Client) -> None:
    response = client.post("/plan", json=request(tables=[{}] * 101))
    assert pointers(response) == {"/tables"}


@pytest.mark.parametrize("content_type", [None, "text/plain", "application/x-www-form-urlencoded", "json"])
def test_a_body_that_is_not_announced_as_json_is_refused(client: httpx.Client, content_type: str | None) -> None:
    headers = {"content-type": content_type} if content_type else {}
    response = client.post("/plan", content=json.dumps(request()), headers=headers)
    assert (response.status_code, kind(response)) == (415, "unsupported_media_type")


def test_json_with_a_charset_or_a_suffix_is_json(client: httpx.Client) -> None:
    for content_type in ("application/json; charset=utf-8", "application/vnd.shardwright+json"):
        response = client.post("/plan", content=json.dumps(request()), headers={"content-type": content_type})
        assert response.status_code == 200


def test_unknown_paths_and_methods_are_problems(client: httpx.Client) -> None:
    response = client.get("/nothing")
    assert (response.status_code, kind(response)) == (404, "not_found")
    response = client.get("/plan")
    assert (response.status_code, kind(response), response.headers["allow"]) == (405, "method_not_allowed", "POST")


def _case(case_id: str) -> dict[str, Any]:
    if not CASES.is_file():
        pytest.skip("../shared/cases is not beside this checkout")
    case: dict[str, Any] = next(case for case in json.loads(CASES.read_text()) if case["id"] == case_id)
    tables = [
        {
            "name": entry["name"],
            "num_embeddings": entry["rows"],
            "embedding_dim": entry["dim"],
            "pooling_factor": entry.get("pooling", 1.0),
            "data_type": entry["dtype"],
        }
        for entry in case["tables"]
    ]
    constraints = {"sharding_types": case["types"]} if "types" in case else {}
    devices = {"count": case["devices"], "memory_bytes": case["hbm_bytes"], "hardware": "fake"}
    return request(
        tables=tables, devices=devices, global_batch_size=case.get("batch", 512), constraints=constraints
    )  # fmt: skip


@pytest.mark.parametrize(
    ("case_id", "wanted"),
    [
        ("rows0", {"/tables/0/num_embeddings"}),
        ("neg_pooling", {"/tables/0/pooling_factor"}),
        ("hbm0", {"/devices/memory_bytes"}),
        ("batch0", {"/global_batch_size"}),
        ("typo_type", {"/constraints/sharding_types/0"}),
        ("dup_names", {"/tables/0/name", "/tables/1/name"}),
        ("empty", {"/tables"}),
        ("dims_not_mult4", {f"/tables/{i}/embedding_dim" for i in range(4)}),
    ],
)
def test_inputs_that_went_wrong_for_others_are_refused(client: httpx.Client, case_id: str, wanted: set[str]) -> None:
    assert pointers(client.post("/plan", json=_case(case_id))) == wanted


def test_a_typo_in_a_sharding_type_lists_what_is_allowed(client: httpx.Client) -> None:
    response = client.post("/plan", json=request(constraints={"sharding_types": ["rowwise"]}))
    assert response.json()["faults"][0]["message"] == "must be 'table_wise' or 'column_wise'"


def test_dims_that_are_no_multiple_of_4_name_their_tables(client: httpx.Client) -> None:
    response = client.post("/plan", json=request(tables=[table("a", embedding_dim=130), table("b", embedding_dim=2)]))
    assert {fault["table"] for fault in response.json()["faults"]} == {"a", "b"}
