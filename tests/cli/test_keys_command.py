"""``shardwright keys`` and ``shardwright audit``."""

import json
import re
from collections.abc import Callable
from datetime import datetime, timedelta

import pytest
from sqlalchemy import Engine, text
from typer.testing import CliRunner, Result

from service.cli import app
from service.domain.access import InvalidKeyName, KeyNotFound, secret_hash

Command = Callable[..., Result]


@pytest.fixture
def command(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.setenv("DATABASE_URL", database_url)
    return lambda *arguments: CliRunner().invoke(app, arguments)


def _done(result: Result) -> str:
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_key_is_made_listed_and_revoked_and_all_of_it_is_on_record(command: Command, engine: Engine) -> None:
    made = command("keys", "create", "team-a", "--scope", "plan", "--scope", "observe", "--requests-per-minute", "30")
    secret = _done(made).removesuffix("\n")
    assert re.fullmatch(r"shw_[A-Za-z0-9_-]{43}", secret)
    key_id = made.stderr.split()[1]
    with engine.connect() as connection:
        (row,) = connection.execute(text("SELECT * FROM api_keys")).all()
    assert (row.id, row.hash) == (key_id, secret_hash(secret.encode()))
    assert secret not in str(row)

    listed = _done(command("keys", "list"))
    assert re.search(rf"{key_id} .*team-a .*observe, plan .*valid .* 30 / default", listed)
    assert row.hash not in listed
    assert _done(command("keys", "revoke", key_id)) == f"key {key_id} of team-a is revoked\n"
    _done(command("keys", "revoke", key_id))
    assert re.search(rf"{key_id} .*revoked", _done(command("keys", "list")))

    actions = [line.split("│") for line in _done(command("audit")).splitlines() if "on the command line" in line]
    told = [(cells[3].strip(), cells[4].strip(), cells[5].strip()) for cells in actions]
    assert told == [
        ("revoke_key", f"team-a ({key_id})", "unchanged"),
        ("revoke_key", f"team-a ({key_id})", "done"),
        ("create_key", f"team-a ({key_id}: observe, plan)", "done"),
    ]
    assert len([line for line in _done(command("audit", "--limit", "1")).splitlines() if "│" in line]) == 1


def test_keys_and_calls_are_also_told_as_json_a_line_each(command: Command) -> None:
    key_id = command("keys", "create", "team-a", "--scope", "plan", "--valid-days", "7").stderr.split()[1]
    (key,) = [json.loads(line) for line in _done(command("keys", "list", "--json")).splitlines()]
    assert (key["id"], key["name"], key["scopes"], key["state"]) == (key_id, "team-a", ["plan"], "valid")
    assert datetime.fromisoformat(key["expires_at"]) - datetime.fromisoformat(key["created_at"]) == timedelta(days=7)
    (call,) = [json.loads(line) for line in _done(command("audit", "--json")).splitlines()]
    assert (call["action"], call["subject"], call["outcome"], call["request_id"]) == (
        "create_key",
        f"team-a ({key_id}: plan)",
        "done",
        None,
    )
    assert call["actor"].endswith("on the command line")
    assert datetime.fromisoformat(call["at"]).tzinfo is not None


def test_a_second_key_of_a_name_is_told_of(command: Command) -> None:
    first = command("keys", "create", "team-a", "--scope", "plan").stderr.split()[1]
    again = command("keys", "create", "team-a", "--scope", "admin", "--valid-days", "7")
    assert f"team-a has other valid keys, and the same plans with each: {first}" in again.stderr


@pytest.mark.parametrize("name", ["", "anonymous", "a b", "-x", "a\n", "ä", "a" * 65])
def test_a_name_that_no_key_can_have_makes_none(command: Command, engine: Engine, name: str) -> None:
    result = command("keys", "create", "--scope", "plan", "--", name)
    assert isinstance(result.exception, InvalidKeyName)
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM api_keys")) == 0


def test_what_cannot_be_is_said_so(command: Command) -> None:
    assert command("keys", "create", "a").exit_code == 2
    assert command("keys", "create", "a", "--scope", "root").exit_code == 2
    assert command("keys", "create", "a", "--scope", "plan", "--burst", "0").exit_code == 2
    missing = command("keys", "revoke", "none")
    assert isinstance(missing.exception, KeyNotFound)
    assert "keys list" in str(missing.exception)
    assert "key_not_found" in _done(command("audit"))
