"""What JSON, HTTP or Postgres cannot hold is refused with a problem, wherever it stands."""

import json
import socket
from typing import Any

import httpx
import pytest

from tests.api.support import kind, pointers, request, table

JSON = {"content-type": "application/json"}
PROFILES = {"tables": [table()], "hardware": "fake", "global_batch_size": 64, "optimizer": "sgd"}
OBSERVED = {"rank": 0, "steps": [0, 1], "forward_compute_ms": 1.0, "backward_compute_ms": 1.0}
SHARD = {"table": "t0", "columns": [0, 64], "device": 0}
ESTIMATE = {k: v for k, v in request(tables=[table()], shards=[SHARD]).items() if k != "algorithm"}
HERE = "@HERE@"

NUMBERS: list[tuple[str, dict[str, Any], str]] = [
    ("/plan", request(seed=HERE), "/seed"),
    ("/plan", request(time_limit_ms=HERE), "/time_limit_ms"),
    ("/plan", request(global_batch_size=HERE), "/global_batch_size"),
    ("/plan", request(tables=[table(num_embeddings=HERE)]), "/tables/0/num_embeddings"),
    ("/plan", request(tables=[table(embedding_dim=HERE)]), "/tables/0/embedding_dim"),
    ("/plan", request(tables=[table(pooling_factor=HERE)]), "/tables/0/pooling_factor"),
    ("/plan", request(tables=[table(distinct_rows=HERE)]), "/tables/0/distinct_rows"),
    ("/plan", request(devices={"count": HERE, "memory_bytes": 8, "hardware": "fake"}), "/devices/count"),
    ("/plan", request(devices={"count": 1, "memory_bytes": HERE, "hardware": "fake"}), "/devices/memory_bytes"),
    ("/plan", request(devices={"count": 1, "memory_bytes": [HERE], "hardware": "fake"}), "/devices/memory_bytes/0"),
    ("/plan", request(constraints={"pin": {"t0": [HERE]}}), "/constraints/pin/t0/0"),
    ("/plan", request(previous_plan_id="0" * 32, max_moved_bytes=HERE), "/max_moved_bytes"),
    ("/estimate", ESTIMATE | {"shards": [SHARD | {"device": HERE}]}, "/shards/0/device"),
    ("/estimate", ESTIMATE | {"shards": [SHARD | {"columns": [0, HERE]}]}, "/shards/0/columns/1"),
    ("/profiles", PROFILES | {"global_batch_size": HERE}, "/global_batch_size"),
    ("/plans/x/observations", {"observations": [OBSERVED | {"rank": HERE}]}, "/observations/0/rank"),
    ("/plans/x/observations", {"observations": [OBSERVED | {"steps": [0, HERE]}]}, "/observations/0/steps/1"),
    (
        "/plans/x/observations",
        {"observations": [OBSERVED | {"forward_compute_ms": HERE}]},
        "/observations/0/forward_compute_ms",
    ),
]
"""A place for a number in each kind of body."""

STRINGS: list[tuple[str, dict[str, Any], set[str]]] = [
    ("/plan", request(tables=[table(HERE)]), {"/tables/0/name"}),
    ("/plan", request(launch_id=HERE), {"/launch_id"}),
    ("/plan", request(algorithm=HERE), {"/algorithm"}),
    ("/plan", request(optimizer=HERE), {"/optimizer"}),
    ("/plan", request(previous_plan_id=HERE), {"/previous_plan_id"}),
    ("/plan", request(devices={"count": 1, "memory_bytes": 8, "hardware": HERE}), {"/devices/hardware"}),
    ("/plan", request(constraints={"colocate": [["t0", HERE]]}), {"/constraints/colocate/0/1"}),
    ("/plan", request(models={"compute": HERE}), {"/models/compute"}),
    ("/estimate", ESTIMATE | {"shards": [SHARD | {"table": HERE}]}, {"/shards/0/table"}),
    ("/estimate", {"plan_id": HERE}, {"/plan_id"}),
    ("/profiles", PROFILES | {"hardware": HERE}, {"/hardware"}),
    ("/plans/x/observations", {"observations": [OBSERVED], "launch_id": HERE}, {"/launch_id"}),
    ("/plans/x/observations", {"observations": [OBSERVED], "environment": {"a": HERE}}, {"/environment/a"}),
    ("/models/fake/compute/1/promote", {"reason": HERE}, {"/reason"}),
    ("/models/fake/compute/rollback", {"reason": HERE}, {"/reason"}),
]
"""A place for a string in each kind of body, and what is at fault where it cannot be held."""

