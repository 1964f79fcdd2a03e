"""The command ``shardwright-client``, for shells and launch scripts."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from shardwright_client.client import Client
from shardwright_client.configuration import KEY_VARIABLE, TIMEOUT_S, URL_VARIABLE, check_seconds, user_agent
from shardwright_client.errors import (
    Busy,
    ConnectionFailed,
    Forbidden,
    Infeasible,
    InvalidArgument,
    NoPlanInTime,
    ProblemError,
    ServiceFailed,
    ShardwrightError,
    Timeout,
    Unauthorized,
)
from shardwright_client.flow import MOST_ON_A_PAGE, PAGE_SIZE, PROFILE_TIMEOUT_S
from shardwright_client.json_values import Json

EXIT_CODES: Mapping[int, str] = {
    0: "answered",
    1: "the service failed, or what answered is none",
    2: "the command, the file, the address or the key is not what it should be",
    3: "the service refused the request",
    4: "no plan meets the request (infeasible)",
    5: "not reached, busy, or not in time: try again later, or give it more time",
}

_WRONG_ADDRESS = frozenset({"not_found", "method_not_allowed"})
"""Kinds of problems of a service that has no such call at the address."""

_Action = Callable[[Client, argparse.Namespace], Json | None]

_EPILOG = f"""
The service is named by --url or {URL_VARIABLE}; its API key is {KEY_VARIABLE}, from the environment alone. Answers are
JSON on standard output, errors one line on standard error. A REQUEST is a JSON file as the service's openapi.yaml has
it, - for standard input.

exit codes:
""" + "\n".join(f"  {code}  {text}" for code, text in EXIT_CODES.items())


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; the exit code, see ``EXIT_CODES``.

    Args:
        arguments: of the command line; None for those of the process.
    """
    given = _parser().parse_args(arguments)
    action: _Action = given.action
    try:
        with Client(given.url, timeout_s=given.timeout) as client:
            answer = action(client, given)
    except ShardwrightError as error:
        sys.stderr.write(f"shardwright-client: {error}\n")
        return _exit_code(error)
    return 0 if answer is None else _written(json.dumps(answer, ensure_ascii=False, indent=2 if given.pretty else None))


def _written(answer: str) -> int:
    """Writes to standard output; the exit code."""
    try:
        sys.stdout.write(answer + "\n")
        sys.stdout.flush()
    except OSError as error:
        sys.stderr.write(f"shardwright-client: the answer cannot be written: {error}\n")
        # What is left in the buffer must not fail once more when the process ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 2
    return 0


def _exit_code(error: ShardwrightError) -> int:
    if isinstance(error, InvalidArgument | Unauthorized | Forbidden):
        return 2
    if isinstance(error, Infeasible):
        return 4
    if isinstance(error, ConnectionFailed | Timeout | Busy | NoPlanInTime):
        return 5
    if isinstance(error, ServiceFailed) or not isinstance(error, ProblemError):
        return 1
    return 2 if error.kind in _WRONG_ADDRESS else 3


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "shardwright-client",
        description="Asks a Shardwright service where embedding tables go.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=user_agent().replace("/", " "))
    parser.add_argument("--url", help=f"address of the service; default: {URL_VARIABLE}")
    parser.add_argument("--timeout", type=float, default=TIMEOUT_S, help="seconds for a call (default: %(default)s)")
    parser.add_argument("--pretty", action="store_true", help="indented JSON")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    plan = _command(commands, "plan", "plan where tables go", _plan)
    plan.add_argument("request", metavar="REQUEST")
    plan.add_argument("--launch-id", help="name of the launch: all its ranks are answered one plan")
    estimate = _command(commands, "estimate", "price a placement", _estimate)
    estimate.add_argument("request", metavar="REQUEST")
    _command(commands, "show", "a stored plan", _show).add_argument("plan_id", metavar="PLAN_ID")
    plans = _command(commands, "plans", "the stored plans in short, the newest first", _plans)
    plans.add_argument(
        "--most", type=int, default=PAGE_SIZE, metavar="N", help="so many at most (default: %(default)s)"
    )
    _command(commands, "delete", "give a stored plan up", _delete).add_argument("plan_id", metavar="PLAN_ID")
    observe = _command(commands, "observe", "store what was measured while a plan ran", _observe)
    observe.add_argument("plan_id", metavar="PLAN_ID")
    observe.add_argument("request", metavar="REQUEST")
    profile = _command(commands, "profile", "have tables measured", _profile)
    profile.add_argument("request", metavar="REQUEST")
    profile.add_argument(
        "--wait", type=float, nargs="?", const=PROFILE_TIMEOUT_S, metavar="SECONDS",
        help="until they are measured (default: %(const)s)",
    )  # fmt: skip
    return parser


def _command(commands: Any, name: str, text: str, action: _Action) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
    command.set_defaults(action=action)
    return command


def _plan(client: Client, given: argparse.Namespace) -> Json:
    launch = {} if given.launch_id is None else {"launch_id": given.launch_id}
    return client.plan(_content(given.request) | launch).raw


def _estimate(client: Client, given: argparse.Namespace) -> Json:
    return client.estimate(_content(given.request)).raw


def _show(client: Client, given: argparse.Namespace) -> Json:
    return client.get_plan(given.plan_id).raw


def _plans(client: Client, given: argparse.Namespace) -> Json:
    if given.most < 1:
        raise InvalidArgument("--most must be 1 or more")
    listed = client.list_plans(min(given.most, MOST_ON_A_PAGE))
    return {"plans": [plan.raw for plan in islice(listed, given.most)]}


def _delete(client: Client, given: argparse.Namespace) -> None:
    client.delete_plan(given.plan_id)


def _observe(client: Client, given: argparse.Namespace) -> Json:
    return client.observe(given.plan_id, _content(given.request)).raw


def _profile(client: Client, given: argparse.Namespace) -> Json:
    if given.wait is not None:
        check_seconds("--wait", given.wait)
    profiles = client.profile(_content(given.request))
    if given.wait is not None:
        profiles = client.wait_for_profile(profiles.request_id, given.wait)
    return profiles.raw


def _content(name: str) -> dict[str, Any]:
    try:
        content = json.loads(sys.stdin.read() if name == "-" else Path(name).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"{name}: {error}") from error
    if not isinstance(content, dict):
        raise InvalidArgument(f"{name}: must be a JSON object")
    return content
