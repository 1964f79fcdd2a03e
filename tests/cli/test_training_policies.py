"""``shardwright train dreamshard | autoshard``: a tiny run each, from the command to a version that plans."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from service.cli import app
from service.domain.deadline import Deadline
from service.domain.errors import InvalidInputFile, MeasurementRefused
from service.domain.plan import Algorithm, Problem
from service.domain.tables import Optimizer, Table
from service.domain.topology import Topology
from service.domain.versions import Version
from service.registry.store import ModelStore
from service.usecases.make_plan import make_plan

TINY = {
    "dreamshard": {"iterations": 2, "placements": 3, "cost_updates": 4, "cost_batch": 4, "policy_updates": 2},
    "autoshard": {"environment_steps": 96, "unroll": 12, "batch": 2, "cost_updates": 2, "cost_batch": 8},
}


def _command(algorithm: str, folder: Path, *more: str, config: object = None) -> list[str]:
    path = folder / "config.json"
    path.write_text(json.dumps(TINY[algorithm] if config is None else config))
    store = ["--model-store", str(folder / "models")]
    tasks = ["--family", "dreamshard-20", "--tasks", "2", "--held-out", "2"]
    return ["train", algorithm, "--hardware", "h100", "--config", str(path), *tasks, *store, *more]


@pytest.mark.parametrize("algorithm", list(TINY))
def test_a_tiny_run_writes_a_version_that_plans(algorithm: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    result = CliRunner().invoke(app, _command(algorithm, tmp_path, "--checkpoints", str(folder), "--seed", "3"))
    assert result.exit_code == 0, result.output
    assert f"h100/{algorithm}/1" in result.stdout
    assert f"shardwright models promote h100/{algorithm}/1" in result.stdout
    assert (folder / "checkpoint.pt").is_file()
    (events,) = folder.glob("events.*")
    assert b"held_out_cost_by_best_heuristics/dreamshard-20" in events.read_bytes()
    store = ModelStore(str(tmp_path / "models"))
    manifest, _ = store.read(Version("h100", algorithm, 1))
    assert manifest["training"]["seed"] == manifest["tasks"]["seed"] == 3
    assert manifest["reward"] == "predicted"
    assert manifest["priced_by"]["versions"]["compute"] == "h100/compute/analytic-2"
    held_out = manifest["held_out"]["dreamshard-20"]
    assert held_out["policy_sampled"]["mean_cost_ms"] <= held_out["policy"]["mean_cost_ms"]
    models = store.cost_models("h100", policy=Algorithm(algorithm))
    tables = tuple(Table(f"t{i}", 10_000, 32, 2.0 + i) for i in range(9))
    problem = Problem(tables, Topology("h100", (1 << 30,) * 3), 4_096, Optimizer.SGD)
    plan = make_plan(problem, models, Algorithm(algorithm), 0, Deadline())
    assert plan.models[algorithm] == f"h100/{algorithm}/1"
    again = CliRunner().invoke(app, _command(algorithm, tmp_path, "--checkpoints", str(folder), "--seed", "3"))
    assert again.exit_code == 0, again.output
    assert f"h100/{algorithm}/1 is what came of it: nothing was written" in again.stderr
    assert store.numbers("h100", algorithm) == [1]
    store.delete("h100", algorithm, 1)
    anew = CliRunner().invoke(app, _command(algorithm, tmp_path, "--checkpoints", str(folder), "--seed", "3"))
    assert "nothing was written" not in anew.stderr
    assert len(store.versions("h100", algorithm)) == 1


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"iteration": 2}, "no hyper-parameter is named iteration: there are "),
        ({"sizes": {"embeding": 2}}, "no hyper-parameter is named sizes.embeding"),
        ({"sizes": {"embedding": 0}}, "sizes: Value error, embedding is 0: it must be at least 1"),
        ({"iterations": "many"}, "iterations: Input should be a valid integer"),
        ({"iterations": 0}, "--config: iterations is 0: it must be at least 1"),
        ({"device": "cuda:99"}, "--device: cuda:99 cannot be used here: "),
        ([1], "must hold a JSON object"),
    ],
)
def test_a_wrong_configuration_is_one_line_that_names_it(config: object, said: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, _command("dreamshard", tmp_path, config=config))
    assert (result.exit_code, result.stdout) == (1, "")
    assert said in result.stderr
    assert not (tmp_path / "models").exists()


def test_a_file_that_is_not_json_and_an_unknown_family_are_said(tmp_path: Path) -> None:
    command = _command("dreamshard", tmp_path)
    (tmp_path / "config.json").write_text("{")
    assert "is not JSON" in CliRunner().invoke(app, command).stderr
    result = CliRunner().invoke(app, ["train", "dreamshard", "--family", "narrows"])
    assert result.exit_code == 2
    assert "narrow" in result.output


def test_another_runs_checkpoint_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert CliRunner().invoke(app, _command("dreamshard", tmp_path, "--checkpoints", str(folder))).exit_code == 0
    other = _command("dreamshard", tmp_path, "--checkpoints", str(folder), "--seed", "1")
    result = CliRunner().invoke(app, other)
    assert result.exit_code == 1
    assert "is of a run with other tasks or another configuration" in str(result.exception or result.stderr)


def test_the_same_tables_in_another_order_make_another_run(tmp_path: Path) -> None:
    pool = [
        {"name": f"t{i}", "num_embeddings": 1_000 + i, "embedding_dim": 16, "pooling_factor": 2.0} for i in range(60)
    ]
    tables, folder = tmp_path / "tables.json", tmp_path / "run"
    command = _command("dreamshard", tmp_path, "--checkpoints", str(folder), "--tables", str(tables))
    tables.write_text(json.dumps({"tables": pool}))
    assert CliRunner().invoke(app, command).exit_code == 0
    tables.write_text(json.dumps({"tables": pool[::-1]}))
    result = CliRunner().invoke(app, command)
    assert isinstance(result.exception, InvalidInputFile)
    assert "is of a run with other tasks" in result.exception.detail


def test_too_few_tables_are_said(tmp_path: Path) -> None:
    tables = tmp_path / "tables.json"
    only = {"name": "t", "num_embeddings": 1_000, "embedding_dim": 16, "pooling_factor": 2.0}
    tables.write_text(json.dumps({"tables": [only]}))
    result = CliRunner().invoke(app, _command("dreamshard", tmp_path, "--tables", str(tables)))
    assert isinstance(result.exception, InvalidInputFile)
    assert "tasks cannot be drawn from this half of the tables, 0 here: dreamshard-20" in result.exception.detail


@pytest.mark.parametrize("algorithm", list(TINY))
def test_measured_rewards_are_of_the_hardware_that_is_named(algorithm: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, _command(algorithm, tmp_path, "--reward", "measured", "--batch-size", "64"))
    assert isinstance(result.exception, MeasurementRefused)
    assert "h100 is a GPU" in result.exception.detail
    assert not (tmp_path / "models").exists()


def test_a_folder_of_checkpoints_that_cannot_be_is_one_line(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.write_text("")
    result = CliRunner().invoke(app, _command("dreamshard", tmp_path, "--checkpoints", str(taken)))
    assert result.exit_code == 1
    assert "taken: cannot be the folder of checkpoints: File exists" in str(result.exception or result.stderr)


def test_measuring_on_a_gpu_that_is_not_there_is_said(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, _command("dreamshard", tmp_path, "--reward", "measured", "--device", "cuda:99"))
    assert result.exit_code == 1
    assert "there is no cuda:99" in str(result.exception or result.stderr)
