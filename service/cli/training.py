"""``shardwright train compute | communication``: cost models from stored measurements."""

from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.common import DataDir, Hardware, ModelStoreRoot, echo_next_step, progress_bar, settings_with
from service.cli.output import console

if TYPE_CHECKING:
    from service.usecases.train_models import TrainedVersion

app = typer.Typer(
    no_args_is_help=True, help="Train cost models on the stored measurements, and policies that place tables."
)


@app.command()
def compute(
    hardware: Hardware = "cpu-fbgemm",
    seed: Annotated[int, typer.Option(help="Seed of the initial weights and the order of batches.")] = 0,
    epochs: Annotated[int | None, typer.Option(min=1, help="Passes over the training part [200].")] = None,
    from_analytic: Annotated[
        bool, typer.Option("--from-analytic", help="Correct the analytic model instead: a few measurements will do.")
    ] = False,
    samples: Annotated[
        int | None,
        typer.Option(
            min=1, help="Correct it by so many of the training part, 30 or more, drawn with --seed; all without it."
        ),
    ] = None,
    model_store: ModelStoreRoot = None,
    data_dir: DataDir = None,
) -> None:
    """Train the compute cost model and write its next version; reports on the frozen held-out part."""
    from datetime import UTC, datetime

    from service.database import database
    from service.domain.versions import COMPUTE
    from service.registry.store import ModelStore
    from service.storage.measurements import MeasurementRepository
    from service.training.compute_trainer import ComputeTraining
    from service.usecases.train_models import calibrate_compute_version, train_compute_version

    if samples is not None and not from_analytic:
        raise typer.BadParameter("needs --from-analytic", param_hint="--samples")
    if epochs is not None and from_analytic:
        raise typer.BadParameter("is of no use with --from-analytic", param_hint="--epochs")
    settings = settings_with(data_dir=data_dir, model_store=model_store)
    if from_analytic:
        store = ModelStore(settings.model_store)
        previous = store.latest(hardware, COMPUTE)
        with database(settings) as engine:
            stored = MeasurementRepository(engine)
            calibrated = calibrate_compute_version(hardware, stored, store, datetime.now(UTC), samples, seed)
        _print_trained(calibrated, "combinations")
        if previous:
            manifest, _ = store.read(previous)
            mape = manifest["metrics"]["total"]["mape"]
            typer.echo(f"the MAPE of {previous} was {mape:.1%}")
        return
    epochs = epochs or 200
    with database(settings) as engine, progress_bar() as bar:
        task = bar.add_task("epochs", total=epochs)
        trained = train_compute_version(
            hardware,
            MeasurementRepository(engine),
            ModelStore(settings.model_store),
            ComputeTraining(seed=seed, epochs=epochs),
            datetime.now(UTC),
            lambda epoch: bar.update(task, completed=epoch + 1),
        )
    _print_trained(trained, "combinations")


@app.command()
def communication(
    hardware: Hardware = "cpu-fbgemm",
    seed: Annotated[int, typer.Option(help="Seed of the initial weights and the order of batches.")] = 0,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training part.")] = 100,
    model_store: ModelStoreRoot = None,
    data_dir: DataDir = None,
) -> None:
    """Train the communication cost model, one for all numbers of devices, and write its next version."""
    from datetime import UTC, datetime

    from service.database import database
    from service.registry.store import ModelStore
    from service.storage.measurements import MeasurementRepository
    from service.training.communication_trainer import CommunicationTraining
    from service.usecases.train_models import train_communication_version

    settings = settings_with(data_dir=data_dir, model_store=model_store)
    with database(settings) as engine, progress_bar() as bar:
        task = bar.add_task("epochs", total=epochs)
        trained = train_communication_version(
            hardware,
            MeasurementRepository(engine),
            ModelStore(settings.model_store),
            CommunicationTraining(seed=seed, epochs=epochs),
            datetime.now(UTC),
            lambda epoch, error: bar.update(task, completed=epoch + 1),
        )
    _print_trained(trained, "exchanges")


def _print_trained(trained: "TrainedVersion", rows: str) -> None:
    from rich.table import Table

    grid = Table("held out", "values", "MSE (ms²)", "MAPE", "median APE", "Kendall's tau", "within 90% interval")
    for name, found in trained.metrics.items():
        coverage = f"{trained.coverage[name]:.1%}" if name in trained.coverage else "-"
        errors = (f"{found.mape:.1%}", f"{found.median_ape:.1%}", f"{found.tau:.3f}", coverage)
        grid.add_row(name, str(found.rows), f"{found.mse:.2f}", *errors)
    console().print(f"{trained.version}, trained on {trained.rows['train']} {rows}", grid)
    echo_next_step(trained.version)
