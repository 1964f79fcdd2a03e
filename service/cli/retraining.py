"""``shardwright retrain``: retrains the models of a hardware now, and promotes what is better."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.common import DataDir, Hardware, ModelStoreRoot, settings_with

if TYPE_CHECKING:
    from service.domain.trainings import Outcome

app = typer.Typer()

Model = Annotated[
    list[str] | None,
    typer.Option(help="compute, communication, dreamshard or autoshard; may be given again (default: all, in turn)."),
]
Margin = Annotated[
    float | None,
    typer.Option(min=0, max=0.99, help="By how much a version must be better to be promoted, as a fraction [0.01]."),
]


@app.command()
def retrain(
    hardware: Hardware = "cpu-fbgemm",
    model: Model = None,
    margin: Margin = None,
    model_store: ModelStoreRoot = None,
    data_dir: DataDir = None,
) -> None:
    """Train models on all that is stored, judge them beside those that serve, and promote those that are better.

    Exits with 1 where a training failed; what served goes on serving then.
    """
    from service import upkeep
    from service.database import database
    from service.domain.trainings import Ended
    from service.storage import migrate

    _refuse_unknown(model or [])
    settings = settings_with(data_dir=data_dir, model_store=model_store, nightly_margin=margin)
    with database(settings) as engine:
        migrate.upgrade(engine)
        found = upkeep.retrain(settings, engine, hardware, model, _print)
    if any(outcome.ended is Ended.FAILED for outcome in found):
        sys.exit(1)


def _refuse_unknown(models: list[str]) -> None:
    from service.domain.trainings import MODELS

    for name in models:
        if name not in MODELS:
            raise typer.BadParameter(f"{name} is none of {', '.join(MODELS)}", param_hint="--model")


def _print(outcome: "Outcome") -> None:
    serves = f"{outcome.trained} serves" if outcome.trained else f"{outcome.serving or 'nothing'} serves on"
    ended = outcome.ended.value.replace("_", " ")
    typer.echo(f"{outcome.hardware}/{outcome.model}: {ended}, {serves}: {outcome.reason}")
