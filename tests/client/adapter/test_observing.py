"""Steps are measured, gathered and sent; whatever goes wrong there, the training goes on."""

import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torchrec.distributed.model_parallel import DistributedModelParallel

from benchmarks.observing import EVERY, measured, report
from shardwright_client import Client, InvalidArgument, Observation, Plan, Shard
from shardwright_client.torchrec import PlanObserver, timing
from shardwright_client.torchrec.reporting import Reporter
from tests.client.adapter.conftest import NOWHERE
from tests.client.adapter.models import batch, loss_of, seeded_model
from tests.client.adapter.ranks import ALONE, PLAN, alone, plan_of, train_alone
from tests.client.asked import silent_server
from tests.client.conftest import ROOT

pytestmark = pytest.mark.filterwarnings("ignore")


@dataclass
class Told:
    """In place of the service."""

    observations: list[Observation] = field(default_factory=list)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    kept = Told()
    monkeypatch.setenv("SHARDWRIGHT_URL", NOWHERE)
    monkeypatch.setattr(Reporter, "report", lambda _, observation: kept.observations.append(observation))
    return kept


@pytest.fixture
def model(tmp_path: Path) -> Iterator[DistributedModelParallel]:
    """A model on the one rank of a group."""
    before = logging.root.manager.disable
    with alone(tmp_path) as sharded:
        logging.disable(before)
        yield sharded
    logging.disable(before)


def test_sampled_steps_are_gathered_into_ranges(model: DistributedModelParallel, told: Told) -> None:
    with PlanObserver(model, PLAN, sample_every=2, report_every=4, first_step=100) as observer:
        train_alone(model, observer, 11)
        assert [observation.steps for observation in told.observations] == [(100, 104), (104, 108)]
    assert [observation.steps for observation in told.observations] == [(100, 104), (104, 108), (108, 111)]
    for observation in told.observations:
        assert observation.forward_compute_ms > 0
        assert observation.backward_compute_ms > 0
        assert observation.total_ms == pytest.approx(observation.forward_compute_ms + observation.backward_compute_ms)


