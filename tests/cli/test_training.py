"""``shardwright train compute --from-analytic``: from stored measurements to a version that is judged and loaded."""

import json
from pathlib import Path

import pytest
from sqlalchemy import Engine
from typer.testing import CliRunner

from service.cli import app
from service.cost_models.calibrated import CalibratedCompute
from service.domain.versions import Version
from service.registry.store import ModelStore
from service.storage.measurements import MeasurementRepository
from tests.training.data_sheet_machine import synthetic


def test_a_version_is_calibrated_and_evaluated(
    engine: Engine, database_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DATABASE_URL", database_url)
    MeasurementRepository(engine).add_compute_many(synthetic(90))
    trained = CliRunner().invoke(
        app, ["train", "compute", "--from-analytic", "--samples", "40", "--model-store", str(tmp_path)]
    )
    assert trained.exit_code == 0, trained.output
    assert "cpu-fbgemm/compute/1, trained on 40 combinations" in trained.stdout
    assert "the MAPE of" not in trained.stdout
    assert "`shardwright models promote cpu-fbgemm/compute/1`" in trained.stdout
    assert isinstance(ModelStore(str(tmp_path)).compute_model(Version("cpu-fbgemm", "compute", 1)), CalibratedCompute)
    judged = CliRunner().invoke(app, ["evaluate", "--model", "compute", "--json", "--model-store", str(tmp_path)])
    assert judged.exit_code == 0, judged.output
    (answer,) = json.loads(judged.stdout)["models"]
    stated = ModelStore(str(tmp_path)).read(Version("cpu-fbgemm", "compute", 1))[0]["metrics"]["total"]
    assert answer["costs"]["total"]["overall"]["mape"] == pytest.approx(stated["mape"], abs=1e-5)
    again = CliRunner().invoke(app, ["train", "compute", "--from-analytic", "--model-store", str(tmp_path)])
    assert f"the MAPE of cpu-fbgemm/compute/1 was {stated['mape']:.1%}" in again.stdout


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--samples", "40"], "needs --from-analytic"),
        (["--from-analytic", "--epochs", "10"], "of no use with --from-analytic"),
    ],
)
def test_options_of_the_other_way_of_training_are_refused(options: list[str], said: str) -> None:
    result = CliRunner().invoke(app, ["train", "compute", *options])
    assert result.exit_code == 2
    assert said in result.stderr
