"""``shardwright profile``: measuring campaigns."""

import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.common import DataDir, Device, ModelStoreRoot, OptionalHardware, fail, progress_bar, settings_with
from service.domain.errors import MeasurementRefused
from service.domain.tables import DataType, Optimizer

if TYPE_CHECKING:
    from rich.progress import Progress as ProgressBar

    from service.domain.ports import MeasurementStore
    from service.domain.tables import Table
    from service.profiling.campaign import Campaign, CampaignSettings, Progress
    from service.profiling.compute_bench import ComputeBench


class Kind(StrEnum):
    """What a campaign measures."""

    COMPUTE = "compute"
    COMMUNICATION = "communication"
    BOTH = "both"


app = typer.Typer()


@app.command()
def profile(
    hardware: OptionalHardware = None,
    device: Device = "cpu",
    kind: Annotated[Kind, typer.Option(help="What to measure.")] = Kind.BOTH,
    tables: Annotated[Path | None, typer.Option(help="Pool of tables as JSON; a generated one without it.")] = None,
    samples: Annotated[int, typer.Option(min=1, help="Combinations to have in the end.")] = 10_000,
    exchanges: Annotated[
        int | None, typer.Option(min=1, help="Exchanges to have in the end, of each number of ranks [200].")
    ] = None,
    minutes: Annotated[float, typer.Option(min=0, help="Stop after this long; a run in hand is finished.")] = 60.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the draws; another seed is another campaign.")] = 0,
    optimizer: Annotated[
        list[Optimizer] | None,
        typer.Option(
            help="Optimizer fused into the backward pass; give it once for each; all that the device has without it."
        ),
    ] = None,
    data_type: Annotated[
        list[DataType] | None,
        typer.Option(help="Precision of the weights; give it once for each; all that the device has without it."),
    ] = None,
    memory_gib: Annotated[float, typer.Option(min=0.01, help="Most memory that one combination may take.")] = 4.0,
    ranks: Annotated[
        list[int] | None,
        typer.Option(
            min=2, help="Ranks that exchange; give it once for each number; 2, 4 and 8 without it, on cuda all GPUs."
        ),
    ] = None,
    active: Annotated[
        bool,
        typer.Option("--active", help="Measure what the trained models are least certain about; combinations alone."),
    ] = False,
    retrain_every: Annotated[
        int | None, typer.Option(min=0, help="With --active: measurements between trainings; 0 for none [200].")
    ] = None,
    model_store: ModelStoreRoot = None,
    data_dir: DataDir = None,
) -> None:
    """Measure the collectives and the operator on this machine, in this order; run it alone.

    Combinations are stored one by one as they are made, exchanges fifty at a time, the numbers of ranks in turn: stop
    with Ctrl-C and run the same command again to go on. More ranks than cores are measured all the same and marked as
    oversubscribed. Where exchanges or all combinations are refused, the rest is measured, and the exit code is
    1.

    With --active half of the combinations are those that the newest models are least certain about, half are devices
    of plans that these models make. It is a campaign of its own, of tables of the train part alone.
    """
    from service.database import database
    from service.domain.fused_operator import supported_data_types, supported_optimizers
    from service.profiling.campaign import Campaign, CampaignSettings
    from service.profiling.devices import refuse_device
    from service.profiling.pools import generated_pool, read_pool
    from service.storage import migrate
    from service.storage.measurements import MeasurementRepository

    if active:
        _refuse_exchanges_with_active(kind, ranks, exchanges)
    elif retrain_every is not None:
        raise typer.BadParameter("needs --active", param_hint="--retrain-every")
    if hardware is None:
        if device != "cpu":
            fail(f"shardwright: --hardware: name what {device} is, for example --hardware a100-80")
        hardware = "cpu-fbgemm"
    ends = time.monotonic() + minutes * 60
    refuse_device(hardware, device)
    settings = CampaignSettings(
        hardware,
        seed,
        tuple(optimizer or supported_optimizers(device)),
        tuple(data_type or supported_data_types(device)),
        int(memory_gib * 2**30),
        device,
    )
    pool = read_pool(tables) if tables else generated_pool()
    given = settings_with(data_dir=data_dir, model_store=model_store)
    whole = True
    with database(given, create=True) as engine:
        migrate.upgrade(engine)
        store = MeasurementRepository(engine)
        try:
            if kind is not Kind.COMPUTE and not active:
                whole = _measure_exchanges(store, settings, ranks, device, exchanges or 200, ends)
            if active:
                every = 200 if retrain_every is None else retrain_every
                whole = _measure_actively(store, pool, settings, samples, ends, given.model_store, every)
            elif kind is not Kind.COMMUNICATION:
                whole = _measure_combinations(store, Campaign(pool, settings), samples, ends) and whole
        except KeyboardInterrupt:
            typer.echo("stopped: what was measured is stored, the same command goes on from here", err=True)
    if not whole:
        raise typer.Exit(1)


