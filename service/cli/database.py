"""``shardwright db``: the schema, the measurements that are part of the repository, and what is kept."""

from typing import Annotated

import typer

from service.cli.common import DataDir, Hardware, ModelStoreRoot, OptionalHardware, fail, settings_with

app = typer.Typer(no_args_is_help=True, help="The database: its schema, the shipped measurements, and what is kept.")


@app.command()
def upgrade(data_dir: DataDir = None) -> None:
    """Bring the schema to what this version needs, in a new database where there is none."""
    from service.database import database
    from service.storage import migrate

    with database(settings_with(data_dir=data_dir), create=True) as engine:
        migrate.upgrade(engine)
        typer.echo(migrate.current(engine))


@app.command()
def current(data_dir: DataDir = None) -> None:
    """Print the schema's revision and the one that this version needs."""
    from service.database import database
    from service.storage import migrate

    with database(settings_with(data_dir=data_dir)) as engine:
        typer.echo(f"{migrate.current(engine)} (head: {migrate.head()})")


@app.command()
def check(data_dir: DataDir = None) -> None:
    """Exit with 1 where the schema differs from what this version needs."""
    from service.database import database
    from service.storage import migrate

    with database(settings_with(data_dir=data_dir)) as engine:
        differences = [repr(difference) for difference in migrate.drift(engine)]
        if migrate.current(engine) != migrate.head():
            differences.insert(0, f"at revision {migrate.current(engine)}, not at {migrate.head()}")
    if differences:
        fail("\n".join(differences))
    typer.echo("ok")


@app.command()
def seed(
    hardware: OptionalHardware = None,
    model_store: ModelStoreRoot = None,
    data_dir: DataDir = None,
) -> None:
    """Load the measurements that the shipped models were trained on; those already there are left alone."""
    from service.database import database
    from service.registry.store import ModelStore
    from service.storage import migrate
    from service.storage.measurement_files import read_measurements
    from service.storage.measurements import MeasurementRepository

    settings = settings_with(data_dir=data_dir, model_store=model_store)
    files = ModelStore(settings.model_store).measurement_files()
    chosen = {name: path for name, path in files.items() if hardware in (None, name)}
    if not chosen:
        fail(f"shardwright: {settings.model_store} holds no measurements of {hardware or 'any hardware'}")
    with database(settings, create=True) as engine:
        migrate.upgrade(engine)
        store = MeasurementRepository(engine)
        for name, path in chosen.items():
            compute, communication = read_measurements(path)
            added = store.add_compute_many(compute), store.add_communication_many(communication)
            typer.echo(
                f"{name}: {added[0]} of {len(compute)} combinations and {added[1]} of {len(communication)} exchanges "
                "added, the others were there"
            )


@app.command()
def export(hardware: Hardware = "cpu-fbgemm", model_store: ModelStoreRoot = None, data_dir: DataDir = None) -> None:
    """Write the stored measurements of a hardware beside its models, for ``db seed``."""
    from service.database import database
    from service.registry.store import ModelStore
    from service.storage.measurement_files import write_measurements
    from service.storage.measurements import MeasurementRepository

    settings = settings_with(data_dir=data_dir, model_store=model_store)
    with database(settings) as engine:
        store = MeasurementRepository(engine)
        compute, communication = store.compute(hardware), store.communication(hardware)
    if not compute and not communication:
        fail(f"shardwright: no measurements of {hardware} are stored: run `shardwright profile` first")
    path = ModelStore(settings.model_store).measurement_file(hardware)
    write_measurements(path, compute, communication)
    typer.echo(f"{path}: {len(compute)} combinations and {len(communication)} exchanges")


Days = Annotated[int | None, typer.Option(min=1, help="Days to keep them for; the settings say how many otherwise.")]


@app.command()
def prune(
    plans_days: Days = None,
    observations_days: Days = None,
    profiles_days: Days = None,
    measurements_days: Days = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Delete nothing; say what would be deleted.")] = False,
    model_store: ModelStoreRoot = None,
    data_dir: DataDir = None,
) -> None:
    """Delete plans, launches, observations, profiles and superseded measurements that were kept long enough."""
    from service import upkeep
    from service.database import database

    settings = settings_with(
        keep_plans_days=plans_days,
        keep_observations_days=observations_days,
        keep_profiles_days=profiles_days,
        keep_measurements_days=measurements_days,
        model_store=model_store,
        data_dir=data_dir,
    )
    with database(settings) as engine:
        found = upkeep.prune(settings, engine, dry_run=dry_run)
    done = "would be deleted" if dry_run else "deleted"
    for kind, count in found.items():
        typer.echo(f"{kind.value}: {count} {done}")
