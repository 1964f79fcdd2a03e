"""Training on our plans comes to what training unsharded comes to: losses and every weight."""

from functools import partial
from pathlib import Path

import pytest
import torch
from sqlalchemy import Engine, text

from service.profiling.ranks import run_ranks
from shardwright_client import Client, Shard
from tests.client.adapter.models import TABLE_PATHS, trained_unsharded
from tests.client.adapter.ranks import OPTIMIZERS, Trained, Training, train_all
from tests.client.adapter.unusual import MODELS, losses_of_all, unsharded_losses
from tests.client.conftest import RealService

pytestmark = pytest.mark.slow

TIME_LIMIT_S = 300
PARTS = ("forward_compute", "forward_comm", "backward_compute", "backward_comm")


def _uneven(ranks: int) -> tuple[Shard, ...]:
    """Cuts of unlike widths; rank 0 has two slices of a table that do not touch, the last rank one of every table."""
    last = ranks - 1
    return (
        Shard("first/cat", (0, 8), 0),
        Shard("first/cat", (8, 24), last),
        Shard("first/cat", (24, 32), 0),
        Shard("dog", (0, 12), last),
        Shard("dog", (12, 16), 0),
        Shard("cow", (0, 24), last),
        Shard("second.inner/cat", (0, 4), last),
        Shard("second.inner/cat", (4, 8), last),
    )


def _trainings(ranks: int) -> list[Training]:
    return [
        Training("sgd", observed=True),
        Training("sgd", constraints={"sharding_types": ["column_wise"]}, observed=True),
        Training("sgd", constraints={"pin": {name: [0] for name in TABLE_PATHS}}, observed=True),
        Training("sgd", observed=True, broken_clock_of=1),
        Training("sgd", _uneven(ranks)),
        Training("rowwise_adagrad", constraints={"sharding_types": ["table_wise"]}),
        Training("rowwise_adagrad", _uneven(ranks)),
        Training("rowwise_adagrad", _uneven(ranks), resumed=True),
    ]


@pytest.mark.parametrize("ranks", [2, 4])
def test_losses_and_weights_are_those_of_an_unsharded_run(
    ranks: int, real_service: RealService, service_engine: Engine, tmp_path: Path
) -> None:
    trainings = _trainings(ranks)
    answers = run_ranks(partial(train_all, tmp_path, real_service.url, ranks, trainings), ranks, TIME_LIMIT_S)
    for training, of_ranks in zip(trainings, zip(*answers, strict=True), strict=True):
        assert len({trained.shards for trained in of_ranks}) == 1
        _check(training, of_ranks)
    _check_cuts(answers[0])
    for training, trained in zip(trainings, answers[0], strict=True):
        if training.observed:
            _check_observed(training, trained, ranks, real_service, service_engine)


@pytest.mark.parametrize("ranks", [1, 3])
def test_unusual_models_train_as_unsharded(ranks: int, real_service: RealService, tmp_path: Path) -> None:
    told = run_ranks(partial(losses_of_all, tmp_path, real_service.url, ranks), ranks, TIME_LIMIT_S)
    assert all(losses == told[0] for losses in told)
    for name, losses in told[0].items():
        tolerance = 1e-3 if name == "half precision" else 1e-5
        assert losses == pytest.approx(unsharded_losses(MODELS[name], ranks), rel=tolerance), name
        assert losses[0] != losses[1]


def _check(training: Training, of_ranks: tuple[Trained, ...]) -> None:
    losses, weights = trained_unsharded(len(of_ranks), OPTIMIZERS[training.optimizer], of_ranks[0].shards)
    means = torch.tensor([trained.losses for trained in of_ranks]).mean(0)
    torch.testing.assert_close(means, torch.tensor(losses), rtol=1e-5, atol=1e-6)
    for name, whole in weights.items():
        if name.startswith("top"):
            continue
        columns = torch.full_like(whole, torch.nan)
        for trained in of_ranks:
            for of_table, first, piece in trained.pieces:
                if of_table == name:
                    columns[:, first : first + piece.shape[1]] = piece
        torch.testing.assert_close(columns, whole, rtol=1e-5, atol=1e-6)
    top = torch.cat([whole.flatten() for name, whole in weights.items() if name.startswith("top")])
    for trained in of_ranks:
        torch.testing.assert_close(trained.top, top, rtol=1e-5, atol=1e-6)


def _check_cuts(trained: list[Trained]) -> None:
    """The service's plans are of the kind that the constraints ask for."""
    assert {shard.table for shard in trained[0].shards} == set(TABLE_PATHS)
    assert all(shard.sharding_type == "column_wise" for shard in trained[1].shards)
    assert {shard.device for shard in trained[2].shards} == {0}
    assert all(shard.sharding_type == "table_wise" for shard in trained[5].shards)


def _check_observed(training: Training, trained: Trained, ranks: int, service: RealService, engine: Engine) -> None:
    """Every rank whose clock works has reported its steps of the launch, every part of them."""
    assert trained.launch is not None
    plan_id, launch_id = trained.launch
    with Client(service.url) as client:
        assert client.get_plan(plan_id).plan_id == plan_id
    with engine.connect() as connection:
        query = text("SELECT * FROM observations WHERE plan_id = :plan AND launch_id = :launch")
        rows = connection.execute(query, {"plan": plan_id, "launch": launch_id}).mappings().all()
    assert sorted(row["rank"] for row in rows) == [rank for rank in range(ranks) if rank != training.broken_clock_of]
    for row in rows:
        parts = {part: row[f"{part}_ms"] for part in PARTS}
        looks_up = any(shard.device == row["rank"] for shard in trained.shards)
        assert {part for part in PARTS if parts[part] == 0} == (set() if looks_up else {"backward_compute"})
        assert row["total_ms"] == pytest.approx(sum(parts.values()))
