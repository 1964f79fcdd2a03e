"""``shardwright keys``: who may call the service, and what for."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.common import DataDir, operator, settings_with
from service.cli.output import AsJson, Row, print_list
from service.domain.callers import Scope

if TYPE_CHECKING:
    from service.domain.access import ApiKey
    from service.storage.api_keys import ApiKeyRepository

app = typer.Typer(no_args_is_help=True, help="API keys: who may call the service, and what for.")


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="Of the caller; keys of one name have the same plans.", metavar="NAME")],
    scope: Annotated[list[Scope], typer.Option(help="What the key is for; may be given again. admin is for all.")],
    valid_days: Annotated[
        float | None, typer.Option(min=0.001, max=36_500, help="Days after which it expires [never].")
    ] = None,
    requests_per_minute: Annotated[
        int | None, typer.Option(min=1, max=10**6, help="To each API process [the service's default].")
    ] = None,
    burst: Annotated[int | None, typer.Option(min=1, max=10**6, help="Of these at once [the service's].")] = None,
    data_dir: DataDir = None,
) -> None:
    """Make a key and print it: alone on standard output, now and never again."""
    from service.domain.access import NewKey, checked_name

    wanted = NewKey(checked_name(name), frozenset(scope), valid_days, requests_per_minute, burst)
    with _repository(data_dir) as keys:
        others = [key.id for key in keys.all().values() if key.name == name and key.state == "valid"]
        made, secret = keys.create(wanted, operator())
    typer.echo(f"key {made.id} of {name}, for {', '.join(sorted(made.scopes))}; keep it: it is not stored", err=True)
    if others:
        typer.echo(f"{name} has other valid keys, and the same plans with each: {', '.join(others)}", err=True)
    typer.echo(secret)


@app.command(name="list")
def list_keys(as_json: AsJson = False, data_dir: DataDir = None) -> None:
    """List all keys, without their secrets."""
    with _repository(data_dir) as keys:
        found = keys.all().values()
    headings = ("id", "name", "scopes", "state", "created", "expires", "last used", "limits")
    print_list(headings, map(_row, found), as_json)


@app.command()
def revoke(
    key_id: Annotated[str, typer.Argument(help="As `keys list` has it.", metavar="ID")], data_dir: DataDir = None
) -> None:
    """Make a key invalid for good; services on the database refuse it within seconds."""
    with _repository(data_dir) as keys:
        key = keys.revoke(key_id, operator())
    typer.echo(f"key {key.id} of {key.name} is revoked")


def _row(key: "ApiKey") -> Row:
    scopes, known = sorted(key.scopes), asdict(key)
    times = [_day(time) for time in (key.created_at, key.expires_at, key.last_used_at)]
    limits = f"{key.requests_per_minute or 'default'} / {key.burst or 'default'}"
    cells = (key.id, key.name, ", ".join(scopes), key.state, *times, limits)
    return cells, known | {"scopes": scopes, "state": key.state}


@contextmanager
def _repository(data_dir: DataDir) -> Iterator["ApiKeyRepository"]:
    from service.database import database
    from service.storage import migrate
    from service.storage.api_keys import ApiKeyRepository
    from service.storage.audit import AuditTrail

    with database(settings_with(data_dir=data_dir)) as engine:
        migrate.upgrade(engine)
        yield ApiKeyRepository(engine, AuditTrail(engine))


def _day(time: datetime | None) -> str:
    return f"{time.astimezone(UTC):%Y-%m-%d}" if time else "-"