KEYS: list[tuple[str, dict[str, Any]]] = [
    ("/plan", request() | {HERE: 1}),
    ("/plan", request(tables=[table() | {HERE: 1}])),
    ("/plan", request(constraints={"pin": {HERE: [0]}})),
    ("/estimate", ESTIMATE | {HERE: 1}),
    ("/profiles", PROFILES | {HERE: 1}),
    ("/plans/x/observations", {"observations": [OBSERVED], "environment": {HERE: "a"}}),
    ("/models/fake/compute/1/promote", {HERE: 1}),
]
"""A place for a name of a member in each kind of body."""

BODIES = ["/plan", "/estimate", "/profiles", "/plans/x/observations", "/models/fake/compute/1/promote"]

PATHS = [
    "/plans/{}", "/plans/{}/observations", "/plans/{}/diff/{}", "/models/{}/compute", "/models/fake/{}",
    "/profiles/{}", "/{}",
]  # fmt: skip


def _post(client: httpx.Client, path: str, body: dict[str, Any], text: str) -> httpx.Response:
    """Posts a body with some JSON text where the place for it is."""
    return client.post(path, content=json.dumps(body).replace(f'"{HERE}"', text).encode(), headers=JSON)


@pytest.mark.parametrize("number", ["1e400", "-1e400", str(2**70), "9" * 400, "NaN", "-Infinity", "-1", "0.5e-400x"])
@pytest.mark.parametrize(("path", "body", "pointer"), NUMBERS)
def test_numbers_that_nothing_holds_are_pointed_at(
    client: httpx.Client, path: str, body: dict[str, Any], pointer: str, number: str
) -> None:
    assert pointers(_post(client, path, body, number)) == ({""} if number.endswith("x") else {pointer})


@pytest.mark.parametrize("zero", ["0", "-0", "-0.0", "0.0", "1e-400"])
def test_zeros_of_every_kind_are_one_question(client: httpx.Client, zero: str) -> None:
    body = request(seed=HERE, tables=[table(pooling_factor=0.0)])
    answer = _post(client, "/plan", body, zero).json()
    assert answer["plan_id"] == client.post("/plan", json=body | {"seed": 0}).json()["plan_id"]
    assert _post(client, "/plan", request(tables=[table(pooling_factor=HERE)]), zero).status_code == 200


def test_whole_numbers_with_a_point_are_whole(client: httpx.Client) -> None:
    plain = client.post("/plan", json=request()).json()
    pointed = _post(client, "/plan", request(global_batch_size=HERE), "512.0")
    assert pointed.json()["plan_id"] == plain["plan_id"]
    assert pointers(_post(client, "/plan", request(seed=HERE), "9007199254740993.0")) == {"/seed"}


@pytest.mark.parametrize("text", [r'"a\u0000b"', r'"\ud800"', r'"\udfff\ud800"', r'"\udc00\u0000"'])
@pytest.mark.parametrize(("path", "body", "wanted"), STRINGS)
def test_strings_that_nothing_holds_are_pointed_at(
    client: httpx.Client, path: str, body: dict[str, Any], wanted: set[str], text: str
) -> None:
    assert wanted <= pointers(_post(client, path, body, text))


