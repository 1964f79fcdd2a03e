"""The planner against a real service: one plan a launch, clear errors, TorchRec's planner where it is let."""

import logging
import pickle
import random
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from torch import nn
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints
from torchrec.distributed.types import ShardingPlanner

from service.profiling.ranks import run_ranks
from shardwright_client import Client, ProblemError
from shardwright_client.torchrec import (
    NotModelled,
    ShardwrightPlanner,
    find_tables,
    plan_from_json,
    plan_to_json,
    to_shards,
)
from tests.api.processes import wait_for
from tests.client.adapter.conftest import NOWHERE
from tests.client.adapter.models import Model, batch, collection, config, sharder, topology
from tests.client.adapter.ranks import LAUNCH_TIMEOUT_S, ask_all, ask_slowly, planner
from tests.client.asked import Answers, problem
from tests.client.conftest import RealService

pytestmark = pytest.mark.filterwarnings("ignore")

MODELS = 20
RANKS = 8


def test_the_services_plan_is_torchrecs_plan_and_comes_back_from_its_json(client: Client) -> None:
    module, asking = Model("meta"), planner(client, 2, request={"constraints": {"max_shard_dim": 16}})
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


@pytest.mark.parametrize("ranks", [1, 16])
def test_any_number_of_ranks_is_planned_for(client: Client, ranks: int) -> None:
    """One, and more than there are tables."""
    asking = planner(client, ranks)
    asking.plan(Model("meta"), [sharder()])
    assert asking.answer is not None
    assert len(asking.answer.devices) == ranks


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
        wait_for(lambda: launched.done() or real_service.plans(), LAUNCH_TIMEOUT_S)
        real_service.restart()
        told = launched.result()
    assert all(each == told[0] for each in told)
    shards, answer, _ = told[0]
    assert sorted(shards, key=str) == sorted(answer.shards, key=str)
    with Client(real_service.url) as client:
        assert client.get_plan(answer.plan_id) == answer


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


@pytest.mark.parametrize("answer", [problem(503, "planner_busy"), problem(500, "internal_error")])
def test_it_stands_in_for_a_service_that_has_no_room_or_fails(answer: httpx.Response) -> None:
    module, transport = Model("meta"), httpx.MockTransport(Answers(answer))
    with Client(NOWHERE, timeout_s=0.1, transport=transport) as client:
        strict, lenient = (
            ShardwrightPlanner(topology(2), 6, hardware="fake", client=client, fallback=fallback, debug=False)
            for fallback in (False, True)
        )
        with pytest.raises(ProblemError):
            strict.plan(module, [sharder()])
        assert set(lenient.plan(module, [sharder()]).plan) == {"first", "second.inner"}
    assert lenient.answer is None


@pytest.mark.parametrize("kind", ["no_plan_in_time", "unknown_hardware"])
def test_it_does_not_stand_in_where_the_service_says_no(kind: str) -> None:
    transport = httpx.MockTransport(Answers(problem(422, kind)))
    with Client(NOWHERE, transport=transport) as client, pytest.raises(ProblemError, match=kind):
        planner(client, 2, fallback=True).plan(Model("meta"), [sharder()])


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
