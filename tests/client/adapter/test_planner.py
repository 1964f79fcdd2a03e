"""The planner against a real service: one plan a launch, clear errors, TorchRec's planner where it is let."""

import logging
import pickle
import random
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from torch import nn
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints
from torchrec.distributed.types import ShardingPlanner

from service.profiling.ranks import run_ranks
from shardwright_client import Client, ConnectionFailed, Infeasible, InvalidArgument, InvalidRequest
from shardwright_client.torchrec import (
    NotModelled,
    ShardwrightPlanner,
    find_tables,
    plan_from_json,
    plan_to_json,
    to_shards,
)
from tests.api.processes import wait_for
from tests.client.adapter.models import Model, batch, collection, config, sharder, topology
from tests.client.adapter.ranks import LAUNCH_TIMEOUT_S, ask_all, ask_slowly, planner
from tests.client.conftest import RealService

pytestmark = pytest.mark.filterwarnings("ignore")

NOWHERE = "http://127.0.0.1:9"
MODELS = 20
RANKS = 8


@pytest.fixture
def client(real_service: RealService) -> Iterator[Client]:
    """A client of the service."""
    with Client(real_service.url) as asked:
        yield asked


@pytest.fixture
def away() -> Iterator[Client]:
    """A client of a service that is not there."""
    with Client(NOWHERE, timeout_s=0.5) as client:
        yield client


def test_the_services_plan_is_torchrecs_plan_and_comes_back_from_its_json(client: Client) -> None:
    module, asking = Model("meta"), planner(client, 2, request={"constraints": {"max_shard_dim": 12}})
    assert isinstance(asking, ShardingPlanner)
    plan = asking.plan(module, [sharder()])
    assert asking.answer is not None
    tables = find_tables(module, [sharder()])
    back = to_shards(plan_from_json(plan_to_json(plan)), tables)
    assert {shard.sharding_type for shard in back} == {"table_wise", "column_wise"}
    assert sorted(back, key=str) == sorted(asking.answer.shards, key=str)
    priced = asking.estimate(plan, module, [sharder()])
    assert priced.max_cost_ms == pytest.approx(asking.answer.max_cost_ms)


def test_pinned_models_price_too_but_for_a_policy(client: Client) -> None:
    asking = planner(client, 2, request={"algorithm": "dreamshard"})
    asking.plan(Model("meta"), [sharder()])
    assert asking.answer is not None
    assert "dreamshard" in asking.answer.models
    again = planner(client, 2, request={"algorithm": "dreamshard", "models": dict(asking.answer.models)})
    plan = again.plan(Model("meta"), [sharder()])
    priced = again.estimate(plan, Model("meta"), [sharder()])
    assert priced.models.items() < asking.answer.models.items()


def test_time_and_launch_are_the_planners_own(away: Client) -> None:
    asking = ShardwrightPlanner(
        topology(2),
        6,
        hardware="fake",
        client=away,
        launch_id="mine",
        request={"launch_id": "other"},
        timeout_seconds=3,
    )
    request = asking.question(Model("meta"), [sharder()]).request
    assert (request["launch_id"], request["time_limit_ms"]) == ("mine", 3000)


def test_a_question_with_measured_samples_is_planned(client: Client) -> None:
    samples = [batch(0, rank).features for rank in range(2)]
    asking = planner(client, 2, samples=samples)
    assert asking.plan(Model("meta"), [sharder()]).plan
    assert asking.answer is not None
    assert not any("reuse" in assumption for assumption in asking.answer.assumptions)


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


@pytest.mark.parametrize("ranks", [1, 16])
def test_any_number_of_ranks_is_planned_for(client: Client, ranks: int) -> None:
    """One, and more than there are tables."""
    asking = planner(client, ranks)
    asking.plan(Model("meta"), [sharder()])
    assert asking.answer is not None
    assert len(asking.answer.devices) == ranks


def test_no_process_group() -> None:
    with pytest.raises(
        InvalidArgument, match="call torch.distributed.init_process_group first; a process that is alone"
    ):
        ShardwrightPlanner(topology(2), 6, hardware="fake").collective_plan(Model("meta"), [sharder()])


