"""``shardwright profiles``: what the worker pool measures, for operators."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.common import DataDir, OptionalHardware, fail, settings_with
from service.cli.output import AsJson, print_json_lines
from service.domain.profiles import ProfileState

if TYPE_CHECKING:
    from service.storage.profiles import ProfileRepository

app = typer.Typer(no_args_is_help=True, help="Tables that are measured on the worker pool.")


@contextmanager
def _repository(data_dir: DataDir) -> "Iterator[ProfileRepository]":
    from service.database import database
    from service.storage import migrate
    from service.storage.profiles import ProfileRepository

    with database(settings_with(data_dir=data_dir)) as engine:
        migrate.upgrade(engine)
        yield ProfileRepository(engine)


@app.command("list")
def list_profiles(
    hardware: OptionalHardware = None,
    state: Annotated[ProfileState | None, typer.Option(help="Only those in this state.")] = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Print profiles, the newest first, in the API's words: id, state, attempts, what is measured, the last error."""
    from service.api.profile_answers import profile_standing

    with _repository(data_dir) as profiles:
        listed = [profile_standing(stored) for stored in profiles.profiles(hardware, state)]
    if as_json:
        print_json_lines(found.model_dump() for found in listed)
        return
    for found in listed:
        measures = [f"{name}={value}" for name, value in found.measures]
        reason = (found.error or "").strip().splitlines()[-1:]
        typer.echo(" ".join([found.profile_id, found.state, f"attempts={found.attempts}", *measures, *reason]))


@app.command()
def show(profile_id: str, data_dir: DataDir = None) -> None:
    """Print all that is known of a profile, its results included, as GET /profiles has it."""
    from service.api.profile_answers import profile_standing

    with _repository(data_dir) as profiles:
        found = profiles.get(profile_id)
    if found is None:
        fail(
            f"shardwright: no profile is stored under {profile_id!r}: `shardwright profiles list` shows those that are"
        )
    typer.echo(profile_standing(found).model_dump_json(indent=2))


@app.command()
def retry(
    profile_ids: Annotated[list[str] | None, typer.Argument(help="Ids of profiles.")] = None,
    parked: Annotated[bool, typer.Option("--parked", help="All that are parked, of --hardware if given.")] = False,
    hardware: OptionalHardware = None,
    data_dir: DataDir = None,
) -> None:
    """Queue parked or expired profiles again, as if they were new."""
    from service.wiring import profile_terms

    if bool(profile_ids) == parked:
        raise typer.BadParameter("give ids of profiles, or --parked")
    with _repository(data_dir) as profiles:
        wanted = profile_ids or [found.key for found in profiles.profiles(hardware, ProfileState.PARKED)]
        queued = profiles.retry(wanted, profile_terms(settings_with()))
    typer.echo(f"{len(queued)} of {len(wanted)} queued again")
    if len(queued) < len(wanted):
        fail(
            "shardwright: only parked and expired profiles can be queued again; the others are unknown, wait, or were "
            "measured: see `shardwright profiles list`"
        )
