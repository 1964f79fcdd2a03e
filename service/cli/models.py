"""``shardwright models``: which versions there are, which serve, and that another one shall."""

from dataclasses import asdict
from datetime import UTC
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.common import DataDir, ModelStoreRoot, OptionalHardware, operator, settings_with
from service.cli.output import AsJson, Row, print_list

if TYPE_CHECKING:
    from service.domain.trainings import Outcome
    from service.registry.store import ModelStore
    from service.usecases.model_versions import ListedVersion

app = typer.Typer(no_args_is_help=True, help="Versions of the models: which serve, and what there is.")

_DAY = len("2026-11-29")

Reason = Annotated[str, typer.Option(help="Why, for people; kept with the decision.")]


@app.command(name="list")
def list_versions(
    hardware: OptionalHardware = None,
    as_json: AsJson = False,
    model_store: ModelStoreRoot = None,
    data_dir: DataDir = None,
) -> None:
    """List the versions of all models, whether they can be loaded, and which serve."""
    from service.database import database
    from service.storage import migrate
    from service.storage.promotions import PromotionRepository
    from service.usecases.model_versions import listed, serving_version

    settings = settings_with(data_dir=data_dir, model_store=model_store)
    catalog = _store(settings.model_store)
    with database(settings) as engine:
        migrate.upgrade(engine)
        standing = PromotionRepository(engine).standing()
    rows: list[Row] = []
    for model in catalog.models():
        if hardware in (None, model[0]):
            serving = serving_version(catalog, standing, model)
            rows += [_version_row(found, found.version == serving) for found in listed(catalog, model, load=True)]
    print_list(("version", "created", "held out", "serves", "state"), rows, as_json, whole=2)


@app.command()
def trainings(
    hardware: OptionalHardware = None,
    limit: Annotated[int, typer.Option(min=1, help="Most trainings that are listed.")] = 20,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """List what retraining came to, the last first."""
    from service.database import database
    from service.storage import migrate
    from service.storage.trainings import TrainingRepository

    with database(settings_with(data_dir=data_dir)) as engine:
        migrate.upgrade(engine)
        found = TrainingRepository(engine).all(hardware, limit)
    print_list(("ended", "model", "outcome", "trained", "reason"), map(_training_row, found), as_json)


@app.command()
def promote(
    version: Annotated[str, typer.Argument(help="<hardware>/<model>/<number>, or .../analytic.", metavar="VERSION")],
    reason: Reason = "",
    model_store: ModelStoreRoot = None,
    data_dir: DataDir = None,
) -> None:
    """Have a version serve: all services on the database follow within seconds."""
    from service.database import database
    from service.storage import migrate
    from service.storage.promotions import PromotionRepository
    from service.usecases import model_versions as usecases

    hardware, model, number = _parts(version, "<hardware>/<model>/<number>", 3)
    settings = settings_with(data_dir=data_dir, model_store=model_store)
    catalog = _store(settings.model_store)
    with database(settings) as engine:
        migrate.upgrade(engine)
        found = usecases.named(catalog, hardware, model, number)
        promotions = PromotionRepository(engine)
        usecases.promote(catalog, promotions, found, operator(), reason)
        typer.echo(f"{found} serves")


@app.command()
def rollback(
    model: Annotated[str, typer.Argument(help="<hardware>/<model>.", metavar="MODEL")],
    reason: Reason = "",
    model_store: ModelStoreRoot = None,
    data_dir: DataDir = None,
) -> None:
    """Have the version serve that served before; again, the one before that."""
    from service.database import database
    from service.storage import migrate
    from service.storage.promotions import PromotionRepository
    from service.usecases import model_versions as usecases

    hardware, kind = _parts(model, "<hardware>/<model>", 2)
    settings = settings_with(data_dir=data_dir, model_store=model_store)
    catalog = _store(settings.model_store)
    with database(settings) as engine:
        migrate.upgrade(engine)
        made = usecases.rollback(catalog, PromotionRepository(engine), (hardware, kind), operator(), reason)
        typer.echo(f"{usecases.numbered(catalog, (hardware, kind), made.number)} serves")


@app.command()
def prune(
    keep: Annotated[int, typer.Option(min=1, help="Newest versions of each model that stay whatever they are.")] = 5,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be deleted, and delete nothing.")] = False,
    model_store: ModelStoreRoot = None,
    data_dir: DataDir = None,
) -> None:
    """Delete old versions that do not serve, that no rollback needs, and that no plan or launch in use names."""
    from service.database import database
    from service.storage import migrate
    from service.storage.plans import PlanRepository
    from service.storage.promotions import PromotionRepository
    from service.usecases import model_versions as usecases

    settings = settings_with(data_dir=data_dir, model_store=model_store)
    with database(settings) as engine:
        migrate.upgrade(engine)
        named = PlanRepository(engine).models_named(settings.prune_spares_plans_of_days)
        old = usecases.prune(_store(settings.model_store), PromotionRepository(engine), named, keep, dry_run)
    for version in old:
        gone = "would be deleted" if dry_run else "deleted"
        typer.echo(f"{version.name}: {f'kept, {version.kept_because}' if version.kept_because else gone}")
    if not old:
        typer.echo(f"no model has more than {keep} trained versions")


def _store(root: str) -> "ModelStore":
    from service.registry.store import ModelStore

    return ModelStore(root)


def _parts(name: str, form: str, count: int) -> list[str]:
    parts = name.split("/")
    if len(parts) != count:
        raise typer.BadParameter(f"{name!r} is not of the form {form}")
    return parts


def _training_row(outcome: "Outcome") -> Row:
    ended = f"{outcome.finished_at.astimezone(UTC):%Y-%m-%d %H:%M}Z"
    trained = outcome.trained.rpartition("/")[2] if outcome.trained else "-"
    return (ended, f"{outcome.hardware}/{outcome.model}", outcome.ended, trained, outcome.reason), asdict(outcome)


def _version_row(found: "ListedVersion", serves: bool) -> Row:
    name, state = str(found.version), "damaged" if found.fault else "sound"
    told = f"{state}: {found.fault}" if found.fault else state
    cells = (name, (found.created_at or "-")[:_DAY], _held_out(found), "yes" if serves else "", told)
    return cells, {**asdict(found), "version": name, "serves": serves, "state": state}


def _held_out(found: "ListedVersion") -> str:
    titles = {"mape": "MAPE", "cost_by_best_heuristics": "cost / best heuristic's"}
    told = [
        f"{titles[kind]} {', '.join(f'{name} {value:.1%}' for name, value in values.items())}"
        for kind, values in found.metrics.items()
    ]
    return "; ".join(told) or "-"
