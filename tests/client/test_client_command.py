"""The command's exit codes and output, where a transport stands in for the service."""

import json
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
import pytest

from shardwright_client import Client, command
from shardwright_client.command import main
from tests.client.asked import URL, Answers, problem, raw_server
from tests.client.conftest import ROOT

Given = Callable[..., Answers]


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Given:
    """Has the command's client be given answers."""

    def give(*answers: httpx.Response | Exception) -> Answers:
        handler = Answers(*answers)

        def client(url: str | None, **options: Any) -> Client:
            return Client(url, transport=httpx.MockTransport(handler), **options)

        monkeypatch.setattr(command, "Client", client)
        return handler

    return give


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (problem(422, "invalid_request"), 3),
        (problem(404, "plan_not_found"), 3),
        (problem(422, "infeasible"), 4),
        (problem(422, "no_plan_in_time"), 5),
        (problem(429, "rate_limited", {"Retry-After": "60"}), 5),
        (httpx.ConnectError("refused"), 5),
        (problem(401, "unauthenticated"), 2),
        (problem(403, "insufficient_scope"), 2),
        (problem(404, "not_found"), 2),
        (problem(405, "method_not_allowed"), 2),
        (problem(500, "internal_error"), 1),
        (httpx.Response(404, html="<h1>Not Found</h1>"), 1),
    ],
)
def test_the_exit_code_says_what_to_do(given: Given, answer: httpx.Response | Exception, code: int) -> None:
    given(answer)
    assert main(["--url", URL, "--timeout", "0.01", "plans"]) == code


@pytest.mark.parametrize("wait", ["0", "-5", "nan", "inf"])
def test_a_wait_that_is_none_is_refused_before_anything_is_asked(
    given: Given, wait: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    answers, file = given(httpx.Response(200)), tmp_path / "tables.json"
    file.write_text("{}")
    assert main(["--url", URL, "profile", str(file), "--wait", wait]) == 2
    assert main(["--url", URL, "--timeout", wait, "profile", str(file)]) == 2
    one, two = capsys.readouterr().err.splitlines()
    assert one == f"shardwright-client: --wait must be above 0 seconds and finite, is {float(wait)}"
    assert two == one.replace("--wait", "timeout_s")
    assert answers.requests == []


def test_an_answer_that_cannot_be_written_is_one_line() -> None:
    page = json.dumps({"plans": [], "next_cursor": None}).encode()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(page)
    with raw_server(head + page) as url, Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "shardwright_client", "--url", url, "plans"], cwd=ROOT / "client", stdout=full,
            stderr=subprocess.PIPE, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("shardwright-client: the answer cannot be written: ")
    assert done.stderr.count("\n") == 1


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert (ended.value.code, capsys.readouterr().out) == (0, f"shardwright-client {version('shardwright-client')}\n")
