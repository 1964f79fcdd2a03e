"""What several commands share: options, settings, and how a command fails."""

import getpass
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from service.domain.errors import ShardwrightError
from service.domain.topology import HARDWARE_PATTERN

if TYPE_CHECKING:
    from rich.progress import Progress

    from service.settings import Settings

RequestFile = Annotated[Path, typer.Argument(help="The body as JSON; - reads standard input.", allow_dash=True)]
Pretty = Annotated[bool, typer.Option("--pretty", help="Readable tables instead of JSON.")]
DataDir = Annotated[Path | None, typer.Option(help="Where the embedded Postgres keeps its data [./var].")]
ModelStoreRoot = Annotated[
    str | None, typer.Option(help="Where model versions are kept (default: the repository's model_store).")
]


def checked_hardware(name: str | None) -> str | None:
    """A hardware name that requests could use too; it names a folder of the model store."""
    if name is not None and not re.fullmatch(HARDWARE_PATTERN, name):
        raise typer.BadParameter(f"{name!r} must be letters, digits, '.', '_' and '-', 64 at most")
    return name


def checked_device(name: str) -> str:
    """A device as torch calls it."""
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise typer.BadParameter(f"{name!r} must be cpu, cuda or cuda:<n>")
    return name


Device = Annotated[str, typer.Option(help="cpu, cuda or cuda:<n>.", callback=checked_device)]

OptionalHardware = Annotated[
    str | None, typer.Option("--hardware", help="Name of the hardware, as in requests.", callback=checked_hardware)
]
Hardware = Annotated[str, typer.Option(help="Name of the hardware, as in requests.", callback=checked_hardware)]


def settings_with(**given: object) -> "Settings":
    """Settings from the environment, overridden by the options that were given."""
    from pydantic import ValidationError

    from service.settings import Settings

    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]
    except ValidationError as error:
        faults = [f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()]
        fail(f"shardwright: settings: {'; '.join(faults)}")


def fail(text: str) -> NoReturn:
    """Ends the command with a line on standard error and exit code 1."""
    typer.echo(text, err=True)
    sys.exit(1)


def read_body(path: Path) -> bytes:
    """Bytes of a file, or of standard input where it is ``-``; ends the command where they cannot be read."""
    try:
        return sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    except OSError as error:
        fail(f"shardwright: cannot read {path}: {error.strerror}")


def refuse(error: ShardwrightError, **more: object) -> NoReturn:
    """Ends the command with the problem that the API would have answered, and ``more`` members in it."""
    from service.api.problems import problem_of

    fail(json.dumps({**problem_of(error, "command line"), **more}, indent=2))


def operator() -> str:
    """Who runs the command, for the record."""
    try:
        return f"{getpass.getuser()} on the command line"
    except (KeyError, OSError):
        return "the command line"


def echo_next_step(version: str) -> None:
    """Says how a version that was trained comes to serve."""
    typer.echo(f"a running service takes it up after `shardwright models promote {version}`")


def progress_bar() -> "Progress":
    """A progress bar on standard error, so that standard output stays what the command answers."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    return Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=Console(stderr=True))
