"""/profiles over HTTP, and the tables that plans and estimates have measured."""

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine, text
from typer.testing import CliRunner

from service.api.profiling import NovelTables
from service.cli.profiles import app
from service.domain.callers import WITHOUT_KEY, Caller
from service.domain.errors import StorageUnavailable
from service.domain.plan import Problem
from service.domain.profiles import ProfileRequest, ProfileState, ProfileTerms
from service.domain.tables import Optimizer, Table
from service.domain.topology import Topology
from service.storage.claims import ClaimRepository
from service.storage.profiles import ProfileRepository
from service.wiring import running_app
from tests.api.here import fresh_metrics
from tests.api.processes import clean_environment, wait_for
from tests.api.support import FACTORY, GIB, kind, listening, pointers, request, settings, table
from tests.storage.live_worker import fetched, live_worker
from tests.storage.test_claims import RETRIES, measured

ROOT = Path(__file__).resolve().parents[2]
NEW = 20_000_000
"""Rows of a table that the fake model finds new, see ``FakeCompute.novelty``."""


def body(*tables: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {
        "tables": list(tables) or [table("t0"), table("t1", embedding_dim=8)],
        "hardware": "fake",
        "global_batch_size": 512,
        "optimizer": "sgd",
    } | changes


def new_tables(count: int) -> list[dict[str, Any]]:
    return [table(f"t{i}", num_embeddings=NEW + i, embedding_dim=4) for i in range(count)]


def plan_of(tables: list[dict[str, Any]], **changes: Any) -> dict[str, Any]:
    return request(tables=tables, devices={"count": 4, "memory_bytes": 64 * GIB, "hardware": "fake"}, **changes)


@contextmanager
def served(database_url: str, **changes: Any) -> Iterator[httpx.Client]:
    with running_app(settings(database_url, **changes), FACTORY) as app, listening(app) as client:
        yield client


@pytest.fixture
def client(database_url: str) -> Iterator[httpx.Client]:
    with served(database_url, profile_quota=10) as found:
        yield found


def count(engine: Engine, what: str) -> int:
    with engine.connect() as connection:
        return int(connection.scalar(text(f"SELECT count(*) FROM {what}")) or 0)


def counted(client: httpx.Client, line: str) -> bool:
    return line in client.get("/metrics").text.splitlines()


def test_a_request_is_queued_followed_and_answered_with_its_results(client: httpx.Client, engine: Engine) -> None:
    worker = live_worker(engine, "fake")
    asked = client.post("/profiles", json=body())
    assert asked.status_code == 202
    answer = asked.json()
    where = asked.headers["location"]
    assert where == f"/profiles/{answer['request_id']}"
    assert client.get(where).json() == answer
    assert (answer["done"], answer["progress"]["queued"]) == (False, 2)
    assert [one["table"] for one in answer["profiles"]] == ["t0", "t1"]
    assert client.post("/profiles", json=body()).json() == answer

    claims = ClaimRepository(engine, RETRIES)
    keys = [one["profile_id"] for one in answer["profiles"]]
    for key in keys:
        claim = claims.claim(key, fetched(engine, worker, "fake"), worker)
        assert claim is not None
        if key == keys[0]:
            claims.record(claim, measured(claim), 77)
        else:
            claims.fail(claim, "SIGABRT, as by a crash")
    later = client.get(where).json()
    assert later["progress"] == {"queued": 1, "running": 0, "measured": 1, "parked": 0, "expired": 0}
    first, second = later["profiles"]
    assert (first["state"], first["rows_measured"]) == ("measured", 77)
    assert [result["width"] for result in first["results"]] == [64, 32, 16]
    assert first["results"][1] == {"width": 32, "forward_ms": 2.0, "backward_ms": 3.0, "noisy": False}
    assert (second["state"], second["attempts"], second["error"]) == ("queued", 1, "SIGABRT, as by a crash")
    assert second["results"] == []


def test_a_malformed_request_names_every_fault(client: httpx.Client) -> None:
    wrong = body(table("a", embedding_dim=6), table("b"), table("b"), hardware="no such/name", optimizer="x", seed=1)
    assert pointers(client.post("/profiles", json=wrong)) == {
        "/tables/0/embedding_dim", "/tables/1/name", "/tables/2/name", "/hardware", "/optimizer", "/seed",
    }  # fmt: skip
    unpooled = client.post("/profiles", json=body(table("a", pooling_mode="none")))
    assert (unpooled.status_code, kind(unpooled)) == (422, "unsupported_sharding")


def test_without_a_live_worker_nothing_is_queued(client: httpx.Client, engine: Engine) -> None:
    live_worker(engine, "fake", age_s=61)
    refused = client.post("/profiles", json=body())
    assert (refused.status_code, kind(refused)) == (503, "no_worker")
    assert refused.headers["retry-after"] == "60"
    assert "shardwright worker --hardware fake" in refused.json()["detail"]
    assert count(engine, "profiles") == 0


def test_beyond_the_quota_nothing_is_queued(client: httpx.Client, engine: Engine) -> None:
    live_worker(engine, "fake")
    refused = client.post("/profiles", json=body(*(table(f"t{i}", num_embeddings=10 + i) for i in range(11))))
    assert (refused.status_code, kind(refused)) == (429, "profile_quota_exceeded")
    assert (refused.json()["quota_per_day"], refused.json()["left"]) == (10, 10)
    assert int(refused.headers["retry-after"]) > 0
    assert count(engine, "profiles") == 0


@pytest.mark.parametrize("unknown", ["0" * 32, "nothing", "%00"])
def test_an_unknown_request_is_not_found(client: httpx.Client, unknown: str) -> None:
    answer = client.get(f"/profiles/{unknown}")
    assert (answer.status_code, kind(answer)) == (404, "profile_request_not_found")


def test_new_tables_of_plans_and_estimates_are_queued_and_the_answers_are_as_ever(
    client: httpx.Client, engine: Engine
) -> None:
    live_worker(engine, "fake")
    tables = [*new_tables(2), table("old", embedding_dim=4)]
    plan = client.post("/plan", json=plan_of(tables)).json()
    assert "profiles" not in plan
    wait_for(lambda: count(engine, "procrastinate_jobs") == 2)
    assert client.get(f"/plans/{plan['plan_id']}").json() == plan
    another = [*new_tables(3), table("old", embedding_dim=4)]
    shards = [{"table": one["name"], "columns": [0, 4], "device": 0} for one in another]
    estimate = {**plan_of(another), "shards": shards}
    del estimate["algorithm"]
    assert client.post("/estimate", json=estimate).status_code == 200
    wait_for(lambda: count(engine, "procrastinate_jobs") == 3)
    assert count(engine, "profiles WHERE state = 'queued' AND requested_by = 'anonymous'") == 3
    wait_for(lambda: counted(client, 'shardwright_novel_tables_total{outcome="queued"} 3.0'))
    assert counted(client, 'shardwright_novel_tables_total{outcome="left_out"} 2.0')
    told = client.post("/profiles", json=body(*new_tables(3)))
    assert told.json()["progress"]["queued"] == 3
    assert count(engine, "procrastinate_jobs") == 3


def test_plans_are_answered_where_nothing_can_be_measured(client: httpx.Client, engine: Engine) -> None:
    assert client.post("/plan", json=plan_of(new_tables(2))).json()["saved"] is True
    wait_for(lambda: counted(client, 'shardwright_novel_tables_total{outcome="no_worker"} 2.0'))
    live_worker(engine, "fake")
    assert client.post("/plan", json=plan_of(new_tables(7))).json()["saved"] is True
    wait_for(lambda: count(engine, "procrastinate_jobs") == 5)
    wait_for(lambda: counted(client, 'shardwright_novel_tables_total{outcome="left_out"} 2.0'))


def test_two_replicas_that_plan_the_same_new_tables_at_once_queue_each_once(engine: Engine, database_url: str) -> None:
    live_worker(engine, "fake")
    tables = new_tables(20)
    with ExitStack() as stack, ThreadPoolExecutor(16) as pool:
        replicas = [stack.enter_context(served(database_url, planner_queue=60)) for _ in range(2)]
        asked = [
            pool.submit(replicas[i % 2].post, "/plan", json=plan_of(tables, seed=i, time_limit_ms=60_000))
            for i in range(50)
        ]
        assert {each.result().status_code for each in asked} == {200}
        wait_for(lambda: sum(_met(replica) for replica in replicas) == 50 * 20)
    assert count(engine, "procrastinate_jobs") == 20
    assert count(engine, "profiles WHERE state = 'queued'") == 20


def _met(client: httpx.Client) -> float:
    lines = client.get("/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("shardwright_novel_tables_total"))


def test_what_a_killed_service_had_promised_is_kept(engine: Engine, database_url: str, tmp_path: Path) -> None:
    live_worker(engine, "fake")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = clean_environment(DATABASE_URL=database_url, PORT=str(port), SHARDWRIGHT_PLANNER_PROCESSES="1")
    with (tmp_path / "log").open("w") as log:
        command = [sys.executable, "-m", "tests.api.serve_fake"]
        service = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=log)
    promised: list[str] = []

    def ask(client: httpx.Client, number: int) -> None:
        for i in range(1, 200):
            try:
                answer = client.post("/profiles", json=body(table("t", num_embeddings=1000 * number + i)))
            except httpx.TransportError:
                return
            if answer.status_code == 202:
                promised.append(answer.json()["request_id"])

    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False) as client:
        try:
            wait_for(lambda: _is_up(client), 60)
            with ThreadPoolExecutor(4) as pool:
                asked = [pool.submit(ask, client, number) for number in range(4)]
                wait_for(lambda: len(promised) > 20, 60)
                service.kill()
                for each in asked:
                    each.result()
        finally:
            service.kill()
            service.wait()
    for request_id in promised:
        kept = ProfileRepository(engine).get_request(request_id, WITHOUT_KEY)
        assert kept is not None
        assert [profile.state for _, profile in kept.profiles] == [ProfileState.QUEUED]
    queued = count(engine, "profiles WHERE state = 'queued'")
    assert queued >= len(promised)
    assert count(engine, "procrastinate_jobs WHERE id IN (SELECT claim FROM profiles)") == queued


