"""``shardwright retrain`` and ``shardwright models trainings``: from stored measurements to a version that serves."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import ValidationError
from sqlalchemy import Engine
from typer.testing import CliRunner, Result

from service.cli import app
from service.domain.errors import RetrainingUnderWay
from service.settings import Settings
from service.storage.measurements import MeasurementRepository
from service.storage.trainings import TrainingRepository
from tests.usecases.made_up_nights import HARDWARE, combinations, earlier

Command = Callable[..., Result]


@pytest.fixture
def command(tmp_path: Path, database_url: str, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.setenv("DATABASE_URL", database_url)
    MeasurementRepository(engine).add_compute_many(combinations("first", 250, earlier()))

    def run(*arguments: str) -> Result:
        store = ["--model-store", str(tmp_path)]
        return CliRunner().invoke(app, ["retrain", "--hardware", HARDWARE, *arguments, *store])

    return run


def test_a_model_is_retrained_and_what_came_of_it_is_listed(command: Command) -> None:
    done = command("--model", "compute")
    assert done.exit_code == 0, done.output
    assert done.stdout == ("cpu-x/compute: promoted, cpu-x/compute/1 serves: there was no version to compare it with\n")
    again = command("--model", "compute", "--margin", "0.02")
    assert again.exit_code == 0
    assert "cpu-x/compute: nothing new, cpu-x/compute/1 serves on: the serving version was" in again.stdout
    failed = command("--model", "communication")
    assert failed.exit_code == 1
    assert "cpu-x/communication: failed, nothing serves on: 0 exchanges of cpu-x" in failed.stdout
    listed = CliRunner().invoke(app, ["models", "trainings", "--hardware", HARDWARE]).stdout
    for told in ("cpu-x/compute", "promoted", "nothing_new", "cpu-x/communication", "failed"):
        assert told in listed
    lines = CliRunner().invoke(app, ["models", "trainings", "--json"]).stdout.splitlines()
    outcomes = [json.loads(line) for line in lines]
    assert [outcome["ended"] for outcome in outcomes] == ["failed", "nothing_new", "promoted"]
    # No word of it is cut without a terminal.
    assert all(f" {outcome['reason']} " in listed for outcome in outcomes)
    assert max(len(outcome["reason"]) for outcome in outcomes) > 80
    assert "cpu-x" not in CliRunner().invoke(app, ["models", "trainings", "--hardware", "cpu-y"]).stdout


def test_the_second_of_two_says_so(command: Command, engine: Engine) -> None:
    with TrainingRepository(engine).alone(HARDWARE):
        result = command("--model", "compute")
    assert isinstance(result.exception, RetrainingUnderWay)
    assert "another process retrains models of cpu-x" in result.exception.detail
    assert TrainingRepository(engine).all(None, 10) == []


def test_an_unknown_model_is_wrong_usage(command: Command) -> None:
    result = command("--model", "computer")
    assert result.exit_code == 2
    assert "none of" in result.output


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("nightly_margin", 1),
        ("nightly_cron", "every night"),
        ("nightly_cron", "0 2 30 2 *"),
        ("nightly_timeout_h", 0),
    ],
)
def test_settings_of_nights_that_cannot_be_are_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(ValidationError, match=name):
        Settings(**{name: value})  # type: ignore[arg-type]
