"""The runbook has an entry for each alert, and only commands and settings that exist."""

import re
from typing import Any

import pytest
import typer.main

from service.cli import app
from service.settings import Settings
from tests.telemetry.rules import RUNBOOK, alert_rules

TEXT = RUNBOOK.read_text()
# Placeholders, quotes and what follows a pipe are none of the command's.
COMMANDS = sorted(set(re.findall(r"(?<=`)shardwright [^`|]+(?=`)|^ {4}shardwright [^|\n]+", TEXT, re.MULTILINE)))


@pytest.mark.parametrize("rule", alert_rules(), ids=lambda rule: str(rule["alert"]))
def test_every_alert_says_what_is_wrong_and_has_its_entry(rule: dict[str, object]) -> None:
    assert isinstance(rule["labels"], dict)
    assert isinstance(rule["annotations"], dict)
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert len(rule["annotations"]["summary"]) > 20
    name = str(rule["alert"])
    assert rule["annotations"]["runbook_url"] == f"docs/operations.md#{name.lower()}"
    entry = TEXT.partition(f"\n### {name}\n")[2].partition("\n#")[0]
    assert len(entry) > 80


def test_no_entry_is_of_an_alert_that_is_gone() -> None:
    assert set(re.findall(r"^### (\w+)$", TEXT, re.MULTILINE)) == {rule["alert"] for rule in alert_rules()}


def test_links_within_it_lead_somewhere() -> None:
    headings = {heading.lower().replace(" ", "-") for heading in re.findall(r"^#+ (.+)$", TEXT, re.MULTILINE)}
    assert set(re.findall(r"\(#([^)]+)\)", TEXT)) <= headings


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_that_it_names_exists(line: str) -> None:
    command: Any = typer.main.get_command(app)
    left = line.split()[1:]
    while hasattr(command, "commands"):
        assert left, "a command is named without its subcommand"
        command = command.commands[left.pop(0)]
    options = {option for parameter in command.params for option in parameter.opts}
    assert {word for word in left if word.startswith("--")} <= options


def test_every_setting_that_it_names_exists() -> None:
    named = set(re.findall(r"SHARDWRIGHT_([A-Z_]*[A-Z])\b", TEXT))
    assert len(named) > 10
    assert {name.lower() for name in named} <= set(Settings.model_fields)


def test_it_names_many_commands() -> None:
    assert len(COMMANDS) > 15
