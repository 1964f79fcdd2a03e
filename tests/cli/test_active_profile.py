"""``shardwright profile --active``: which models choose, and a campaign of a few measurements."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import Engine
from typer.testing import CliRunner

from service.cli import app
from service.cli.choosing import Choosers
from service.domain.measurements import CHOSEN_BY, ComputeMeasurement, Split
from service.domain.tables import DataType, Optimizer
from service.profiling.campaign import Campaign, CampaignSettings
from service.profiling.pools import generated_pool
from service.registry.store import ModelStore
from service.storage.measurements import MeasurementRepository
from service.training.compute_trainer import ComputeTraining
from service.usecases.train_models import train_compute_version
from tests.cost_models.small_model import COMMUNICATION_FACTS, exchange_weights
from tests.training.memory_store import Memory

HARDWARE = "cpu-test"
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def rows(count: int) -> list[ComputeMeasurement]:
    """Combinations of a random campaign with made-up costs."""
    settings = CampaignSettings(HARDWARE, 0, (Optimizer.SGD,), (DataType.FP32,), 2**30)
    campaign = Campaign(generated_pool(200), settings)
    drawn = [campaign.combination(index) for index in range(count)]
    costs = [0.1 + 1e-5 * sum(t.lookups(c.batch_size) for t in c.tables) for c in drawn]
    return [
        ComputeMeasurement("random", i, HARDWARE, c.tables, c.batch_size, c.optimizer, cost, 2 * cost, 0.01, 0.01, 5,
                           {"device": "a processor"}, NOW)
        for i, (c, cost) in enumerate(zip(drawn, costs, strict=True))
    ]  # fmt: skip


@pytest.fixture
def models(tmp_path: Path) -> ModelStore:
    """A store with a version of each kind."""
    store = ModelStore(str(tmp_path / "models"))
    store.write(HARDWARE, "communication", exchange_weights(), COMMUNICATION_FACTS)
    train_compute_version(HARDWARE, Memory(rows(300), []), store, ComputeTraining(epochs=3), NOW)
    return store


def test_the_newest_version_chooses_until_enough_was_measured(models: ModelStore) -> None:
    choosers = Choosers(models, HARDWARE, Memory(rows(310), []), 10)
    first = choosers(0)
    assert first.name.startswith(f"{HARDWARE}/compute/1, ")
    assert choosers(9) is first
    retrained = choosers(10)
    trained_on = sum(row.split is Split.TRAIN for row in rows(310))
    assert retrained.name.startswith(f"trained anew on {trained_on} combinations, ")
    assert retrained.models.compute is not first.models.compute
    assert retrained.models.communication is first.models.communication
    assert choosers(19) is retrained
    assert str(models.latest(HARDWARE, "compute")) == f"{HARDWARE}/compute/1"


def test_no_training_in_between_where_none_is_wanted_or_possible(
    models: ModelStore, capsys: pytest.CaptureFixture[str]
) -> None:
    never = Choosers(models, HARDWARE, Memory(rows(310), []), 0)
    assert never(1_000) is never(0)
    too_few = Choosers(models, HARDWARE, Memory(rows(5), []), 10)
    assert too_few(10) is too_few(0)
    assert "go on choosing as they are: 5 " in capsys.readouterr().err


def test_without_trained_versions_the_remedy_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = ModelStore(str(tmp_path))
    for hardware, kind in ((HARDWARE, "compute"), ("a100-80", "compute")):
        with pytest.raises(SystemExit):
            Choosers(store, hardware, Memory([], []), 0)
        said = capsys.readouterr().err
        assert f"no {kind} version of {hardware} was trained" in said
        assert f"`shardwright train {kind} --hardware {hardware}`" in said
    train_compute_version(HARDWARE, Memory(rows(300), []), store, ComputeTraining(epochs=1), NOW)
    with pytest.raises(SystemExit):
        Choosers(store, HARDWARE, Memory([], []), 0)
    assert "`shardwright train communication --hardware cpu-test`" in capsys.readouterr().err


def test_exchanges_are_not_chosen() -> None:
    result = CliRunner().invoke(app, ["profile", "--active", "--kind", "communication"])
    assert result.exit_code == 1
    assert "--active: chooses combinations, no exchanges" in result.output


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
