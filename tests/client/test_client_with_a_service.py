"""The client and its command against a real service."""

import dataclasses
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine

from service.storage.claims import ClaimRepository
from shardwright_client import (
    Busy,
    Client,
    Constraints,
    Devices,
    Infeasible,
    InvalidRequest,
    ListedPlan,
    NoPlanInTime,
    NotFound,
    Observation,
    ObservationsRequest,
    ProblemError,
    ProfilesRequest,
    ShardsEstimateRequest,
    StoredEstimateRequest,
    Table,
    Timeout,
    Unsupported,
)
from shardwright_client.command import EXIT_CODES, main
from shardwright_client.json_values import encoded
from tests.client.asked import BOTH, QUESTION, Asking, with_client
from tests.client.conftest import ROOT, RealService
from tests.storage.live_worker import fetched, live_worker
from tests.storage.test_claims import RETRIES, measured


def _question(**changes: Any) -> Any:
    return dataclasses.replace(QUESTION, **changes)


@pytest.mark.parametrize("ask", BOTH)
def test_a_plan_is_made_kept_priced_and_observed(ask: Asking, real_service: RealService) -> None:
    plan = ask(lambda client: client.plan(QUESTION), real_service.url)
    assert plan == ask(lambda client: client.plan(encoded(QUESTION)), real_service.url)
    assert plan == ask(lambda client: client.get_plan(plan.plan_id), real_service.url)
    assert plan.saved
    assert plan.max_cost_ms == max(device.cost_ms.total for device in plan.devices)
    assert plan.lower_bound_ms <= plan.max_cost_ms
    assert sorted(shard.table for device in (0, 1) for shard in plan.shards_of(device)) == ["t0", "t1"]

    given = ShardsEstimateRequest.of(QUESTION, plan.shards)
    priced = ask(lambda client: client.estimate(given), real_service.url)
    stored = ask(lambda client: client.estimate(StoredEstimateRequest(plan.plan_id)), real_service.url)
    assert priced.devices == stored.devices
    assert priced.max_cost_ms == pytest.approx(plan.max_cost_ms)

    costs = plan.devices[0].cost_ms
    observation = Observation(0, (0, 100), costs.forward_compute, costs.backward_compute)
    launch = ask.__name__
    told = ObservationsRequest([observation], launch_id=launch, environment={"device": "a test"})
    first = ask(lambda client: client.observe(plan.plan_id, told), real_service.url)
    again = ask(lambda client: client.observe(plan.plan_id, told), real_service.url)
    assert (first.stored, again.stored) == (1, 0)
    assert first.observations == again.observations
    (kept,) = first.observations
    assert (kept.rank, kept.steps, kept.launch_id, kept.environment) == (0, (0, 100), launch, {"device": "a test"})
    assert kept.costs.forward_compute.ratio == pytest.approx(1.0)
    assert kept.costs.forward_comm is None
    assert kept.observed_at.tzinfo is not None


def test_what_moves_is_told(real_service: RealService) -> None:
    def ask(client: Client) -> Any:
        plan = client.plan(QUESTION)
        away = Constraints(pin={shard.table: [1 - shard.device] for shard in plan.shards})
        return client.plan(_question(previous_plan_id=plan.plan_id, constraints=away))

    moved = with_client(ask, real_service.url)
    assert sum(move.bytes for move in moved.moves) == moved.moved_bytes > 0


@pytest.mark.parametrize("ask", BOTH)
def test_refusals_are_told_by_their_class(ask: Asking, real_service: RealService) -> None:
    def refused(call: Any, kind: type[Exception]) -> Any:
        with pytest.raises(kind) as raised:
            ask(call, real_service.url)
        assert real_service.url in str(raised.value)
        return raised.value

    infeasible = refused(lambda client: client.plan(_question(devices=Devices(1, 1000, "fake"))), Infeasible)
    assert infeasible.proven
    assert infeasible.shortfall_bytes > 0
    assert infeasible.remedies[0] in str(infeasible)
    wrong = refused(lambda client: client.plan({"tables": [], "devices": {}}), InvalidRequest)
    assert {"/tables", "/devices/count", "/optimizer"} <= {fault.pointer for fault in wrong.errors}
    unknown = refused(lambda client: client.plan(_question(devices=Devices(1, 1, "none"))), Unsupported)
    assert (unknown.errors[0].pointer, "fake" in unknown.extra["known"]) == ("/devices/hardware", True)
    missing = refused(lambda client: client.get_plan("0" * 32), NotFound)
    assert (missing.kind, len(missing.request_id) > 0) == ("plan_not_found", True)
    late = _question(devices=Devices.with_gib(2, 1, "slow"), time_limit_ms=1, seed=1)
    refused(lambda client: client.plan(late), NoPlanInTime)
    idle = ProfilesRequest(QUESTION.tables, "slow", 512, "sgd")
    assert refused(lambda client: client.profile(idle), Busy).kind == "no_worker"


