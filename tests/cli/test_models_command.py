"""``shardwright models``: list, promote, rollback and prune on the command line."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import Engine
from typer.testing import CliRunner, Result

from service.cli import app
from service.domain.callers import WITHOUT_KEY
from service.domain.errors import ShardwrightError
from service.domain.ports import StoredPlan
from service.registry.store import ModelStore
from service.storage.plans import PlanRepository
from service.storage.promotions import PromotionRepository
from tests.cost_models.small_model import FACTS, weights

Command = Callable[..., Result]
MODEL = ("cpu-x", "compute")


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    made = ModelStore(str(tmp_path / "models"))
    for seed in range(4):
        facts = {**FACTS, "created_at": f"2026-11-2{seed}T22:02:27+00:00", "metrics": {"total": {"mape": 0.08 + seed}}}
        made.write(*MODEL, weights(seed), facts)
    return made


@pytest.fixture
def command(store: ModelStore, tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.setenv("DATABASE_URL", database_url)

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(app, ["models", *arguments, "--model-store", str(tmp_path / "models")])

    return run


def _done(result: Result) -> str:
    assert result.exit_code == 0, result.output
    return result.stdout


def _serving(listed: str) -> list[str]:
    return re.findall(r"(cpu-x/compute/\d+) .* yes .* sound ", listed)


def test_versions_are_listed_promoted_and_rolled_back(command: Command, engine: Engine) -> None:
    listed = _done(command("list", "--hardware", "cpu-x"))
    assert "h100" not in listed
    assert re.search(r"cpu-x/compute/1 .*2026-11-20 .*MAPE total 8\.0%", listed)
    assert _serving(listed) == ["cpu-x/compute/4"]
    assert "h100/compute/analytic-2" in _done(command("list"))
    assert _done(command("promote", "cpu-x/compute/2", "--reason", "a try")) == "cpu-x/compute/2 serves\n"
    _done(command("promote", "cpu-x/compute/3"))
    assert _serving(_done(command("list"))) == ["cpu-x/compute/3"]
    assert _done(command("rollback", "cpu-x/compute", "--reason", "it is worse")) == "cpu-x/compute/2 serves\n"
    assert _serving(_done(command("list"))) == ["cpu-x/compute/2"]
    history = PromotionRepository(engine).history(*MODEL, 10)
    assert [promotion.reason for promotion in history] == ["it is worse", "", "a try"]
    assert all(promotion.promoted_by.endswith("command line") for promotion in history)


def test_a_version_whose_weights_are_damaged_is_listed_as_that_without_a_terminal_whole(
    command: Command, tmp_path: Path
) -> None:
    weights_file = tmp_path / "models" / "cpu-x" / "compute" / "2" / "weights.safetensors"
    weights_file.write_bytes(weights_file.read_bytes()[:-1])
    said = "damaged: cpu-x/compute/2: weights.safetensors does not match its sha256: restore it or train a new version"
    assert re.search(rf"cpu-x/compute/2 .*2026-11-21 .*MAPE total 108\.0% .*{said} ", _done(command("list")))

    lines = [json.loads(line) for line in _done(command("list", "--json", "--hardware", "cpu-x")).splitlines()]
    assert [(line["version"].rpartition("/")[2], line["state"], line["serves"]) for line in lines] == [
        ("1", "sound", False),
        ("2", "damaged", False),
        ("3", "sound", False),
        ("4", "sound", True),
    ]
    assert said.endswith(lines[1]["fault"])
    assert lines[0]["metrics"] == {"mape": {"total": 0.08}}
    assert lines[0]["fault"] is None


def test_an_analytic_version_is_promoted_without_its_number(command: Command) -> None:
    assert _done(command("promote", "h100/compute/analytic")) == "h100/compute/analytic-2 serves\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["promote", "cpu-x/compute/9"], "there is no version cpu-x/compute/9; there are: cpu-x/compute/1"),
        (["promote", "cpu-y/compute/1"], "there is no model cpu-y/compute"),
        (["rollback", "cpu-x/compute"], "no version of cpu-x/compute served before"),
        (["rollback", "cpu-x/dreamshard"], "there is no model cpu-x/dreamshard"),
    ],
)
def test_what_cannot_be_is_said_with_what_there_is(command: Command, arguments: list[str], said: str) -> None:
    result = command(*arguments)
    assert isinstance(result.exception, ShardwrightError)
    assert said in result.exception.detail


@pytest.mark.parametrize("arguments", [["promote", "cpu-x/compute"], ["rollback", "cpu-x"], ["prune", "--keep", "0"]])
def test_wrong_usage_exits_with_2(command: Command, arguments: list[str]) -> None:
    assert command(*arguments).exit_code == 2


def test_old_versions_are_pruned_and_what_is_needed_is_not(command: Command, store: ModelStore, engine: Engine) -> None:
    assert _done(command("prune")) == "no model has more than 5 trained versions\n"
    answer = {"status": "complete", "models": {"compute": "cpu-x/compute/2"}}
    PlanRepository(engine).put(StoredPlan("0", "cpu-x", "auto", 1.0, {}, answer), WITHOUT_KEY)
    wanted = "cpu-x/compute/1: {}\ncpu-x/compute/2: kept, named by a stored plan\ncpu-x/compute/3: {}\n"
    assert _done(command("prune", "--keep", "1", "--dry-run")) == wanted.replace("{}", "would be deleted")
    assert len(store.versions(*MODEL)) == 4
    assert _done(command("prune", "--keep", "1")) == wanted.replace("{}", "deleted")
    assert [version.number for version in store.versions(*MODEL)] == [2, 4]


def test_plans_that_are_old_enough_keep_no_version(
    command: Command, store: ModelStore, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = {"status": "complete", "models": {"compute": "cpu-x/compute/2"}}
    PlanRepository(engine).put(StoredPlan("0", "cpu-x", "auto", 1.0, {}, answer), WITHOUT_KEY)
    monkeypatch.setenv("SHARDWRIGHT_PRUNE_SPARES_PLANS_OF_DAYS", "0")
    _done(command("prune", "--keep", "1"))
    assert [version.number for version in store.versions(*MODEL)] == [4]
