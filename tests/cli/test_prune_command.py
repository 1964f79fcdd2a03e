"""``shardwright db prune``."""

import pytest
from sqlalchemy import Engine, text
from typer.testing import CliRunner

from service.cli import app
from service.domain.callers import WITHOUT_KEY
from service.domain.ports import StoredPlan
from service.storage.plans import PlanRepository


@pytest.fixture
def stored(engine: Engine, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Engine:
    monkeypatch.setenv("DATABASE_URL", database_url)
    for days in (1, 20, 100):
        PlanRepository(engine).put(StoredPlan(str(days), "cpu-x", "auto", 1.0, {}, {}), WITHOUT_KEY)
        with engine.begin() as connection:
            used = f"UPDATE plans SET last_used_at = now() - interval '{days} days' WHERE plan_id = '{days}'"
            connection.execute(text(used))
    return engine


def plans(engine: Engine) -> set[str]:
    with engine.connect() as connection:
        return set(connection.scalars(text("SELECT plan_id FROM plans")))


def prune(*arguments: str) -> list[str]:
    result = CliRunner().invoke(app, ["db", "prune", *arguments])
    assert result.exit_code == 0, result.output
    return result.output.splitlines()


def test_a_dry_run_says_what_would_go_and_deletes_nothing(stored: Engine) -> None:
    assert prune("--dry-run", "--plans-days", "10") == [
        "observations: 0 would be deleted",
        "launches: 0 would be deleted",
        "answers: 0 would be deleted",
        "plans: 2 would be deleted",
        "profile requests: 0 would be deleted",
        "profiles: 0 would be deleted",
        "measurements: 0 would be deleted",
        "idempotency keys: 0 would be deleted",
        "plans under way: 0 would be deleted",
    ]
    assert plans(stored) == {"1", "20", "100"}


def test_what_is_older_than_the_settings_say_goes(stored: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "plans: 1 deleted" in prune()
    assert plans(stored) == {"1", "20"}
    monkeypatch.setenv("SHARDWRIGHT_KEEP_PLANS_DAYS", "10")
    assert "plans: 1 deleted" in prune()
    assert plans(stored) == {"1"}


@pytest.mark.parametrize("option", ["--plans-days", "--observations-days", "--measurements-days"])
def test_less_than_a_day_is_refused(stored: Engine, option: str) -> None:
    result = CliRunner().invoke(app, ["db", "prune", option, "0"])
    assert result.exit_code == 2
    assert plans(stored) == {"1", "20", "100"}
