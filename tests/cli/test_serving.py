"""The command line: the same bodies as the API, answers on standard output, problems on standard error."""

import io
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from service import local_planning
from service.api.app import openapi_yaml
from service.api.planning import Planning
from service.cli import app
from service.cli.pretty import print_answer
from service.settings import Settings
from tests.api.processes import setting_names
from tests.api.support import FACTORY, request, table

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in setting_names():
        monkeypatch.delenv(name)


@pytest.fixture
def fake_models(monkeypatch: pytest.MonkeyPatch) -> None:
    made = local_planning.local_planning

    def planning(settings: Settings) -> Planning:
        return made(settings, FACTORY)

    monkeypatch.setattr(local_planning, "local_planning", planning)


def _written(folder: Path, body: object) -> str:
    path = folder / "request.json"
    path.write_text(json.dumps(body))
    return str(path)


@pytest.mark.usefixtures("fake_models")
def test_plan_prints_the_answer_unsaved(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["plan", _written(tmp_path, request())])
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert (answer["saved"], answer["status"]) == (False, "complete")
    assert len(answer["plan_id"]) == 32


@pytest.mark.usefixtures("fake_models")
def test_plan_reads_standard_input_and_prints_tables(tmp_path: Path) -> None:
    body = request(tables=[table("wide [bold]", embedding_dim=128)], constraints={"max_shard_dim": 64})
    result = CliRunner().invoke(app, ["plan", "-", "--pretty"], input=json.dumps(body))
    assert result.exit_code == 0, result.output
    for text in ("wide [bold]", "column_wise", "64:128", "backward", "fake/compute/1", "no reuse histogram"):
        assert text in result.stdout
    assert re.search(r"largest total: [0-9.]+ ms, 90% interval [0-9.]+ to [0-9.]+ ms", result.stdout)


@pytest.mark.usefixtures("fake_models")
def test_a_plan_that_an_earlier_release_stored_without_intervals_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = json.loads(CliRunner().invoke(app, ["plan", _written(tmp_path, request())]).stdout)
    del answer["max_cost_interval_ms"]
    print_answer(answer)
    assert f"largest total: {answer['max_cost_ms']:.3f} ms\n" in capsys.readouterr().out


class SlowInput(io.BytesIO):
    """What someone pipes into the command after a while."""

    def read(self, size: int | None = -1) -> bytes:
        time.sleep(1.2)
        return super().read(size)


@pytest.mark.usefixtures("fake_models")
def test_the_time_limit_begins_when_standard_input_has_been_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    body = SlowInput(json.dumps(request(time_limit_ms=1_000)).encode())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(body))
    app(["plan", "-"], standalone_mode=False)
    assert json.loads(capsys.readouterr().out)["planning_ms"] < 1_000


@pytest.mark.usefixtures("fake_models")
def test_estimate_prices_shards(tmp_path: Path) -> None:
    shards = [{"table": "t0", "columns": [0, 64], "device": 1}]
    body = request(tables=[table("t0")], shards=shards)
    del body["algorithm"]
    result = CliRunner().invoke(app, ["estimate", _written(tmp_path, body)])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["devices"][1]["cost_ms"]["forward_compute"] > 0
    assert CliRunner().invoke(app, ["estimate", _written(tmp_path, body), "--pretty"]).exit_code == 0


@pytest.mark.usefixtures("fake_models")
@pytest.mark.parametrize(
    ("command", "body", "kind"),
    [
        ("plan", {"tables": []}, "invalid_request"),
        ("plan", request(algorithm="autoshard"), "unsupported_algorithm"),
        ("estimate", {"plan_id": "0" * 32}, "storage_unavailable"),
    ],
)
def test_a_refusal_is_a_problem_on_standard_error(tmp_path: Path, command: str, body: object, kind: str) -> None:
    result = CliRunner().invoke(app, [command, _written(tmp_path, body)])
    assert (result.exit_code, result.stdout) == (1, "")
    assert json.loads(result.stderr)["type"] == f"urn:shardwright:problem:{kind}"


@pytest.mark.usefixtures("fake_models")
def test_a_launch_needs_a_service(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["plan", _written(tmp_path, request(launch_id="night"))])
    assert result.exit_code == 1
    problem = json.loads(result.stderr)
    assert problem["type"].endswith(":storage_unavailable")
    assert "leave launch_id out" in problem["detail"]


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["plan", str(tmp_path / "none.json")])
    assert result.exit_code == 1
    assert result.stderr.strip().endswith("No such file or directory")


def test_wrong_usage_exits_with_2() -> None:
    assert CliRunner().invoke(app, ["plan"]).exit_code == 2
    assert CliRunner().invoke(app, ["serve", "--port", "99999"]).exit_code == 2


def test_a_wrong_setting_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SHARDWRIGHT_MAX_TABLES", "many")
    result = CliRunner().invoke(app, ["plan", _written(tmp_path, request())])
    assert result.exit_code == 1
    assert "SHARDWRIGHT_MAX_TABLES" in result.stderr or "max_tables" in result.stderr


def test_openapi_prints_the_document() -> None:
    assert CliRunner().invoke(app, ["openapi"]).stdout == openapi_yaml()


def test_the_schema_is_upgraded_and_checked(empty_database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", empty_database_url)
    runner = CliRunner()
    assert runner.invoke(app, ["db", "current"]).stdout.startswith("None (head: ")
    assert runner.invoke(app, ["db", "check"]).exit_code == 1
    assert runner.invoke(app, ["db", "upgrade"]).exit_code == 0
    assert runner.invoke(app, ["db", "check"]).stdout == "ok\n"


def test_an_unreachable_database_is_one_line() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "service", "db", "current"],
        cwd=ROOT,
        env={"DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none"},
        capture_output=True,
        check=False,
        text=True,
    )
    assert ended.returncode == 1
    assert ended.stderr.startswith("shardwright: the database is not available")
    assert len(ended.stderr.splitlines()) == 1
