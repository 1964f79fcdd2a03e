"""What several commands share: options, settings, and how a command fails."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

if TYPE_CHECKING:
    from rich.progress import Progress

    from service.settings import Settings

DataDir = Annotated[Path | None, typer.Option(help="Where the embedded Postgres keeps its data [./var].")]
ModelStoreRoot = Annotated[
    str | None, typer.Option(help="Where model versions are kept [the repository's model_store].")
]
Hardware = Annotated[str, typer.Option(help="Name of the hardware, as in requests.")]


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