def test_profiles_are_asked_for_and_waited_for(real_service: RealService, service_engine: Engine) -> None:
    worker = live_worker(service_engine, "fake")
    request = ProfilesRequest([Table("t", 4321, 64, 2.0)], "fake", 512, "sgd")

    def measure() -> None:
        asked = with_client(lambda client: client.profile(request), real_service.url)
        assert (asked.done, asked.progress.queued, asked.profiles[0].state) == (False, 1, "queued")
        with pytest.raises(Timeout, match=r"not done after 0.1 s: 1 queued, 0 running"):
            with_client(lambda client: client.wait_for_profile(asked.request_id, 0.1), real_service.url)
        claims = ClaimRepository(service_engine, RETRIES)
        claim = claims.claim(asked.profiles[0].profile_id, fetched(service_engine, worker, "fake"), worker)
        assert claim is not None
        claims.record(claim, measured(claim), None)

    measure()
    asked = with_client(lambda client: client.profile(request), real_service.url)
    for ask in BOTH:
        done = ask(lambda client: client.wait_for_profile(asked.request_id, 30), real_service.url)
        assert done.done
        (profile,) = done.profiles
        assert (profile.state, [found.width for found in profile.results]) == ("measured", [64, 32, 16])
        assert profile.finished_at > profile.queued_at
        assert done == ask(lambda client: client.get_profile(asked.request_id), real_service.url)


async def _listed(plans: AsyncIterator[ListedPlan]) -> list[ListedPlan]:
    return [plan async for plan in plans]


@pytest.mark.parametrize("ask", BOTH)
def test_plans_are_listed_page_by_page_and_given_up(ask: Asking, real_service: RealService) -> None:
    url, first = real_service.url, 100 + 10 * BOTH.index(ask)
    made = [
        ask(lambda client, seed=seed: client.plan(_question(seed=seed)), url).plan_id
        for seed in range(first, first + 5)
    ]

    def listed(page_size: int) -> list[ListedPlan]:
        each = list if ask is with_client else _listed
        found: list[ListedPlan] = ask(lambda client: each(client.list_plans(page_size)), url)
        return found

    plans = listed(2)
    assert [plan.plan_id for plan in plans[:5]] == made[::-1]
    assert plans == listed(1000)
    plan = ask(lambda client: client.get_plan(made[0]), url)
    assert (plans[4].max_cost_ms, plans[4].hardware, plans[4].algorithm) == (plan.max_cost_ms, "fake", "dim_greedy")
    assert plans[4].raw["plan_id"] == plan.plan_id
    with pytest.raises(InvalidRequest, match="limit: must be a whole number from 1 to 1000"):
        listed(0)

    assert ask(lambda client: client.delete_plan(made[0]), url) is None
    for gone in (lambda client: client.get_plan(made[0]), lambda client: client.delete_plan(made[0])):
        with pytest.raises(NotFound):
            ask(gone, url)


def test_an_idempotency_key_stands_for_one_call(real_service: RealService) -> None:
    url, again = real_service.url, []

    def note(response: httpx.Response) -> None:
        again.append(response.headers.get("Idempotent-Replayed"))

    def twice(client: Client) -> Any:
        client._http.event_hooks["response"] = [note]
        return [client.plan(_question(seed=120), idempotency_key="once") for _ in range(2)]

    first, second = with_client(twice, url)
    assert (first.raw, again) == (second.raw, [None, "true"])
    with pytest.raises(ProblemError, match="idempotency_key_reused"):
        with_client(lambda client: client.plan(_question(seed=121), idempotency_key="once"), url)


def test_connections_are_kept(real_service: RealService) -> None:
    def ask(client: Client) -> int:
        for _ in range(5):
            client.plan(QUESTION)
        transport = client._http._transport
        assert isinstance(transport, httpx.HTTPTransport)
        return len(transport._pool.connections)

    assert with_client(ask, real_service.url) == 1


