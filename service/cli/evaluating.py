"""``shardwright evaluate``: how far versions of the cost models can be trusted, overall and slice by slice."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.cli.common import DataDir, Hardware, ModelStoreRoot, fail, read_body, settings_with
from service.domain.errors import TooFewMeasurements
from service.domain.measurements import Split

if TYPE_CHECKING:
    from service.domain.measurements import CommunicationMeasurement, ComputeMeasurement
    from service.profiling.plan_picks import Pick
    from service.registry.store import ModelStore
    from service.settings import Settings
    from service.usecases.evaluate_models import Evaluation

app = typer.Typer()


class Models(StrEnum):
    """What to evaluate."""

    COMPUTE = "compute"
    COMMUNICATION = "communication"
    BOTH = "both"


@app.command()
def evaluate(
    hardware: Hardware = "cpu-fbgemm",
    model: Annotated[Models, typer.Option(help="Which cost model.")] = Models.BOTH,
    version: Annotated[
        int | None, typer.Option(min=1, help="Number of its version, with --model (default: the newest).")
    ] = None,
    part: Annotated[Split, typer.Option(help="Part of the frozen split to judge it on.")] = Split.TEST,
    measurements: Annotated[
        str | None, typer.Option(help="A file of `db export` to read instead of the database, as `train` reads it.")
    ] = None,
    plots: Annotated[Path | None, typer.Option(help="Folder for PNG plots; made where it is missing.")] = None,
    plans: Annotated[
        list[Path] | None, typer.Option(help="An answer of `measure` on several plans; may be given again.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="JSON instead of tables, with all slices of all costs.")
    ] = False,
    model_store: ModelStoreRoot = None,
    data_dir: DataDir = None,
) -> None:
    """Judge versions of the cost models on stored measurements that they were not trained on."""
    from service.profiling.plan_picks import read_pick
    from service.registry.store import ModelStore

    if version is not None and model is Models.BOTH:
        raise typer.BadParameter("needs --model compute or --model communication", param_hint="--version")
    twice = {path for path in plans or () if (plans or []).count(path) > 1}
    if twice:
        raise typer.BadParameter(f"{min(twice)} is given twice", param_hint="--plans")
    settings = settings_with(data_dir=data_dir, model_store=model_store)
    picks = [read_pick(str(path), read_body(path)) for path in plans or ()]
    chosen = [Models.COMPUTE, Models.COMMUNICATION] if model is Models.BOTH else [model]
    stored = _stored(settings, hardware, measurements)
    store = ModelStore(settings.model_store)
    evaluations = [_evaluation(store, hardware, kind, version, stored, part) for kind in chosen]
    written = _write_plots(evaluations, plots) if plots else []
    answer = evaluated_answer(evaluations, picks, written)
    if as_json:
        typer.echo(json.dumps(answer, indent=2))
    else:
        from service.cli.pretty_evaluation import print_evaluated

        print_evaluated(answer)


def evaluated_answer(
    evaluations: Sequence["Evaluation"], picks: Sequence["Pick"], plots: Sequence[Path]
) -> dict[str, Any]:
    """Evaluations as JSON; ``plans`` is None where no answers of `measure` were given."""
    from service.profiling.plan_picks import picks_of

    return {
        "models": [_model_answer(evaluation) for evaluation in evaluations],
        "plans": {**asdict(picks_of(picks)), "warnings": _pick_warnings(picks, evaluations)} if picks else None,
        "plots": [str(path) for path in plots],
    }


def _model_answer(evaluation: "Evaluation") -> dict[str, Any]:
    return {
        "version": evaluation.version,
        "part": evaluation.part.value,
        "measurements": evaluation.rows,
        "costs": {
            name: {
                "overall": judged.overall().as_dict(),
                "slices": {
                    attribute: {called: found.as_dict() for called, found in slices.items()}
                    for attribute, slices in judged.sliced().items()
                },
            }
            for name, judged in evaluation.costs.items()
        },
        "warnings": list(evaluation.warnings),
    }


def _pick_warnings(picks: Sequence["Pick"], evaluations: Sequence["Evaluation"]) -> list[str]:
    versions = {evaluation.version for evaluation in evaluations}
    return [
        *(f"{pick.source} is not counted: {pick.unjudged}" for pick in picks if pick.unjudged),
        *(
            f"{pick.source} was predicted by {', '.join(sorted(pick.models.values()))}: it says nothing of {missing}"
            for pick in picks
            for missing in sorted(versions - {*pick.models.values()})
        ),
    ]


def _stored(
    settings: "Settings", hardware: str, file: str | None
) -> tuple[list["ComputeMeasurement"], list["CommunicationMeasurement"]]:
    """All measurements of a hardware, from the database or from a file of them."""
    from service.database import database
    from service.storage import migrate
    from service.storage.measurement_files import read_measurements
    from service.storage.measurements import MeasurementRepository

    if file is not None:
        compute, communication = read_measurements(file)
        return [m for m in compute if m.hardware == hardware], [m for m in communication if m.hardware == hardware]
    with database(settings) as engine:
        migrate.upgrade(engine)
        repository = MeasurementRepository(engine)
        return repository.compute(hardware), repository.communication(hardware)


def _evaluation(
    store: "ModelStore",
    hardware: str,
    kind: Models,
    number: int | None,
    stored: tuple[list["ComputeMeasurement"], list["CommunicationMeasurement"]],
    part: Split,
) -> "Evaluation":
    from service.domain.versions import Version
    from service.usecases.evaluate_models import evaluate_communication_version, evaluate_compute_version

    version = Version(hardware, kind.value, number) if number else store.latest(hardware, kind.value)
    if version is None:
        raise TooFewMeasurements(
            f"no {kind.value} version of {hardware} was trained: run `shardwright train {kind.value}`"
        )
    manifest, _ = store.read(version)
    if kind is Models.COMPUTE:
        return evaluate_compute_version(store.compute_model(version), manifest, stored[0], part)
    return evaluate_communication_version(store.communication_model(version), manifest, stored[1], part)


def _write_plots(evaluations: Sequence["Evaluation"], folder: Path) -> list[Path]:
    from service.cli.plots import write_plots

    try:
        folder.mkdir(parents=True, exist_ok=True)
        return [path for evaluation in evaluations for path in write_plots(evaluation, folder)]
    except OSError as error:
        fail(f"shardwright: cannot write plots to {folder}: {error.strerror}")
