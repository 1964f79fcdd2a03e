"""Calls under an Idempotency-Key: made once, answered as often as they are sent."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine, text

from service.domain.callers import Scope
from service.wiring import running_app
from tests.api.keyed import Keyed
from tests.api.support import FACTORY, GIB, kind, listening, request, settings, table
from tests.storage.live_worker import live_worker

PROFILES = {"tables": [table(pooling_factor=77)], "hardware": "fake", "global_batch_size": 64, "optimizer": "sgd"}
OBSERVED = {"rank": 0, "steps": [0, 1], "forward_compute_ms": 1.0, "backward_compute_ms": 1.0}
REPLAYED = "idempotent-replayed"


def _post(client: httpx.Client, path: str, body: Any, key: str) -> httpx.Response:
    return client.post(path, json=body, headers={"idempotency-key": key})


@contextmanager
def _service(database_url: str, **changes: Any) -> Iterator[httpx.Client]:
    with running_app(settings(database_url, **changes), FACTORY) as app, listening(app) as client:
        yield client


def test_every_post_gives_its_first_answer_again(database_url: str, engine: Engine) -> None:
    with _service(database_url) as client:
        live_worker(engine, "fake")
        plan_id = client.post("/plan", json=request()).json()["plan_id"]
        calls = [
            ("/plan", request(seed=1)),
            ("/estimate", {"plan_id": plan_id}),
            ("/profiles", PROFILES),
            (f"/plans/{plan_id}/observations", {"observations": [OBSERVED]}),
            ("/models/fake/compute/1/promote", {"reason": "a"}),
        ]
        for number, (path, body) in enumerate(calls):
            first = _post(client, path, body, f"k{number}").raise_for_status()
            again = _post(client, path, body, f"k{number}")
            assert REPLAYED not in first.headers
            assert again.headers[REPLAYED] == "true"
            assert (again.status_code, again.content) == (first.status_code, first.content)
            assert again.headers.get("location") == first.headers.get("location")
            assert again.headers["content-type"] == first.headers["content-type"]


def test_a_rollback_that_is_sent_twice_is_one_step_back(database_url: str, tmp_path: Any) -> None:
    (tmp_path / "latest").write_text("3")
    with _service(database_url, model_store=str(tmp_path)) as client:
        for version in (1, 2):
            client.post(f"/models/fake/compute/{version}/promote", json={}).raise_for_status()
        first = _post(client, "/models/fake/compute/rollback", {}, "back").json()
        assert first["version"] == "fake/compute/1"
        assert _post(client, "/models/fake/compute/rollback", {}, "back").json() == first
        history = client.get("/models/fake/compute").json()["promotions"]
        assert sum(promotion["rollback"] for promotion in history) == 1
        assert _post(client, "/models/fake/compute/rollback", {}, "further").json()["version"] == "fake/compute/3"


def test_a_key_stands_for_one_request(client: httpx.Client) -> None:
    _post(client, "/plan", request(seed=11), "one").raise_for_status()
    for path, body in (("/plan", request(seed=12)), ("/estimate", request(seed=11))):
        refused = _post(client, path, body, "one")
        assert (refused.status_code, kind(refused)) == (422, "idempotency_key_reused")


def test_keys_of_different_callers_have_nothing_to_do_with_each_other(keyed_service: Keyed) -> None:
    with keyed_service.client("first", Scope.PLAN) as first, keyed_service.client("second", Scope.PLAN) as second:
        _post(first, "/plan", request(seed=21), "shared").raise_for_status()
        other = _post(second, "/plan", request(seed=22), "shared").raise_for_status()
        assert REPLAYED not in other.headers


def test_errors_are_not_kept(client: httpx.Client) -> None:
    assert _post(client, "/plan", request(seed=-1), "mended").status_code == 422
    assert _post(client, "/plan", request(seed=31), "mended").status_code == 200


def test_calls_at_the_same_time_are_one_call(database_url: str) -> None:
    slow = request(devices={"count": 2, "memory_bytes": GIB, "hardware": "slow"}, time_limit_ms=30_000)
    with _service(database_url) as client, ThreadPoolExecutor(4) as threads:
        answers = [each.result() for each in [threads.submit(_post, client, "/plan", slow, "same") for _ in range(4)]]
        made = [answer for answer in answers if answer.status_code == 200]
        waits = [answer for answer in answers if answer.status_code != 200]
        assert len(made) == 1
        assert {(answer.status_code, kind(answer)) for answer in waits} == {(409, "idempotent_call_running")}
        assert all(int(answer.headers["retry-after"]) >= 1 for answer in waits)
        assert _post(client, "/plan", slow, "same").content == made[0].content


def test_a_call_whose_process_died_is_made_again_unless_it_had_taken_effect(
    database_url: str, engine: Engine, tmp_path: Any
) -> None:
    (tmp_path / "latest").write_text("3")
    with _service(database_url, model_store=str(tmp_path)) as client:
        client.post("/models/fake/compute/2/promote", json={}).raise_for_status()
        _post(client, "/plan", request(), "plan").raise_for_status()
        _post(client, "/models/fake/compute/rollback", {}, "back").raise_for_status()
        # As a process leaves it that dies before it keeps the answer.
        lost = "UPDATE idempotency_keys SET status = NULL, body = NULL, claimed_until = now() + interval '1 minute'"
        with engine.begin() as connection:
            connection.execute(text(lost))
        assert kind(_post(client, "/plan", request(), "plan")) == "idempotent_call_running"
        with engine.begin() as connection:
            connection.execute(text("UPDATE idempotency_keys SET claimed_until = now() - interval '1 second'"))
        made_anew = _post(client, "/plan", request(), "plan").raise_for_status()
        assert REPLAYED not in made_anew.headers
        gone = _post(client, "/models/fake/compute/rollback", {}, "back")
        assert (gone.status_code, kind(gone)) == (409, "idempotent_answer_lost")
        history = client.get("/models/fake/compute").json()["promotions"]
        assert sum(promotion["rollback"] for promotion in history) == 1


def test_a_key_is_good_for_a_day(database_url: str, engine: Engine) -> None:
    with _service(database_url) as client:
        _post(client, "/plan", request(), "old").raise_for_status()
        with engine.begin() as connection:
            connection.execute(text("UPDATE idempotency_keys SET created_at = now() - interval '25 hours'"))
        fresh = _post(client, "/plan", request(seed=5), "old").raise_for_status()
        assert REPLAYED not in fresh.headers
        # From its new first use on.
        assert _post(client, "/plan", request(seed=5), "old").headers[REPLAYED] == "true"


@pytest.mark.parametrize("key", ["", "a b", "k" * 256, "é"])
def test_what_is_no_key_is_refused(client: httpx.Client, key: str) -> None:
    response = client.post(
        "/plan", json=request(), headers=[(b"content-type", b"application/json"), (b"idempotency-key", key.encode())]
    )
    assert (response.status_code, kind(response)) == (422, "invalid_request")
    assert response.json()["faults"][0]["parameter"] == "Idempotency-Key"
