"""``shardwright profile --active``: which models choose, and a campaign of a few measurements."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import Engine
from typer.testing import CliRunner

from benchmarks.held_rows import HeldRows
from service.cli import app, choosing
from service.cli.choosing import LEAST_S, Choosers
from service.domain.measurements import CHOSEN_BY, ComputeMeasurement, Split
from service.domain.tables import DataType, Optimizer
from service.profiling.campaign import Campaign, CampaignSettings
from service.profiling.pools import generated_pool
from service.registry.store import ModelStore
from service.storage.measurements import MeasurementRepository
from service.training.compute_trainer import ComputeTraining
from service.usecases.train_models import train_compute_version
from tests.cost_models.small_model import COMMUNICATION_FACTS, exchange_weights

HARDWARE = "cpu-test"
SETTINGS = CampaignSettings(HARDWARE, 0, (Optimizer.SGD,), (DataType.FP32,), 2**30)
LONG = 3_600.0
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def rows(count: int) -> list[ComputeMeasurement]:
    """Combinations of a random campaign with made-up costs."""
    campaign = Campaign(generated_pool(200), SETTINGS)
    drawn = [campaign.combination(index) for index in range(count)]
    costs = [0.1 + 1e-5 * sum(t.lookups(c.batch_size) for t in c.tables) for c in drawn]
    return [
        ComputeMeasurement("random", i, HARDWARE, c.tables, c.batch_size, c.optimizer, cost, 2 * cost, 0.01, 0.01, 5,
                           {"device": "a processor"}, NOW)
        for i, (c, cost) in enumerate(zip(drawn, costs, strict=True))
    ]  # fmt: skip


@pytest.fixture(autouse=True)
def _short_trainings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "ComputeTraining", lambda: ComputeTraining(epochs=3))


@pytest.fixture
def models(tmp_path: Path) -> ModelStore:
    """A store with a version of each kind."""
    store = ModelStore(str(tmp_path / "models"))
    store.write(HARDWARE, "communication", exchange_weights(), COMMUNICATION_FACTS)
    train_compute_version(HARDWARE, HeldRows(rows(310), []), store, ComputeTraining(epochs=3), NOW)
    return store


def in_active(count: int) -> list[ComputeMeasurement]:
    """The first train rows, as an active campaign would have stored them."""
    train = [row for row in rows(310) if row.split is Split.TRAIN][:count]
    return [
        replace(row, campaign="active", index=i, environment={**row.environment, CHOSEN_BY: "a version"})
        for i, row in enumerate(train)
    ]


def choosers_of(models: ModelStore, stored: list[ComputeMeasurement], retrain_every: int) -> Choosers:
    return Choosers(models, SETTINGS, "active", HeldRows(stored, []), retrain_every)


def test_the_newest_version_chooses_until_enough_was_measured(
    models: ModelStore, capsys: pytest.CaptureFixture[str]
) -> None:
    choosers = choosers_of(models, [*rows(310), *in_active(10)], 10)
    first = choosers(0, LONG)
    assert first.name.startswith(f"{HARDWARE}/compute/1, ")
    assert first.learnt == {"random": 310}
    assert choosers(9, LONG) is first
    assert choosers(10, LEAST_S - 1) is first
    assert capsys.readouterr().err == ""
    retrained = choosers(10, LONG)
    assert "trained anew, 320 combinations are stored" in capsys.readouterr().err
    trained_on = 10 + sum(row.split is Split.TRAIN for row in rows(310))
    assert retrained.name.startswith(f"trained anew on {trained_on} combinations, ")
    assert retrained.learnt == {"random": 310, "active": 10}
    assert retrained.models.compute is not first.models.compute
    assert retrained.models.communication is first.models.communication
    assert choosers(19, LONG) is retrained
    assert str(models.latest(HARDWARE, "compute")) == f"{HARDWARE}/compute/1"


def test_a_campaign_that_goes_on_is_learnt_from_first_unless_the_version_has_already(models: ModelStore) -> None:
    stored = [*rows(310), *in_active(20)]
    first = choosers_of(models, stored, 20)(20, LONG)
    assert first.name.startswith("trained anew")
    train_compute_version(HARDWARE, HeldRows(stored, []), models, ComputeTraining(epochs=3), NOW)
    newest = choosers_of(models, stored, 20)
    assert newest(20, LONG).name.startswith(f"{HARDWARE}/compute/2, ")
    assert newest(39, LONG).learnt["active"] == 20


def test_no_training_in_between_where_none_is_wanted_or_possible(
    models: ModelStore, capsys: pytest.CaptureFixture[str]
) -> None:
    never = choosers_of(models, rows(310), 0)
    assert never(1_000, LONG) is never(0, LONG)
    too_few = choosers_of(models, rows(5), 10)
    assert too_few(10, LONG) is too_few(0, LONG)
    assert "go on choosing as they are: 5 " in capsys.readouterr().err


def test_without_trained_versions_the_remedy_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = ModelStore(str(tmp_path))
    for settings, kind in (
        (SETTINGS, "compute"),
        (replace(SETTINGS, hardware="a100-80", device="cuda"), "compute"),
        (SETTINGS, "communication"),
    ):
        if kind == "communication":
            train_compute_version(HARDWARE, HeldRows(rows(310), []), store, ComputeTraining(epochs=1), NOW)
        with pytest.raises(SystemExit):
            Choosers(store, settings, "active", HeldRows([], []), 0)
        said = capsys.readouterr().err
        assert f"no {kind} version of {settings.hardware} was trained" in said
        assert f"`shardwright profile --device {settings.device} --hardware {settings.hardware}`" in said
        assert f"`shardwright train {kind} --hardware {settings.hardware}`" in said


@pytest.mark.parametrize(
    "options", [["--kind", "communication"], ["--ranks", "2"], ["--exchanges", "10"]], ids=lambda given: given[0]
)
def test_exchanges_are_not_chosen(options: list[str]) -> None:
    result = CliRunner().invoke(app, ["profile", "--active", *options])
    assert result.exit_code == 2
    assert options[0] in result.stderr
    assert "combinations, no exchanges" in result.stderr


def test_training_in_between_is_of_an_active_campaign() -> None:
    result = CliRunner().invoke(app, ["profile", "--retrain-every", "100"])
    assert result.exit_code == 2
    assert "--retrain-every" in result.stderr


def test_an_active_campaign_is_measured_from_the_command_line_and_goes_on(
    engine: Engine, database_url: str, models: ModelStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", database_url)
    pool = tmp_path / "pool.json"
    tables = [
        {"name": f"t{i}", "num_embeddings": 100 + i, "embedding_dim": 16, "pooling_factor": 0.01 * i} for i in range(60)
    ]
    pool.write_text(json.dumps({"tables": tables}))
    command = ["profile", "--active", "--hardware", HARDWARE, "--tables", str(pool), "--memory-gib", "0.5",
               "--model-store", str(tmp_path / "models"), "--minutes", "2"]  # fmt: skip
    for samples, said in ((2, "2 measured, 0 stored before"), (3, "1 measured, 2 stored before")):
        result = CliRunner().invoke(app, [*command, "--samples", str(samples)])
        assert result.exit_code == 0, result.output
        assert said in result.output
    found = MeasurementRepository(engine).compute(HARDWARE)
    assert [m.index for m in found] == [0, 1, 2]
    assert all(m.campaign.startswith(f"{HARDWARE}-active-") and m.split is Split.TRAIN for m in found)
    assert all(m.environment[CHOSEN_BY].startswith(f"{HARDWARE}/compute/1, ") for m in found)
