"""The command line, ``shardwright``.

Planning processes import this package again (it is their parent's main module), so each command imports what it
needs when it runs.
"""

import errno
import os
import signal
import sys

import typer

from service.cli import (
    audit,
    database,
    evaluating,
    keys,
    measuring,
    models,
    profiles,
    profiling,
    retraining,
    serving,
    tables,
    training,
    training_policies,
    working,
)
from service.cli.common import fail
from service.domain.errors import ShardwrightError

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
app.add_typer(serving.app)
app.add_typer(working.app)
app.add_typer(profiling.app)
app.add_typer(measuring.app)
training.app.add_typer(training_policies.app)
app.add_typer(training.app, name="train")
app.add_typer(retraining.app)
app.add_typer(evaluating.app)
app.add_typer(profiles.app, name="profiles")
app.add_typer(keys.app, name="keys")
app.add_typer(audit.app)
app.add_typer(models.app, name="models")
app.add_typer(database.app, name="db")
app.add_typer(tables.app, name="tables")


def main() -> None:
    """Runs the command line; errors of the domain, and a full disk, are one line on standard error and exit code 1."""
    # Unwinds, so that a database that the command started is stopped; `serve` has handlers of its own.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        app()
    except ShardwrightError as error:
        fail(f"shardwright: {error.detail}")
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        # What is left in the buffer must not fail once more when the process ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        fail(f"shardwright: {error}")