def _is_up(client: httpx.Client) -> bool:
    try:
        return client.get("/healthz").status_code == 200
    except httpx.ConnectError:
        return False


def test_the_queue_shows_in_the_metrics(client: httpx.Client, engine: Engine) -> None:
    live_worker(engine, "fake")
    live_worker(engine, "gone", age_s=31)
    client.post("/profiles", json=body())
    lines = client.get("/metrics").text.splitlines()
    for line in (
        "shardwright_queue_readable 1.0",
        'shardwright_profiles{hardware="fake",state="queued"} 2.0',
        'shardwright_workers_live{hardware="fake"} 1.0',
        'shardwright_workers_live{hardware="gone"} 0.0',
        'shardwright_profiles_stalled{hardware="fake"} 0.0',
        'shardwright_profiles_measured_total{hardware="fake"} 0.0',
        'shardwright_profile_failures_total{hardware="fake"} 0.0',
    ):
        assert line in lines
    assert any(line.startswith('shardwright_profile_oldest_seconds{hardware="fake"} ') for line in lines)


def test_metrics_are_there_without_the_queues_tables(client: httpx.Client, engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE workers RENAME TO elsewhere"))
    lines = client.get("/metrics").text.splitlines()
    assert "shardwright_queue_readable 0.0" in lines
    assert not any(line.startswith("shardwright_profiles") for line in lines)
    assert any(line.startswith("shardwright_build_info") for line in lines)


class AwayStore:
    """A store that is away, and answers only when it is let."""

    def __init__(self) -> None:
        self.let = threading.Event()

    def devices(self, hardware: str, terms: ProfileTerms) -> set[str]:
        return {"cpu"}

    def queue_new(self, profiles: object, caller: str, terms: ProfileTerms) -> int:
        self.let.wait(20)
        raise StorageUnavailable("away", retry_after_s=2)

    def request(self, named: object, caller: str, terms: ProfileTerms) -> ProfileRequest:
        raise StorageUnavailable("away", retry_after_s=2)

    def get_request(self, request_id: str, caller: Caller) -> ProfileRequest | None:
        raise StorageUnavailable("away", retry_after_s=2)


def test_noting_new_tables_neither_waits_nor_fails() -> None:
    store, metrics = AwayStore(), fresh_metrics()
    with NovelTables(store, ProfileTerms(5, 30, 60), 1.0, metrics) as novel:
        for rows in range(300):
            novel.met(_one_table(10 + rows), [2.0], WITHOUT_KEY)
        novel.met(_one_table(9), [1.0], WITHOUT_KEY)
        store.let.set()
    said = metrics.exposition().decode().splitlines()
    values = {
        line.split("{")[1].split("}")[0]: float(line.split()[-1]) for line in said if "novel_tables_total{" in line
    }
    assert values['outcome="failed"'] + values['outcome="dropped"'] == 300
    assert values['outcome="dropped"'] >= 42


def test_a_new_table_that_is_asked_for_again_and_again_is_handed_over_once() -> None:
    store, metrics = AwayStore(), fresh_metrics()
    store.let.set()
    with NovelTables(store, ProfileTerms(5, 30, 60), 1.0, metrics) as novel:
        for _ in range(300):
            novel.met(_one_table(10), [2.0], WITHOUT_KEY)
    said = metrics.exposition().decode()
    assert 'shardwright_novel_tables_total{outcome="failed"} 1.0' in said
    assert 'shardwright_novel_tables_total{outcome="left_out"} 299.0' in said


def _one_table(rows: int) -> Problem:
    return Problem((Table("t", rows, 4, 1.0),), Topology("fake", (GIB,)), 512, Optimizer.SGD)


def test_what_the_workers_operator_cannot_do_is_refused_by_table_and_never_queued(
    client: httpx.Client, engine: Engine
) -> None:
    live_worker(engine, "fake")
    asked = body(table("a", data_type="fp16"), table("b", data_type="bf16"), optimizer="adam")
    refused = client.post("/profiles", json=asked)
    assert (refused.status_code, kind(refused)) == (422, "invalid_request")
    said = {(fault["pointer"], fault["table"]): fault["message"] for fault in refused.json()["faults"]}
    assert set(said) == {("/optimizer", None), ("/tables/1/data_type", "b")}
    assert "use fp16" in said[("/tables/1/data_type", "b")]
    assert client.post("/plan", json=plan_of(new_tables(2), optimizer="adam")).status_code == 200
    wait_for(lambda: counted(client, 'shardwright_novel_tables_total{outcome="left_out"} 2.0'))
    assert count(engine, "profiles") == 0


def test_the_command_line_and_the_api_tell_of_a_profile_in_the_same_words(
    client: httpx.Client, engine: Engine, database_url: str
) -> None:
    live_worker(engine, "fake")
    (told,) = client.post("/profiles", json=body(table("t0", data_type="fp16"))).json()["profiles"]
    assert told["measures"] == {
        "hardware": "fake", "num_embeddings": 1000, "embedding_dim": 64, "pooling_factor": 2.0, "num_features": 1,
        "pooling_mode": "sum", "data_type": "fp16", "global_batch_size": 512, "optimizer": "sgd",
    }  # fmt: skip
    environment = {"DATABASE_URL": database_url}
    shown = CliRunner().invoke(app, ["show", told["profile_id"]], env=environment)
    assert json.loads(shown.stdout) == {name: value for name, value in told.items() if name != "table"}
    listed = CliRunner().invoke(app, ["list"], env=environment).stdout
    assert listed.startswith(f"{told['profile_id']} queued attempts=0 hardware=fake num_embeddings=1000 ")