def test_parts_are_between_their_marks(
    model: DistributedModelParallel, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that ticks at each mark.

    The first collection has a lookup for each way of sharding, one of them with an operator for each way of pooling;
    the second has one. A rank that is alone has nothing to exchange.
    """
    ticks = iter(range(10_000))
    monkeypatch.setattr(timing.HostClock, "mark", lambda _: next(ticks) / 1000)
    with PlanObserver(model, PLAN, sample_every=1, report_every=1) as observer:
        train_alone(model, observer, 2)
    for observation in told.observations:
        assert (observation.forward_compute_ms, observation.forward_comm_ms) == pytest.approx((2 + 1, 0))
        assert (observation.backward_compute_ms, observation.backward_comm_ms) == pytest.approx((3 + 1, 0))


def test_lookups_that_run_while_others_are_exchanged_count_once() -> None:
    clock, marks = timing.HostClock(), timing.StepMarks()
    for direction in (marks.forward, marks.backward):
        one = timing._Pass()
        one.lookups += [timing._Interval(0.0, 0.003), timing._Interval(0.005, 0.006)]
        one.exchanges += [timing._Interval(0.003, 0.010), timing._Interval(0.006, 0.012)]
        direction.append(one)
    costs = marks.costs_ms(clock)
    assert costs is not None
    assert (costs["forward_compute_ms"], costs["forward_comm_ms"]) == pytest.approx((4.0, 8.0))
    assert costs["total_ms"] == pytest.approx(24.0)
    assert marks.passed(clock)
    marks.backward[0].exchanges[0].end = None
    assert not marks.passed(clock)


def test_measuring_changes_nothing_that_is_computed(model: DistributedModelParallel, told: Told) -> None:
    torch.manual_seed(0)
    state = {name: parameter.clone() for name, parameter in model.named_parameters()}
    with PlanObserver(model, None) as unobserved:
        plain = train_alone(model, unobserved, 4)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(state[name])
    with PlanObserver(model, PLAN, sample_every=1, report_every=4) as observer:
        assert train_alone(model, observer, 4) == plain
    assert len(told.observations) == 1


def test_evaluation_between_steps_does_not_count(model: DistributedModelParallel, told: Told) -> None:
    with PlanObserver(model, PLAN, sample_every=1, report_every=1) as observer:
        model.eval()
        loss_of(model, batch(0, 0))
        observer.step()
        model.train()
        train_alone(model, observer, 1)
    assert [observation.steps for observation in told.observations] == [(1, 2)]


def test_evaluation_within_a_step_does_not_count(
    model: DistributedModelParallel, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = iter(range(10_000))
    monkeypatch.setattr(timing.HostClock, "mark", lambda _: next(ticks) / 1000)
    with PlanObserver(model, PLAN, sample_every=1, report_every=1) as observer:
        loss_of(model, batch(0, 0)).backward()  # type: ignore[no-untyped-call]
        model.eval()
        loss_of(model, batch(1, 0))
        model.train()
        observer.step()
        train_alone(model, observer, 1)
    evaluated, plain = told.observations
    assert evaluated.forward_compute_ms == pytest.approx(plain.forward_compute_ms)


def test_several_batches_of_one_step_are_not_observed_and_told_once(
    model: DistributedModelParallel, told: Told, caplog: pytest.LogCaptureFixture
) -> None:
    with PlanObserver(model, PLAN, sample_every=1, report_every=1) as observer:
        for _ in range(2):
            loss_of(model, batch(0, 0)).backward()  # type: ignore[no-untyped-call]
            train_alone(model, observer, 1)
        train_alone(model, observer, 1)
    assert [observation.steps for observation in told.observations] == [(2, 3)]
    assert caplog.text.count("call step after each backward pass") == 1
    assert "step 0 is not observed, nor is any like it" in caplog.text


def test_a_step_that_fails_and_is_left_out_holds_up_no_other(model: DistributedModelParallel, told: Told) -> None:
    def fail(*_: Any) -> None:
        raise MemoryError

    with PlanObserver(model, PLAN, sample_every=1, report_every=1) as observer:
        failing = next(m for m in model.modules() if hasattr(m, "_lookups"))._lookups[0].register_forward_pre_hook(fail)
        with pytest.raises(MemoryError):
            loss_of(model, batch(0, 0))
        failing.remove()
        observer.step()
        train_alone(model, observer, 2)
        assert [observation.steps for observation in told.observations] == [(1, 2), (2, 3)]


def test_a_plan_of_another_planner_is_not_observed(model: DistributedModelParallel, told: Told) -> None:
    with PlanObserver(model, None, sample_every=1, report_every=1) as observer:
        train_alone(model, observer, 2)
    assert not told.observations


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (plan_of(ALONE, 2), "is for 2 ranks, but the model runs on 1"),
        (
            plan_of([*ALONE, Shard("hen", (0, 4), 0)], 1),
            "of table 'hen' the plan has columns [0, 4] on rank 0, the model no columns",
        ),
        (plan_of(ALONE[:-1], 1), "'second.inner/cat' the plan has no columns, the model columns [0, 8] on rank 0"),
        (
            plan_of([shard for shard in ALONE if shard.table != "dog"] + [Shard("dog", (0, 16), 0)], 1),
            "plan has columns [0, 16] on rank 0, the model columns [0, 8] on rank 0; columns [8, 16] on rank 0",
        ),
        (
            plan_of([replace(shard, device=1) if shard.table == "cow" else shard for shard in ALONE], 1),
            "of table 'cow' the plan has columns [0, 24] on rank 1, the model columns [0, 24] on rank 0",
        ),
    ],
)
def test_a_plan_that_does_not_run_is_not_observed(
    model: DistributedModelParallel, told: Told, caplog: pytest.LogCaptureFixture, plan: Plan, said: str
) -> None:
    with PlanObserver(model, plan, sample_every=1, report_every=1) as observer:
        assert len(train_alone(model, observer, 2)) == 2
    assert not told.observations
    (record,) = caplog.records
    assert "nothing is observed, training goes on: " in record.message
    assert said in record.message


def test_a_way_of_sharding_that_no_plan_has_is_not_observed(
    model: DistributedModelParallel, told: Told, caplog: pytest.LogCaptureFixture
) -> None:
    model.module.first.module_sharding_plan["cow"].sharding_type = "row_wise"
    with PlanObserver(model, PLAN, sample_every=1, report_every=1) as observer:
        train_alone(model, observer, 2)
    assert not told.observations
    assert "training goes on: table 'cow' of module 'first' is sharded row_wise" in caplog.text


def test_a_model_that_is_wrapped_once_more_is_observed(model: DistributedModelParallel, told: Told) -> None:
    """Paths are those of the model that was planned."""
    with PlanObserver(nn.ModuleDict({"trained": model}), PLAN, sample_every=1, report_every=1) as observer:
        train_alone(model, observer, 1)
    assert len(told.observations) == 1


def test_a_model_that_is_not_sharded_is_told_of(told: Told, caplog: pytest.LogCaptureFixture) -> None:
    with PlanObserver(seeded_model(), PLAN, sample_every=1, report_every=1) as observer:
        train_alone(seeded_model(), observer, 1)
    assert "no sharded EmbeddingBagCollection is observed" in caplog.text
    assert not told.observations


@pytest.mark.parametrize("broken", ["mark", "passed", "between_ms"])
def test_a_clock_that_breaks_ends_the_observing_alone(
    model: DistributedModelParallel, told: Told, monkeypatch: pytest.MonkeyPatch, caplog: Any, broken: str
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("no such clock")

    monkeypatch.setattr(timing.HostClock, broken, fail)
    with PlanObserver(model, PLAN, sample_every=1, report_every=1) as observer:
        assert len(train_alone(model, observer, 3)) == 3
    assert not told.observations
    assert caplog.text.count("training goes on") == 1
    assert "no such clock" in caplog.text


def test_another_release_of_torchrec_is_not_observed_and_trains(
    model: DistributedModelParallel, told: Told, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    with monkeypatch.context() as renamed:
        for sharded in [module for module in model.modules() if hasattr(module, "_lookups")]:
            renamed.delattr(sharded, "_lookups")
        observer = PlanObserver(model, PLAN, sample_every=1, report_every=1)
    with observer:
        assert len(train_alone(model, observer, 2)) == 2
    assert not told.observations
    assert caplog.text.count("nothing is observed, training goes on") == 1
    assert "no attribute '_lookups'" in caplog.text


def test_a_service_that_is_away_is_logged(model: DistributedModelParallel, caplog: pytest.LogCaptureFixture) -> None:
    with (
        Client("http://127.0.0.1:9", timeout_s=0.2) as client,
        PlanObserver(model, PLAN, client=client, sample_every=1, report_every=1) as observer,
    ):
        assert len(train_alone(model, observer, 2)) == 2
    assert "steps [0, 1] are not observed: POST http://127.0.0.1:9/plans/" in caplog.text
    assert "steps [1, 2] are not observed" in caplog.text


def test_a_service_that_never_answers_is_not_waited_for(
    model: DistributedModelParallel, caplog: pytest.LogCaptureFixture
) -> None:
    with silent_server() as url, Client(url, timeout_s=20) as client:
        observer = PlanObserver(model, PLAN, client=client, sample_every=1, report_every=1)
        began = time.monotonic()
        assert len(train_alone(model, observer, 80)) == 80
        observer.close(0.3)
        assert time.monotonic() - began < 10
    assert "are not observed: 64 reports wait" in caplog.text
    assert "the last reports are not sent after 0.3 s and are not waited for" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("closing", ["", "0.5"])
def test_a_service_that_never_answers_keeps_no_process_from_ending(tmp_path: Path, closing: str) -> None:
    """Closed or not: the thread that waits for the answer ends with the process."""
    paths = os.pathsep.join((str(ROOT), str(ROOT / "client")))
    with silent_server() as url:
        command = [sys.executable, "-W", "ignore", "-m", "tests.client.adapter.unanswered", url, str(tmp_path), closing]
        environment = os.environ | {"PYTHONPATH": paths}
        with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as training:
            assert training.stdout is not None
            assert training.stdout.readline() == "trained\n"
            began = time.monotonic()
            assert training.wait(20) == 0
            assert time.monotonic() - began < 15


def test_no_service_is_named(
    model: DistributedModelParallel, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SHARDWRIGHT_URL", raising=False)
    with PlanObserver(model, PLAN, sample_every=1, report_every=1) as observer:
        assert caplog.text.count("nothing is observed, training goes on: ") == 1
        assert "SHARDWRIGHT_URL" in caplog.text
        assert len(train_alone(model, observer, 1)) == 1
    assert len(caplog.records) == 1


def test_an_address_is_no_client(model: DistributedModelParallel, caplog: pytest.LogCaptureFixture) -> None:
    address: Any = NOWHERE
    with PlanObserver(model, PLAN, client=address, sample_every=1, report_every=1) as observer:
        assert "client must be a shardwright_client.Client, Client(url) say, is a str" in caplog.text
        assert len(train_alone(model, observer, 1)) == 1
    assert len(caplog.records) == 1


@pytest.mark.slow
def test_the_benchmark_compares_blocks_of_steps() -> None:
    blocks = measured(2, 5)
    assert {name: len(of_blocks) for name, of_blocks in blocks.items()} == dict.fromkeys(EVERY, 2)
    plain, *_ = report(blocks)
    assert "measured none: " in plain
    assert "1.000 of unobserved" in plain


def test_torchrecs_plan_is_not_the_services(model: DistributedModelParallel) -> None:
    with pytest.raises(InvalidArgument, match=r"plan must be ShardwrightPlanner\.answer, not ShardingPlan"):
        PlanObserver(model, model.plan)


@pytest.mark.parametrize("numbers", [{"sample_every": 0}, {"sample_every": 3, "report_every": 2}, {"first_step": -1}])
def test_steps_that_cannot_be_counted(model: DistributedModelParallel, numbers: dict[str, int]) -> None:
    with pytest.raises(InvalidArgument, match="sample_every"):
        PlanObserver(model, PLAN, **numbers)  # type: ignore[arg-type]
