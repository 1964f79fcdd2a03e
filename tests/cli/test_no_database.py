"""Commands that work on what is stored, given a folder where nothing is."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from service.cli import app
from service.database import NoDatabaseThere
from tests.api.processes import setting_names


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in setting_names():
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    "command",
    [
        "models list",
        "models trainings",
        "models promote h100/compute/analytic",
        "models rollback h100/compute",
        "models prune",
        "profiles list",
        "profiles show x",
        "profiles retry x",
        "db current",
        "db check",
        "db export",
        "db prune",
        "retrain",
        "train compute",
        "train communication",
        "keys create team-a --scope plan",
        "keys list",
        "keys revoke x",
        "audit",
        "worker --hardware cpu-x",
    ],
)
def test_a_mistyped_folder_is_named_with_the_remedy_and_not_made(command: str, tmp_path: Path) -> None:
    folder = tmp_path / "var" / "typo"
    ended = CliRunner().invoke(app, [*command.split(), "--data-dir", str(folder)])
    assert ended.exit_code == 1
    assert isinstance(ended.exception, NoDatabaseThere)
    for said in (str(folder), "--data-dir", "DATABASE_URL", "shardwright db upgrade"):
        assert said in ended.exception.detail
    assert not folder.parent.exists()


@pytest.mark.slow
def test_a_folder_that_upgrade_made_is_one_to_work_on(server_folder: Path) -> None:
    folder = server_folder / "var"
    for command in ("db upgrade", "db check"):
        ended = CliRunner().invoke(app, [*command.split(), "--data-dir", str(folder)])
        assert ended.exit_code == 0, ended.output
    assert ended.output == "ok\n"
