"""What commands print is whole wherever it goes."""

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from service.cli.output import Row, console, print_list
from service.domain.trainings import Ended

LONG = "because " + "of much " * 300
AT = datetime(2026, 11, 1, tzinfo=UTC)
ROWS: list[Row] = [
    (("one [/etc/x]", LONG), {"name": "one", "why": LONG, "at": AT, "end": Ended.FAILED}),
    (("two", "[bold]"), {"name": "two", "of": frozenset({"plan"})}),
]  # fmt: skip


def test_a_pipe_gets_every_word_on_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    print_list(("name", "why"), ROWS, as_json=False)
    console().print(LONG)
    printed = capsys.readouterr().out
    assert "one [/etc/x]" in printed
    assert "[bold]" in printed
    assert printed.count(LONG.strip()) == 2
    assert "…" not in printed


def test_a_terminal_gets_lines_as_wide_as_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr("service.cli.output._on_terminal", lambda: True)
    print_list(("name", "why"), ROWS, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 60
    assert sum("of much" in line for line in lines) > 40


def test_json_is_one_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_list(("name", "why"), ROWS, as_json=True)
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first == {"name": "one", "why": LONG, "at": "2026-11-01T00:00:00Z", "end": "failed"}
    assert second == {"name": "two", "of": ["plan"]}


@pytest.mark.parametrize("command", [("--help",), ("openapi",)])
def test_output_that_cannot_be_written_is_one_line(command: tuple[str, ...]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "service", *command], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60,
            check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, "shardwright: [Errno 28] No space left on device\n")
