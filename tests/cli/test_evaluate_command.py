"""``shardwright evaluate``: the shipped versions on the shipped measurements, from a file and from the database."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import Engine
from typer.testing import CliRunner, Result

from service.cli import app
from service.cli.measuring import measured_answer
from service.domain.costs import DeviceCost
from service.domain.errors import InvalidInputFile, TooFewMeasurements
from service.domain.measurements import Split
from service.profiling.plan_bench import CarriedOut
from service.profiling.plan_summary import LEAST_REPEATS, DeviceComparison, PlanComparison, summary_of
from service.registry.store import ModelStore
from service.settings import Settings
from service.storage.measurement_files import read_measurements, write_measurements
from service.storage.measurements import MeasurementRepository

STORE = ModelStore(Settings().model_store)
SHIPPED = STORE.measurement_file("cpu-fbgemm")


def evaluate(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["evaluate", *arguments])


def carried_out(path: Path, *costs: tuple[float, float], repeats: int = LEAST_REPEATS) -> str:
    """Writes an answer of ``measure`` on plans that are predicted and measured to cost these."""
    plans = []
    for number, (predicted, measured) in enumerate(costs):
        told, found = (DeviceCost(cost, 0.0, 0.0, 0.0, 0.0) for cost in (predicted, measured))
        taken = tuple((measured + np.arange(repeats) / 100).tolist())
        plans.append(
            PlanComparison(
                f"p{number}", (DeviceComparison(told, found, measured, 0.0),), taken, taken, True, (), (0.0, 20.0)
            )
        )
    models = {"compute": str(STORE.latest("cpu-fbgemm", "compute")), "communication": "other/communication/1"}
    carried = CarriedOut(tuple(plans), summary_of(plans), None, models, (), 2, False, repeats, {})
    path.write_text(json.dumps(measured_answer(carried)))
    return str(path)


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file of some of the shipped measurements: reading and judging them all takes many seconds."""
    compute, exchanges = read_measurements(SHIPPED)
    some = [row for row in compute if row.split is Split.TEST][::5]
    path = str(tmp_path_factory.mktemp("sample") / "measurements.json.gz")
    write_measurements(path, some, [row for row in exchanges if row.split is Split.TEST])
    return path


def test_figures_and_plots_of_a_file_of_measurements(sample: str, tmp_path: Path) -> None:
    plots = tmp_path / "new" / "plots"
    result = evaluate("--measurements", sample, "--plots", str(plots), "--json")
    assert result.exit_code == 0, result.output
    answer: dict[str, Any] = json.loads(result.stdout)
    judged = {model["version"].split("/")[1]: model for model in answer["models"]}
    assert judged.keys() == {"compute", "communication"}
    assert judged["compute"]["measurements"] == len(read_measurements(sample)[0])
    for model in answer["models"]:
        for cost in model["costs"].values():
            for slices in cost["slices"].values():
                assert sum(found["rows"] for found in slices.values()) == cost["overall"]["rows"]
    _are_plots(answer["plots"], plots)


def _are_plots(told: list[str], folder: Path) -> None:
    assert sorted(map(str, folder.iterdir())) == sorted(told)
    assert len(told) == 4
    for path in told:
        content = Path(path).read_bytes()
        assert content.startswith(b"\x89PNG")
        assert len(content) > 10_000


@pytest.mark.slow
def test_the_shipped_versions_are_judged_as_their_manifests_say_and_drawn(tmp_path: Path) -> None:
    plots = tmp_path / "new" / "plots"
    result = evaluate("--measurements", SHIPPED, "--plots", str(plots), "--json")
    assert result.exit_code == 0, result.output
    answer: dict[str, Any] = json.loads(result.stdout)
    assert answer["plans"] is None
    for model in answer["models"]:
        kind = model["version"].split("/")[1]
        version = STORE.latest("cpu-fbgemm", kind)
        assert version is not None
        stated = STORE.read(version)[0]
        mixed = [f"{stated['data']['left_out']} combinations of tables of several parts are left out"]
        assert model["warnings"] == (mixed if kind == "compute" else [])
        assert (model["version"], model["measurements"]) == (str(version), stated["data"]["rows"]["test"])
        for name, cost in model["costs"].items():
            overall = cost["overall"]
            assert {key: overall[key] for key in stated["metrics"][name]} == pytest.approx(stated["metrics"][name])
            for slices in cost["slices"].values():
                assert sum(found["rows"] for found in slices.values()) == overall["rows"]
    assert len(answer["models"]) == 2
    _are_plots(answer["plots"], plots)


def test_tables_of_what_is_stored_with_picks_among_plans(
    engine: Engine, database_url: str, sample: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DATABASE_URL", database_url)
    held_out = read_measurements(sample)[0]
    MeasurementRepository(engine).add_compute_many(held_out)
    answers = {
        "right": carried_out(tmp_path / "right.json", (1.0, 10.0), (2.0, 11.0)),
        "wrong": carried_out(tmp_path / "wrong.json", (1.0, 14.0), (2.0, 11.0)),
        "few": carried_out(tmp_path / "few.json", (1.0, 14.0), (2.0, 11.0), repeats=2),
        "alike": carried_out(tmp_path / "alike.json", (1.0, 10.0), (2.0, 10.0)),
        "one": carried_out(tmp_path / "one.json", (1.0, 10.0)),
    }
    options = [argument for path in answers.values() for argument in ("--plans", path)]
    result = evaluate("--model", "compute", *options)
    assert result.exit_code == 0, result.output
    said = " ".join(result.stdout.split())
    for wanted in (
        f"{len(held_out)} measurements of the test part", "batch size", "other measurements than these",
        "picked in 2 of 3 answers (67%; in 1 the repeats tell no plans apart)",
        "regret: 1.00 ms on average, 3.00 ms at most", "2 repeats tell no plans apart", "fewer than two plans fit",
    ):  # fmt: skip
        assert wanted in said
    assert "says nothing of" not in said
    both = evaluate("--measurements", sample, "--plans", answers["right"], "--json")
    (warning,) = json.loads(both.stdout)["plans"]["warnings"]
    assert f"says nothing of {STORE.latest('cpu-fbgemm', 'communication')}" in warning


@pytest.mark.parametrize(
    ("content", "said"),
    [("{", "Expecting"), ("[]", "indices"), ('{"summary": {"order": {}}, "repeats": 9, "models": {}}', "missing")],
)
def test_what_is_no_answer_of_measure_is_refused_by_name(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(content)
    error = evaluate("--plans", str(path)).exception
    assert isinstance(error, InvalidInputFile)
    assert f"{path} is not an answer of `shardwright measure`" in error.detail
    assert said in error.detail


def test_a_version_needs_its_model_and_hardware_without_one_is_refused(sample: str) -> None:
    result = evaluate("--version", "1")
    assert result.exit_code == 2
    assert "needs --model" in result.stderr
    error = evaluate("--measurements", sample, "--hardware", "h100", "--model", "compute").exception
    assert isinstance(error, TooFewMeasurements)
    assert "no compute version of h100 was trained" in error.detail