def _run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(arguments)
    told = capsys.readouterr()
    return code, told.out, told.err


def test_the_command_asks_and_prints_json(
    real_service: RealService, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDWRIGHT_URL", real_service.url)
    file = tmp_path / "request.json"
    file.write_text(json.dumps(encoded(QUESTION)))
    code, out, err = _run(capsys, "--pretty", "plan", str(file), "--launch-id", "l1")
    assert (code, err) == (0, "")
    plan = json.loads(out)
    assert out.startswith("{\n  ")
    assert json.loads(_run(capsys, "show", plan["plan_id"])[1]) == plan

    priced = {**encoded(QUESTION), "shards": plan["shards"]}
    del priced["algorithm"], priced["seed"]
    file.write_text(json.dumps(priced))
    assert json.loads(_run(capsys, "estimate", str(file))[1])["max_cost_ms"] > 0
    file.write_text(
        '{"observations": [{"rank": 0, "steps": [0, 1], "forward_compute_ms": 1, "backward_compute_ms": 2}]}'
    )
    assert json.loads(_run(capsys, "observe", plan["plan_id"], str(file))[1])["stored"] == 1


def test_the_command_lists_plans_and_gives_them_up(
    real_service: RealService, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDWRIGHT_URL", real_service.url)
    questions = [_question(seed=seed) for seed in (130, 131)]
    made = with_client(lambda client: [client.plan(question) for question in questions], real_service.url)
    (newest,) = json.loads(_run(capsys, "plans", "--most", "1")[1])["plans"]
    assert (newest["plan_id"], newest["algorithm"]) == (made[1].plan_id, "dim_greedy")
    listed = json.loads(_run(capsys, "plans")[1])["plans"]
    assert [plan["plan_id"] for plan in listed[:2]] == [made[1].plan_id, made[0].plan_id]
    assert _run(capsys, "plans", "--most", "0")[0] == 2
    assert _run(capsys, "delete", newest["plan_id"]) == (0, "", "")
    assert _run(capsys, "delete", newest["plan_id"])[0] == 3


def test_the_command_says_what_is_wrong_by_its_exit_code(
    real_service: RealService, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    service = ("--url", real_service.url)
    file = tmp_path / "request.json"

    def failed(content: Any, *arguments: str) -> int:
        file.write_text(content if isinstance(content, str) else json.dumps(encoded(content)))
        code, out, err = _run(capsys, *arguments, str(file))
        assert out == ""
        assert err.startswith("shardwright-client: ")
        assert err.count("\n") == 1
        return code

    assert failed("{", *service, "plan") == 2
    assert failed("[]", *service, "plan") == 2
    assert failed(QUESTION, "--url", "nothing", "plan") == 2
    assert failed(_question(global_batch_size=0), *service, "plan") == 3
    assert failed(_question(devices=Devices(1, 1000, "fake")), *service, "plan") == 4
    assert failed(QUESTION, "--url", "http://127.0.0.1:1", "--timeout", "0.05", "plan") == 5
    assert failed(_question(devices=Devices.with_gib(2, 1, "broken")), *service, "plan") == 1
    late = _question(devices=Devices.with_gib(2, 1, "slow"), time_limit_ms=1, seed=2)
    assert failed(late, *service, "plan") == 5
    assert failed(QUESTION, "--url", f"{real_service.url}/v1", "plan") == 2
    assert failed(QUESTION, "--url", f"{real_service.url}/plans", "plan") == 2
    assert _run(capsys, *service, "show", "0" * 32)[0] == 3
    with pytest.raises(SystemExit) as usage:
        main(["unknown"])
    assert usage.value.code == 2


def test_the_readme_shows_what_works(real_service: RealService, capsys: pytest.CaptureFixture[str]) -> None:
    readme = (ROOT / "client" / "README.md").read_text()
    shown = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)[0]
    exec(shown.replace("http://localhost:8000", real_service.url).replace("h100", "fake"), {})
    assert "Shard(table='user'" in capsys.readouterr().out
    for code, text in EXIT_CODES.items():
        assert f"| {code} | {text} |" in readme


def test_help_documents_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    told = capsys.readouterr().out
    assert "4  no plan meets the request (infeasible)" in told
    assert "SHARDWRIGHT_API_KEY" in told
