"""Plans that no connection is held open for: begun on one replica, looked for on another, ended where nobody looks."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from sqlalchemy import URL, Engine, text

from service.domain.callers import ANONYMOUS, Scope
from service.domain.plans_under_way import PlanUnderWay
from service.storage.engine import build_engine
from service.storage.plans_under_way import UnderWayRepository
from service.wiring import running_app
from tests.api.keyed import Keyed
from tests.api.processes import wait_for
from tests.api.support import FACTORY, GIB, kind, listening, pointers, request, settings, table
from tests.conftest import Databases

ASYNC = {"Prefer": "respond-async"}
POLL_S = 3.0
RUNNING, WAITING = "shardwright_planner_running ", "shardwright_planner_waiting "
CANCELLED = 'shardwright_plans_total{algorithm="auto",outcome="cancelled"}'


def quick(seed: int, **changes: Any) -> dict[str, Any]:
    """A question that is answered in milliseconds."""
    return request(seed=seed, time_limit_ms=30_000, **changes)


def slow(seed: int, **changes: Any) -> dict[str, Any]:
    """A question whose answer takes a few seconds."""
    return quick(seed, devices={"count": 2, "memory_bytes": GIB, "hardware": "slow"}, **changes)


def long(seed: int) -> dict[str, Any]:
    """A question whose answer takes half a minute and more, unless somebody ends that."""
    tables = [
        table(f"t{i}", num_embeddings=1_000 + 7_777 * i, embedding_dim=64 + 4 * (i % 9), pooling_factor=1 + i % 13)
        for i in range(600)
    ]
    devices = {"count": 32, "memory_bytes": 64 * GIB, "hardware": "fake"}
    asked = {"tables": tables, "devices": devices, "global_batch_size": 4_096, "algorithm": "auto"}
    return request(seed=seed, time_limit_ms=60_000, **asked)


@dataclass(frozen=True)
class Replicas:
    """Two services on one database, each with one planning process and room for one who waits."""

    first: httpx.Client
    second: httpx.Client
    engine: Engine


@contextmanager
def service(url: str, stopping: threading.Event | None = None, **changes: Any) -> Iterator[httpx.Client]:
    values = {"planner_queue": 1, "plan_poll_timeout_s": POLL_S} | changes
    with running_app(settings(url, **values), FACTORY, stopping=stopping) as app, listening(app) as client:
        yield client


@pytest.fixture(scope="module")
def replicas(databases: Databases, migrated_template: URL) -> Iterator[Replicas]:
    created = databases.create(migrated_template)
    url = created.render_as_string(hide_password=False)
    engine = build_engine(url)
    with service(url) as first, service(url) as second:
        yield Replicas(first, second, engine)
    engine.dispose()
    databases.drop(created)


def begun(client: httpx.Client, question: dict[str, Any], **headers: str) -> str:
    """The place of a plan that is being made."""
    answer = client.post("/plan", json=question, headers=ASYNC | headers)
    body = answer.json()
    assert (answer.status_code, body["status"], body["cancelled_after_s"]) == (202, "planning", POLL_S), answer.text
    assert answer.headers["location"] == f"/plans/{body['plan_id']}"
    assert answer.headers["preference-applied"] == "respond-async"
    assert int(answer.headers["retry-after"]) >= 1
    return answer.headers["location"]


def metric(client: httpx.Client, series: str) -> float:
    lines = client.get("/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(series))


def wait_until_free(client: httpx.Client) -> None:
    wait_for(lambda: metric(client, RUNNING) == 0 and metric(client, WAITING) == 0)


def test_a_time_limit_begins_once_a_process_takes_the_plan(replicas: Replicas) -> None:
    wait_until_free(replicas.first)
    first = begun(replicas.first, slow(901))
    second = begun(replicas.first, request(seed=902, time_limit_ms=200))
    wait_for(lambda: 202 not in [replicas.first.get(place).status_code for place in (first, second)])
    made = replicas.first.get(second)
    assert made.status_code == 200, made.text


def test_a_plan_is_found_by_its_place_while_it_is_made_and_after(replicas: Replicas) -> None:
    question = slow(1)
    place = begun(replicas.first, question)
    for client in (replicas.first, replicas.second):
        looked = client.get(place)
        assert (looked.status_code, looked.json()["status"]) == (202, "planning")
        assert int(looked.headers["retry-after"]) >= 1
    # On either replica: it is made once.
    assert begun(replicas.second, question) == place
    assert metric(replicas.second, RUNNING) == 0
    wait_for(lambda: replicas.second.get(place).status_code == 200)
    made = replicas.second.get(place)
    assert (made.json()["saved"], made.json()["status"]) == (True, "complete")
    assert made.headers["etag"]
    again = replicas.first.post("/plan", json=question, headers=ASYNC)
    assert (again.status_code, again.json()) == (200, made.json())
    assert replicas.first.post("/plan", json=question).json() == made.json()


def test_a_plan_that_is_there_in_the_time_that_is_waited_is_the_answer(replicas: Replicas) -> None:
    answer = replicas.first.post("/plan", json=quick(2), headers={"Prefer": "respond-async; x, wait=20"})
    assert (answer.status_code, answer.json()["saved"]) == (200, True)
    assert replicas.second.get(f"/plans/{answer.json()['plan_id']}").json() == answer.json()


def test_what_is_wrong_with_a_request_is_told_at_once(replicas: Replicas) -> None:
    def asked(**changes: Any) -> httpx.Response:
        return replicas.first.post("/plan", json=request(**changes), headers=ASYNC)

    assert pointers(asked(global_batch_size=0)) == {"/global_batch_size"}
    assert kind(asked(devices={"count": 1, "memory_bytes": GIB, "hardware": "none"})) == "unknown_hardware"
    assert kind(asked(previous_plan_id="0" * 32)) == "plan_not_found"


def test_there_are_no_more_of_them_than_there_is_room(replicas: Replicas) -> None:
    places = [begun(replicas.first, long(10)), begun(replicas.first, long(11))]
    refused = replicas.first.post("/plan", json=long(12), headers=ASYNC)
    assert (refused.status_code, kind(refused)) == (503, "planner_busy")
    # What is being made has its room already, and is looked for.
    assert [begun(client, long(10)) for client in (replicas.first, replicas.second)] == places[:1] * 2
    assert [replicas.second.delete(place).status_code for place in places] == [204, 204]
    with replicas.engine.connect() as connection:
        assert not connection.scalar(text("SELECT count(*) FROM audit_log WHERE outcome = 'plan_not_found'"))
    wait_until_free(replicas.first)
    # The refused one left nothing behind, nor did the others.
    place = begun(replicas.first, long(12))
    assert replicas.first.delete(place).status_code == 204
    wait_until_free(replicas.first)


def test_a_plan_that_cannot_be_made_says_why_where_it_would_have_been(replicas: Replicas) -> None:
    question = quick(20, devices={"count": 2, "memory_bytes": 1000, "hardware": "fake"})
    waited_for = replicas.first.post("/plan", json=question, headers={"Prefer": "respond-async,wait=20"})
    assert (waited_for.status_code, kind(waited_for)) == (422, "infeasible")
    place = begun(replicas.first, question)
    wait_for(lambda: replicas.second.get(place).status_code != 202)
    for client in (replicas.first, replicas.second):
        told = client.get(place)
        assert (told.status_code, kind(told)) == (422, "infeasible")
        assert {name: told.json()[name] for name in ("detail", "reason", "remedies")} == {
            name: waited_for.json()[name] for name in ("detail", "reason", "remedies")
        }
    assert replicas.first.delete(place).status_code == 204
    assert replicas.first.get(place).status_code == 404


def test_what_is_found_wrong_with_a_request_as_its_plan_is_made_is_told_by_field(replicas: Replicas) -> None:
    tables = [table(f"t{i}", embedding_dim=8_192) for i in range(6)]
    place = begun(replicas.first, quick(21, tables=tables, constraints={"max_shard_dim": 4}))
    wait_for(lambda: replicas.second.get(place).status_code != 202)
    assert pointers(replicas.second.get(place)) == {"/tables/4/embedding_dim"}


def test_who_gives_it_up_ends_it_on_whichever_replica(replicas: Replicas) -> None:
    cancelled = metric(replicas.first, CANCELLED)
    place = begun(replicas.first, long(30))
    assert replicas.second.delete(place).status_code == 204
    for client in (replicas.first, replicas.second):
        assert (client.get(place).status_code, client.delete(place).status_code) == (404, 404)
    wait_until_free(replicas.first)
    assert metric(replicas.first, CANCELLED) == cancelled + 1
    # Asked for again it is made anew.
    assert begun(replicas.second, long(30)) == place
    assert replicas.first.get(place).status_code == 202
    assert replicas.first.delete(place).status_code == 204
    wait_until_free(replicas.second)


def test_a_plan_that_nobody_looks_for_is_cancelled(replicas: Replicas) -> None:
    cancelled = metric(replicas.first, CANCELLED)
    place = begun(replicas.first, long(40))
    wait_until_free(replicas.first)
    assert metric(replicas.first, CANCELLED) == cancelled + 1
    for client in (replicas.first, replicas.second):
        told = client.get(place)
        assert (told.status_code, kind(told)) == (410, "cancelled")
        assert "POST /plan" in told.json()["detail"]
    assert begun(replicas.second, long(40)) == place
    assert replicas.second.delete(place).status_code == 204
    wait_until_free(replicas.second)


def test_a_plan_whose_maker_is_gone_is_lost_and_may_be_asked_for_again(replicas: Replicas) -> None:
    question = quick(50)
    plan_id = replicas.first.post("/plan", json=question).json()["plan_id"]
    assert replicas.first.delete(f"/plans/{plan_id}").status_code == 204
    assert UnderWayRepository(replicas.engine).claim(PlanUnderWay(ANONYMOUS, plan_id), "one that dies")
    assert replicas.first.get(f"/plans/{plan_id}").status_code == 202
    with replicas.engine.begin() as connection:
        connection.execute(text("UPDATE plans_under_way SET claimed_until = now() - interval '1 second'"))
    told = replicas.second.get(f"/plans/{plan_id}")
    assert (told.status_code, kind(told)) == (410, "plan_not_made")
    assert replicas.second.post("/plan", json=question, headers={"Prefer": "respond-async, wait=20"}).json()["saved"]
    assert replicas.first.get(f"/plans/{plan_id}").status_code == 200


def test_a_key_leads_to_the_place_and_begins_anew_what_came_to_nothing(replicas: Replicas) -> None:
    key = {"Idempotency-Key": "night"}
    place = begun(replicas.first, long(60), **key)
    assert begun(replicas.second, long(60), **key) == place
    assert metric(replicas.second, RUNNING) == 0
    assert replicas.second.delete(place).status_code == 204
    wait_until_free(replicas.first)
    # What was begun came to nothing: the same call begins it anew.
    assert begun(replicas.second, long(60), **key) == place
    assert replicas.first.get(place).status_code == 202
    assert replicas.first.delete(place).status_code == 204
    wait_until_free(replicas.second)


def test_an_answer_that_came_in_time_is_kept_under_its_key(replicas: Replicas) -> None:
    headers = {"Prefer": "respond-async, wait=20", "Idempotency-Key": "day"}
    first, again = (
        client.post("/plan", json=quick(61), headers=headers) for client in (replicas.first, replicas.second)
    )
    assert (first.status_code, again.json()) == (200, first.json())
    assert again.headers["idempotent-replayed"] == "true"


def test_a_launch_waits(replicas: Replicas) -> None:
    answer = replicas.first.post("/plan", json=quick(70, launch_id="night"), headers=ASYNC)
    assert (answer.status_code, answer.json()["saved"]) == (200, True)
    assert "preference-applied" not in answer.headers


def test_a_plan_under_way_is_its_callers_alone(keyed_service: Keyed) -> None:
    with keyed_service.client("mine", Scope.PLAN) as mine, keyed_service.client("other", Scope.PLAN) as other:
        answer = mine.post("/plan", json=slow(80), headers=ASYNC)
        place = answer.headers["location"]
        assert (answer.status_code, other.get(place).status_code, other.delete(place).status_code) == (202, 404, 404)
        assert (mine.get(place).status_code, mine.delete(place).status_code) == (202, 204)
        wait_until_free(mine)


@pytest.mark.parametrize(("question", "seconds", "status"), [(slow(90), 30, 200), (long(91), 1, 410)])
def test_a_service_that_stops_makes_what_it_can_and_says_what_it_cannot(
    replicas: Replicas, question: dict[str, Any], seconds: int, status: int
) -> None:
    stopping = threading.Event()
    url = replicas.engine.url.render_as_string(hide_password=False)
    with service(url, stopping, shutdown_timeout_s=seconds, plan_poll_timeout_s=60) as client:
        place = client.post("/plan", json=question, headers=ASYNC).headers["location"]
        stopping.set()
    told = replicas.second.get(place)
    assert told.status_code == status
    if status == 410:
        assert (kind(told), "stopped" in told.json()["detail"]) == ("plan_not_made", True)