def test_a_group_that_is_not_the_topologys(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    outcome = planner(client, 4)._outcome(Model("meta"), [sharder()], 2)
    assert "the topology has 4 ranks but the process group 2: make one of world_size 2" in str(outcome.error)
    outcome = planner(client, 2)._outcome(Model("meta"), [sharder()], 4)
    assert outcome.sharding_plan is not None
    assert "the plan is for 2 ranks, as the topology says; the process group has 4" in caplog.text


def _model(seed: int) -> Any:
    draw = random.Random(seed)
    tables = [
        config(f"t{i}", [f"f{i}"], draw.choice([16, 32, 64, 128, 256]), draw.choice([100, 10_000, 3_000_000]))
        for i in range(draw.randint(1, 4))
    ]
    return collection(*tables, device="meta")


def _torchrecs(module: nn.Module, types: Sequence[str] | None, ranks: int) -> Any:
    names = [table.table for table in find_tables(module, [sharder()])]
    rules = {name: ParameterConstraints(sharding_types=types and list(types), min_partition=16) for name in names}
    own = EmbeddingShardingPlanner(topology(ranks, "cuda"), 64, constraints=rules, debug=False)
    return own.plan(module, [sharder()])


@pytest.mark.slow
def test_torchrecs_own_plans_are_priced_or_refused(client: Client) -> None:
    """With the types that Shardwright has a model of each is priced; with all of TorchRec's own some are refused."""
    refused = 0
    for seed in range(MODELS):
        module, ranks = _model(seed), 2 + 2 * (seed % 2)
        asking = ShardwrightPlanner(topology(ranks, "cuda"), 64, hardware="fake", client=client)
        own = _torchrecs(module, ("table_wise", "column_wise"), ranks)
        estimate = asking.estimate(own, module, [sharder()])
        assert len(estimate.devices) == ranks
        assert estimate.max_cost_ms > 0
        try:
            asking.estimate(_torchrecs(module, None, ranks), module, [sharder()])
        except NotModelled as error:
            assert "Shardwright models table_wise and column_wise" in str(error) or "compute kernel" in str(error)
            refused += 1
    assert 0 < refused < MODELS


def _shards_told(url: str, launch_id: str, _: int) -> Any:
    with Client(url) as client:
        asking = planner(client, 2, launch_id=launch_id, request={"algorithm": "random"})
        asking.plan(Model("meta"), [sharder()])
    assert asking.answer is not None
    return asking.answer.plan_id, asking.answer.shards


def test_eight_ranks_that_ask_at_once_get_one_plan(real_service: RealService) -> None:
    with ThreadPoolExecutor(RANKS) as ranks:
        told = set(ranks.map(partial(_shards_told, real_service.url, "at once"), range(RANKS)))
    assert len(told) == 1


@pytest.mark.slow
def test_a_service_that_restarts_in_the_middle_of_a_launch_does_not_break_it(
    real_service: RealService, tmp_path: Path
) -> None:
    """Eight ranks plan together; the service is killed while it makes their plan, and started again."""
    ask = partial(ask_slowly, tmp_path, real_service.url, RANKS)
    with ThreadPoolExecutor(1) as launcher:
        launched = launcher.submit(run_ranks, ask, RANKS, LAUNCH_TIMEOUT_S)
        wait_for(real_service.plans, LAUNCH_TIMEOUT_S)
        real_service.restart()
        told = launched.result()
    assert all(each == told[0] for each in told)
    shards, answer, _ = told[0]
    assert sorted(shards, key=str) == sorted(answer.shards, key=str)
    with Client(real_service.url) as client:
        assert client.get_plan(answer.plan_id) == answer


def test_without_a_service_the_error_says_so(away: Client) -> None:
    asking = ShardwrightPlanner(topology(2), 6, hardware="fake", client=away)
    with pytest.raises(ConnectionFailed, match=r"POST http://127\.0\.0\.1:9/plan: the service cannot be reached"):
        asking.plan(Model("meta"), [sharder()])


def test_torchrecs_planner_stands_in_and_the_log_says_so(away: Client, caplog: pytest.LogCaptureFixture) -> None:
    asking = ShardwrightPlanner(topology(2), 6, hardware="fake", client=away, fallback=True, debug=False)
    module = Model("meta")
    with caplog.at_level(logging.WARNING, "shardwright_client"):
        plan = asking.plan(module, [sharder()])
    own = EmbeddingShardingPlanner(topology(2), 6, debug=False).plan(module, [sharder()])
    assert plan_to_json(plan) == plan_to_json(own)
    assert asking.answer is None
    assert "TorchRec's planner stands in for Shardwright's" in caplog.text
    assert "cannot be reached" in caplog.text


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


def test_which_launch_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def launch_id(**options: Any) -> str:
        return ShardwrightPlanner(topology(2), 6, hardware="fake", **options).launch_id

    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    assert launch_id() != launch_id()
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert launch_id() != launch_id()
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job 7")
    assert launch_id() == "job 7"
    assert launch_id(launch_id="mine") == "mine"


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


@pytest.mark.slow
def test_ranks_get_one_plan_or_one_error_together(real_service: RealService, tmp_path: Path) -> None:
    urls = [real_service.url, NOWHERE]
    first, second = run_ranks(partial(ask_all, tmp_path, urls, 2), 2, 120)
    assert first == second
    (_, answer, _), (kind, message) = first
    assert answer.saved
    assert kind == "ConnectionFailed"
    assert "cannot be reached" in message


class _Unpicklable(Exception):
    def __init__(self) -> None:
        super().__init__("held")
        self.lock = threading.Lock()


def test_an_error_that_cannot_be_sent_is_told_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    asking = ShardwrightPlanner(topology(2), 6, hardware="fake")

    def broken(*_: Any) -> None:
        raise _Unpicklable

    monkeypatch.setattr(asking, "plan", broken)
    outcome = asking._outcome(Model("meta"), [sharder()], 2)
    assert str(pickle.loads(pickle.dumps(outcome)).error) == "_Unpicklable: held"
