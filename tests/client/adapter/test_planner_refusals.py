"""What the planner refuses, and what it says of it: names of tables, and what to do."""

import logging
from typing import Any

import pytest
from torch import nn
from torchrec.distributed.planner import ParameterConstraints

from shardwright_client import AsyncClient, Client, ConnectionFailed, Infeasible, InvalidArgument, InvalidRequest
from shardwright_client.torchrec import NotModelled, ShardwrightPlanner
from tests.client.adapter.models import Model, collection, config, sharder, topology
from tests.client.adapter.ranks import planner

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize(("module", "sharders"), [(nn.Linear(2, 2), [sharder()]), (Model("meta"), [])])
def test_a_model_without_tables_asks_nothing_and_the_log_says_so(
    away: Client, caplog: pytest.LogCaptureFixture, module: nn.Module, sharders: list[Any]
) -> None:
    asking = ShardwrightPlanner(topology(2), 6, hardware="fake", client=away)
    assert asking.plan(module, sharders).plan == {}
    assert "nothing is planned: the model has no module with tables that a sharder is for" in caplog.text


@pytest.mark.parametrize("batch_size", [None, 0, -3, 1.5, "8"])
def test_no_batch_size_is_assumed(batch_size: Any) -> None:
    with pytest.raises(InvalidArgument, match=f"samples of a rank in a step, 1 or more, is {batch_size!r}"):
        ShardwrightPlanner(topology(2), batch_size, hardware="fake")


def test_what_no_request_can_have_is_said_at_once(client: Client) -> None:
    wrong: Any = "auto"
    with pytest.raises(InvalidArgument, match="request must be a mapping of members of POST /plan, is a str"):
        ShardwrightPlanner(topology(2), 6, hardware="fake", request=wrong)
    with pytest.raises(InvalidArgument, match="constraints of a request must be a mapping of members, not list"):
        planner(client, 2, request={"constraints": ["table_wise"]}).plan(Model("meta"), [sharder()])


def test_what_is_no_client_is_said_at_once() -> None:
    for wrong in ("http://127.0.0.1:9", AsyncClient("http://127.0.0.1:9")):
        given: Any = wrong
        with pytest.raises(
            InvalidArgument, match=rf"client must be a .*Client\(url\) say, is a {type(given).__name__}"
        ):
            ShardwrightPlanner(topology(2), 6, hardware="fake", client=given)


def test_what_is_no_storage_reservation_is_said_at_once() -> None:
    with pytest.raises(InvalidArgument, match=r"such as FixedPercentageStorageReservation\(0\.2\), is 0\.2"):
        ShardwrightPlanner(topology(2), 6, hardware="fake", storage_reservation=0.2)


def test_without_sharders_torchrecs_default_ones_are_taken(client: Client) -> None:
    asking = planner(client, 2)
    plan = asking.plan(Model("meta"))
    assert set(plan.plan) == {"first", "second.inner"}
    assert asking.estimate(plan, Model("meta")).max_cost_ms > 0


def test_a_refused_table_is_told_by_its_name(client: Client) -> None:
    named = "x" * 300
    with pytest.raises(InvalidRequest, match=f"/tables/0/name: .*{named[:200]}"):
        planner(client, 2).plan(collection(config(named, ["f"]), device="meta"), [sharder()])


def test_a_plan_of_another_kind_is_not_priced(client: Client) -> None:
    with pytest.raises(InvalidArgument, match="plan must be a ShardingPlan of TorchRec, not str"):
        planner(client, 2).estimate("{}", Model("meta"), [sharder()])


def test_constraints_of_no_table_are_told(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    rules = {"dog": ParameterConstraints(), "hen": ParameterConstraints(), "hog": ParameterConstraints()}
    planner(client, 2, constraints=rules).plan(Model("meta"), [sharder()])
    assert "constraints name tables that the sharders have none of: hen, hog" in caplog.text


def test_no_process_group() -> None:
    with pytest.raises(
        InvalidArgument, match=r"call torch\.distributed\.init_process_group first; a process that is alone"
    ):
        ShardwrightPlanner(topology(2), 6, hardware="fake").collective_plan(Model("meta"), [sharder()])


def test_a_group_that_is_not_the_topologys(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    outcome = planner(client, 4)._outcome(Model("meta"), [sharder()], 2)
    assert "the topology has 4 ranks but the process group 2: make one of world_size 2" in str(outcome.error)
    outcome = planner(client, 2)._outcome(Model("meta"), [sharder()], 4)
    assert outcome.sharding_plan is not None
    assert "the plan is for 2 ranks, as the topology says; the process group has 4" in caplog.text


def test_without_a_service_the_error_says_so(away: Client) -> None:
    asking = ShardwrightPlanner(topology(2), 6, hardware="fake", client=away)
    with pytest.raises(ConnectionFailed, match=r"POST http://127\.0\.0\.1:9/plan: the service cannot be reached"):
        asking.plan(Model("meta"), [sharder()])


def test_a_no_of_the_service_is_no_reason_to_stand_in(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    tight = topology(2, ddr_cap=8000)
    asking = ShardwrightPlanner(tight, 6, hardware="fake", client=client, fallback=True)
    with pytest.raises(Infeasible):
        asking.plan(Model("meta"), [sharder()])
    assert "less what HeuristicalStorageReservation keeps for inputs and the dense part: " in caplog.text
    pinned = {"constraints": {"pin": {"hen": [0]}}}
    asking = ShardwrightPlanner(topology(2), 6, hardware="fake", client=client, fallback=True, request=pinned)
    with pytest.raises(InvalidRequest, match="hen"):
        asking.plan(Model("meta"), [sharder()])


def test_no_service_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHARDWRIGHT_URL", raising=False)
    with pytest.raises(InvalidArgument, match="SHARDWRIGHT_URL"):
        ShardwrightPlanner(topology(2), 6, hardware="fake", fallback=True).plan(Model("meta"), [sharder()])


def test_what_works_on_torchrecs_search_is_refused() -> None:
    with pytest.raises(NotModelled, match="callbacks and plan_loader"):
        ShardwrightPlanner(topology(2), 6, hardware="fake", callbacks=[lambda options: options])


def test_weighted_tables_are_planned_and_the_log_says_how(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    module = collection(config("t", ["f"]), device="meta", is_weighted=True)
    with caplog.at_level(logging.WARNING, "shardwright_client"):
        assert planner(client, 2).plan(module, [sharder()]).plan
    assert "as if lookups had no weights, but t have" in caplog.text