@pytest.mark.parametrize("text", [r'"a\u0000b"', r'"\ud800"', r'"\udc00\u0000"', '"' + "k" * 50_000 + '"'])
@pytest.mark.parametrize(("path", "body"), KEYS)
def test_names_of_members_that_nothing_holds_are_refused_in_few_words(
    client: httpx.Client, path: str, body: dict[str, Any], text: str
) -> None:
    response = _post(client, path, body, text)
    assert pointers(response)
    assert len(response.content) < 5_000


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    "body",
    [
        b'{"a": ' + b"[" * 45_000 + b"}",
        b'{"a": ' + b'{"a":' * 15_000 + b"}",
        b'{"a": 1, "a": 2}',
        b'{"a": {"b": 1, "b": 1}}',
        b"\xef\xbb\xbf{}",
        "{}".encode("utf-16"),
        "{}".encode("utf-32-be"),
        '{"é": 1}'.encode("latin-1"),
        b'{"a": "\xed\xa0\x80"}',
        b'{"a": "\xc0\x80"}',
        b'{"a": "\x00"}',
        b"{}\x00",
        b"{} {}",
        b'{"a": ' + b"1" * 5_000 + b"}",
        b'"text"',
        b"[" + b"NaN," * 20_000 + b"1]",
        b'{"a": [' + b"NaN," * 20_000 + b"1]}",
    ],
)  # fmt: skip
def test_bodies_that_are_no_json_are_refused_in_few_words(client: httpx.Client, path: str, body: bytes) -> None:
    response = client.post(path, content=body, headers=JSON)
    assert (response.status_code, kind(response)) == (422, "invalid_request")
    assert len(response.content) < 200_000


@pytest.mark.parametrize("sent", ["%00", "a%00b", "%ED%A0%80", "%FF", "%C0%AF", "%0A", "..%2F..", "x" * 30_000])
@pytest.mark.parametrize("path", PATHS)
def test_hostile_paths_are_not_found_in_few_words(client: httpx.Client, path: str, sent: str) -> None:
    response = client.get(path.replace("{}", sent))
    assert response.status_code == 404
    assert kind(response).endswith("not_found") or kind(response) == "unknown_model_version"
    assert len(response.content) < 5_000


@pytest.mark.parametrize("sent", ["%00", "1%00", "%ED%A0%80", "%FF", "", "1e400", "-1", "+1", "1_0", "1%0A", "9" * 400])
@pytest.mark.parametrize("name", ["limit", "cursor"])
def test_hostile_parameters_are_named(client: httpx.Client, name: str, sent: str) -> None:
    response = client.get(f"/plans/{'0' * 32}/observations?{name}={sent}")
    assert (response.status_code, kind(response)) == (422, "invalid_request")
    assert [fault["parameter"] for fault in response.json()["faults"]] == [name]


@pytest.mark.parametrize("value", [b"a\x00b", b"\xed\xa0\x80", b"\xff" * 200, b"%00", b"x" * 20_000, b"\x7f", b""])
@pytest.mark.parametrize("name", [b"X-Request-ID", b"Content-Type", b"Content-Length", b"If-None-Match", b"Prefer"])
def test_hostile_headers_are_no_server_error(client: httpx.Client, name: bytes, value: bytes) -> None:
    lines = [b"POST /plan HTTP/1.1", b"Host: x", b"Connection: close", name + b": " + value, b"", b""]
    with socket.create_connection((client.base_url.host, client.base_url.port or 80), timeout=10) as connection:
        connection.sendall(b"\r\n".join(lines))
        answer = b"".join(iter(lambda: connection.recv(65_536), b""))
    assert 400 <= int(answer.split()[1]) < 500


def test_a_body_with_more_faults_than_can_be_listed_says_how_many(client: httpx.Client) -> None:
    tables = [table(f"{'n' * 250}{i}", num_embeddings=-1, embedding_dim=3, pooling_factor="x") for i in range(100)]
    tables = [each | {f"{'k' * 50}{i}": 1 for i in range(8)} for each in tables]
    response = client.post("/plan", json=request(tables=tables))
    assert (response.status_code, kind(response)) == (422, "invalid_request")
    assert response.json()["fault_count"] == 1_100
    assert len(response.json()["faults"]) == 1_000
    assert len(response.content) < 1_000_000