def _refuse_exchanges_with_active(kind: Kind, ranks: list[int] | None, exchanges: int | None) -> None:
    given = {
        "--kind": kind is Kind.COMMUNICATION,
        "--ranks": ranks is not None,
        "--exchanges": exchanges is not None,
    }
    for option, wanted in given.items():
        if wanted:
            raise typer.BadParameter("--active chooses combinations, no exchanges: leave one out", param_hint=option)


def _measure_exchanges(
    store: "MeasurementStore",
    settings: "CampaignSettings",
    ranks: list[int] | None,
    device: str,
    samples: int,
    ends: float,
) -> bool:
    """A campaign for each number of ranks, in turn; ``ends`` is on the monotonic clock. False where one was refused."""
    from service.profiling.comm_campaign import CommunicationCampaign, default_ranks, in_turn

    numbers = ranks or default_ranks(device)
    if not numbers:
        typer.echo("no exchange is measured: that takes two GPUs", err=True)
    campaigns = [CommunicationCampaign(settings.hardware, number, settings.seed, device) for number in numbers]
    done: dict[str, Progress] = {}
    refusals: list[str] = []
    with progress_bar() as bar:
        report = {c.name: _report(bar, f"exchanges of {c.name}", samples) for c in campaigns}
        runs = {c.name: c.runs(store, samples, ends - time.monotonic()) for c in campaigns}
        for name, reached in in_turn(runs):
            if isinstance(reached, MeasurementRefused):
                refusals.append(reached.detail)
            else:
                done[name] = reached
                report[name](reached)
    for name, progress in done.items():
        typer.echo(f"{name}: {progress.measured} measured, {progress.stored} stored before")
    for detail in refusals:
        typer.echo(f"shardwright: {detail}", err=True)
    return not refusals


def _measure_combinations(store: "MeasurementStore", campaign: "Campaign", samples: int, ends: float) -> bool:
    """False where nothing is stored and some were refused."""
    bench = _bench(campaign.settings)
    with progress_bar() as bar:
        report = _report(bar, f"combinations of {campaign.name}", samples)
        done = campaign.run(bench, store, samples, ends - time.monotonic(), report)
    return _say_measured(campaign.name, done)


def _measure_actively(
    store: "MeasurementStore",
    pool: "Sequence[Table]",
    settings: "CampaignSettings",
    samples: int,
    ends: float,
    model_store: str,
    retrain_every: int,
) -> bool:
    """False where nothing is stored and some were refused; ends the command where no models can choose."""
    from service.cli.choosing import Choosers
    from service.profiling.active import ActiveCampaign
    from service.registry.store import ModelStore

    campaign = ActiveCampaign(pool, settings)
    choosers = Choosers(ModelStore(model_store), settings, campaign.name, store, retrain_every)
    bench = _bench(settings)
    with progress_bar() as bar:
        report = _report(bar, f"combinations of {campaign.name}", samples)
        done = campaign.run(bench, store, choosers, samples, ends - time.monotonic(), report)
    return _say_measured(campaign.name, done)


def _bench(settings: "CampaignSettings") -> "ComputeBench":
    from service.profiling.compute_bench import BenchSettings, ComputeBench

    return ComputeBench(BenchSettings(device=settings.device, memory_bytes=settings.memory_bytes))


def _say_measured(campaign: str, done: "Progress") -> bool:
    """False where nothing is stored and some were refused."""
    typer.echo(f"{campaign}: {done.measured} measured, {done.stored} stored before, {done.refused} refused")
    if done.refused:
        typer.echo(f"shardwright: refused, the last one because {done.refusal}", err=True)
    return bool(done.measured or done.stored or not done.refused)


def _report(bar: "ProgressBar", what: str, total: int) -> Callable[["Progress"], None]:
    """Moves a line of its own on the bar."""
    task = bar.add_task(what, total=total)
    return lambda progress: bar.update(task, completed=progress.stored + progress.measured + progress.refused)
