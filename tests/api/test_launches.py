"""Launches: all ranks get one plan, whatever was cut short, killed or away meanwhile."""

import json
import signal
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from sqlalchemy import Engine, make_url, text

from service.api.launching import Launching
from service.api.outages import OutageMemory, RememberingLaunches
from service.domain.callers import ANONYMOUS, WITHOUT_KEY, Caller
from service.domain.deadline import Deadline
from service.domain.errors import Infeasible, LaunchPending, NoPlanInTime, PlannerBusy, StorageUnavailable
from service.domain.launches import LEASE_S, Launch
from service.domain.ports import StoredPlan
from service.storage.launches import LaunchRepository
from service.storage.plans import PlanRepository
from service.usecases.make_plan import PlanStatus
from service.wiring import running_app
from tests.api.here import Clock, HerePlanner, planning_with
from tests.api.processes import wait_for
from tests.api.support import FACTORY, GIB, kind, listening, pointers, request, settings
from tests.api.test_process import PATIENCE_S, Served
from tests.conftest import Databases

RANKS = 16


def body(**changes: Any) -> bytes:
    return json.dumps(request(**changes)).encode()


def test_a_launch_keeps_a_plan_that_was_cut_short_when_a_better_one_takes_its_place(engine: Engine) -> None:
    planner = HerePlanner()
    planning = planning_with(PlanRepository(engine), planner, launches=LaunchRepository(engine))
    planner.status = PlanStatus.CUT_SHORT
    first = planning.plan(body(launch_id="night"), 1000.0, WITHOUT_KEY)
    assert (first["status"], first["saved"]) == ("cut_short", True)
    planner.status = PlanStatus.COMPLETE
    better = planning.plan(body(), 1000.0, WITHOUT_KEY)
    assert (better["status"], better["plan_id"]) == ("complete", first["plan_id"])
    assert planning.stored(first["plan_id"], WITHOUT_KEY) == better
    assert planning.plan(body(launch_id="night"), 1000.0, WITHOUT_KEY) == first
    assert planning.plan(body(launch_id="next night"), 1000.0, WITHOUT_KEY) == better
    assert len(planner.deadlines) == 2


def test_other_questions_of_a_launch_have_answers_of_their_own(engine: Engine) -> None:
    planner = HerePlanner()
    planning = planning_with(PlanRepository(engine), planner, launches=LaunchRepository(engine))
    ids = {planning.plan(body(launch_id="night", seed=seed), 1000.0, WITHOUT_KEY)["plan_id"] for seed in (1, 2, 1, 2)}
    assert len(ids) == 2
    assert len(planner.deadlines) == 2
    assert planning.plan(body(seed=1), 1000.0, WITHOUT_KEY)["plan_id"] in ids
    assert len(planner.deadlines) == 2


@pytest.mark.parametrize(
    "error",
    [
        NoPlanInTime("late"),
        PlannerBusy("full", retry_after_s=1),
        Infeasible("no", reason="packing", proven=False, shortfall_bytes=0),
        LookupError("defect"),
    ],
)
def test_an_error_is_told_and_not_kept(engine: Engine, error: Exception) -> None:
    planner = HerePlanner()
    planning = planning_with(PlanRepository(engine), planner, launches=LaunchRepository(engine))
    planner.error = error
    with pytest.raises(type(error)):
        planning.plan(body(launch_id="night"), 1000.0, WITHOUT_KEY)
    planner.error = None
    assert planning.plan(body(launch_id="night"), 1000.0, WITHOUT_KEY)["status"] == "complete"


def test_a_plan_that_takes_longer_than_a_lease_is_made_once(engine: Engine) -> None:
    PlanRepository(engine).put(StoredPlan("a", "cpu-x", "auto", 1.0, {}, {}), WITHOUT_KEY)
    launch, calls = Launch(ANONYMOUS, "night", "0"), []

    def claimed_until() -> datetime:
        with engine.connect() as connection:
            return cast(datetime, connection.scalar(text("SELECT claimed_until FROM launches")))

    def make() -> dict[str, Any]:
        calls.append(1)
        began = claimed_until()
        # Renewed twice: a claim lasts as long as the plan takes.
        wait_for(lambda: claimed_until() > began + timedelta(seconds=LEASE_S / 2), PATIENCE_S)
        return {"plan_id": "a", "saved": True, "call": len(calls)}

    def answered(_: int) -> tuple[Mapping[str, Any], bool]:
        return Launching(LaunchRepository(engine)).answer(launch, Deadline.after(20), make)

    with ThreadPoolExecutor(3) as threads:
        answers = list(threads.map(answered, range(3)))
    assert [answer["call"] for answer, _ in answers] == [1, 1, 1]
    assert sorted(given for _, given in answers) == [False, True, True]
    assert len(calls) == 1


class AwayWhenPut(PlanRepository):
    """Away only when a plan is to be stored."""

    def put(self, plan: StoredPlan, caller: Caller) -> StoredPlan:
        raise StorageUnavailable("gone", retry_after_s=2)


def test_a_plan_that_cannot_be_stored_is_no_answer_to_a_launch(engine: Engine) -> None:
    launches = LaunchRepository(engine)
    planning = planning_with(AwayWhenPut(engine), HerePlanner(), launches=launches)
    with pytest.raises(StorageUnavailable) as caught:
        planning.plan(body(launch_id="night"), 1000.0, WITHOUT_KEY)
    assert caught.value.data["retry_after_s"] >= 1
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM launches")) == 0


def test_who_waits_for_another_process_waits_no_longer_than_its_time_limit(engine: Engine) -> None:
    launches = LaunchRepository(engine)
    planner = HerePlanner()
    planning = planning_with(PlanRepository(engine), planner, launches=launches, clock=None)
    made = planning.plan(body(launch_id="known"), 1000.0, WITHOUT_KEY)
    with engine.connect() as connection:
        request_hash = str(connection.scalar(text("SELECT request_hash FROM launches")))
    assert launches.claim(Launch(ANONYMOUS, "night", request_hash), "elsewhere")
    with pytest.raises(LaunchPending, match="another process"):
        # It arrived longer ago than its time limit and what storing a plan may take.
        planning.plan(body(launch_id="night"), 990.0, WITHOUT_KEY)
    assert made["status"] == "complete"
    assert len(planner.deadlines) == 1


def test_launches_and_plans_share_what_is_known_of_outages(engine: Engine) -> None:
    clock = Clock()
    outages = OutageMemory(AwayWhenPut(engine), clock)
    launches = RememberingLaunches(LaunchRepository(engine), outages)
    launch = Launch(ANONYMOUS, "night", "0")
    assert launches.claim(launch, "me")
    with pytest.raises(StorageUnavailable):
        outages.put(StoredPlan("a", "cpu-x", "auto", 1.0, {}, {}), WITHOUT_KEY)
    for call in (
        lambda: launches.get(launch),
        lambda: launches.claim(launch, "me"),
        lambda: launches.renew(launch, "me"),
        lambda: launches.release(launch, "me"),
        lambda: launches.keep(launch, "me", "a", {}),
    ):
        with pytest.raises(StorageUnavailable, match="a moment ago"):
            call()
    clock.now += 2.1
    launches.release(launch, "me")
    assert launches.claim(launch, "other")


@pytest.mark.parametrize("value", ["", "x" * 256, "a\x00b", 7, ["a"]])
def test_a_launch_id_that_is_none_is_refused(client: httpx.Client, value: object) -> None:
    assert pointers(client.post("/plan", json=request(launch_id=value))) == {"/launch_id"}


def test_a_launch_id_does_not_change_the_plan_id(client: httpx.Client) -> None:
    plain = client.post("/plan", json=request(seed=501)).json()
    assert client.post("/plan", json=request(seed=501, launch_id="grüße 1")).json() == plain
    assert client.post("/plan", json=request(seed=501, launch_id=None)).json() == plain
    counted = client.get("/metrics").text
    assert client.post("/plan", json=request(seed=501, launch_id="grüße 1")).json() == plain
    launch = 'shardwright_plans_total{algorithm="dim_greedy",outcome="launch"}'
    assert launch not in counted
    assert f"{launch} 1.0" in client.get("/metrics").text


@contextmanager
def replicas(folder: Path, database_url: str, count: int = 2, **given: str) -> Iterator[list[Served]]:
    """Services on one database."""
    with ExitStack() as stack:
        served = [
            Served(folder / f"replica-{i}-{time.monotonic_ns()}", SHARDWRIGHT_DATABASE_URL=database_url, **given)
            for i in range(count)
        ]
        for each in served:
            stack.callback(end, each)
        for each in served:
            wait_for(each.answers, PATIENCE_S)
        yield served


def end(served: Served) -> None:
    served.client.close()
    if served.process.poll() is None:
        served.process.send_signal(signal.SIGCONT)
        served.stop()


def asked(served: Served, question: dict[str, Any]) -> httpx.Response:
    return served.client.post("/plan", json=question)


def slow(**changes: Any) -> dict[str, Any]:
    devices = {"count": 2, "memory_bytes": GIB, "hardware": "slow"}
    return request(devices=devices, time_limit_ms=30_000, launch_id="night", **changes)


def made(served: Served) -> float:
    lines = served.client.get("/metrics").text.splitlines()
    return sum(
        float(line.split()[-1])
        for line in lines
        if line.startswith("shardwright_plans_total") and ("complete" in line or "cut_short" in line)
    )


def plans(served: Served) -> bool:
    return "shardwright_planner_running 1.0" in served.client.get("/metrics").text


def test_ranks_that_ask_again_after_an_outage_in_the_middle_get_one_plan(
    databases: Databases, database_url: str
) -> None:
    name = make_url(database_url).database

    def until_answered(client: httpx.Client) -> tuple[str, int]:
        for refusals in range(30):
            answer = client.post("/plan", json=slow())
            if answer.status_code == 200:
                return answer.text, refusals
            assert (answer.status_code, kind(answer)) == (503, "storage_unavailable")
            time.sleep(int(answer.headers["retry-after"]))
        raise AssertionError("never answered")

    with ExitStack() as stack:
        apps = [stack.enter_context(running_app(settings(database_url), FACTORY)) for _ in range(2)]
        clients = [stack.enter_context(listening(app)) for app in apps]
        threads = stack.enter_context(ThreadPoolExecutor(8))
        asked = [threads.submit(until_answered, clients[rank % 2]) for rank in range(8)]
        wait_for(lambda: any("planner_running 1.0" in client.get("/metrics").text for client in clients))
        databases.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        databases.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")
        time.sleep(LEASE_S + 1)
        databases.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
        answers = [answer.result() for answer in asked]
    assert len({text for text, _ in answers}) == 1
    assert any(refusals for _, refusals in answers)


def test_sixteen_ranks_at_two_replicas_get_one_plan_that_was_made_once(server_folder: Path, database_url: str) -> None:
    with replicas(server_folder, database_url) as (one, other), ThreadPoolExecutor(RANKS) as threads:
        answers = list(threads.map(lambda rank: asked((one, other)[rank % 2], slow()), range(RANKS)))
        assert {answer.status_code for answer in answers} == {200}
        assert len({answer.text for answer in answers}) == 1
        assert made(one) + made(other) == 1


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.slow)])
def test_when_the_replica_that_makes_the_plan_dies_or_freezes_another_takes_over_within_seconds(
    server_folder: Path, database_url: str, number: signal.Signals
) -> None:
    with replicas(server_folder, database_url) as (one, other), ThreadPoolExecutor(RANKS) as threads:
        lost = threads.submit(asked, one, slow())
        wait_for(lambda: plans(one))
        waiting = [threads.submit(asked, other, slow()) for _ in range(4)]
        time.sleep(LEASE_S * 0.5)
        assert plans(one)
        assert not plans(other)
        one.process.send_signal(number)
        began = time.monotonic()
        wait_for(lambda: plans(other), PATIENCE_S)
        assert time.monotonic() - began < LEASE_S + 10
        answers = [answer.result() for answer in waiting]
        assert [answer.status_code for answer in answers] == [200] * 4
        if number is signal.SIGKILL:
            one.process.wait()
            with pytest.raises(httpx.TransportError):
                lost.result()
        else:
            # It goes on as if nothing had been, and is told what the others were.
            one.process.send_signal(signal.SIGCONT)
            answers.append(lost.result())
        answers.append(asked(other, slow()))
        assert len({answer.text for answer in answers}) == 1
