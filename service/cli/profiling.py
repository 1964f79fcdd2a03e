"""``shardwright profile``: measuring campaigns."""

import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.common import DataDir, OptionalHardware, fail, progress_bar, settings_with
from service.domain.tables import DataType, Optimizer

if TYPE_CHECKING:
    from service.domain.ports import MeasurementStore
    from service.profiling.campaign import Campaign, Progress


class Kind(StrEnum):
    """What a campaign measures."""

    COMPUTE = "compute"
    COMMUNICATION = "communication"
    BOTH = "both"


app = typer.Typer()


@app.command()
def profile(
    hardware: OptionalHardware = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:<n>.")] = "cpu",
    kind: Annotated[Kind, typer.Option(help="What to measure.")] = Kind.BOTH,
    tables: Annotated[Path | None, typer.Option(help="Pool of tables as JSON; a generated one without it.")] = None,
    samples: Annotated[int, typer.Option(min=1, help="Combinations to have in the end.")] = 10_000,
    exchanges: Annotated[int, typer.Option(min=1, help="Exchanges to have in the end.")] = 60,
    minutes: Annotated[float, typer.Option(min=0, help="Stop measuring combinations after this long.")] = 60.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the draws; another seed is another campaign.")] = 0,
    optimizer: Annotated[Optimizer, typer.Option(help="Optimizer fused into the backward pass.")] = Optimizer.SGD,
    data_type: Annotated[DataType, typer.Option(help="Precision of the weights.")] = DataType.FP32,
    memory_gib: Annotated[float, typer.Option(min=0.01, help="Most memory that one combination may take.")] = 4.0,
    ranks: Annotated[int, typer.Option(min=2, help="Processes that exchange.")] = max(2, min(8, os.cpu_count() or 2)),
    data_dir: DataDir = None,
) -> None:
    """Measure the operator and the collectives on this machine; run it alone.

    Combinations are stored one by one as they are made, exchanges ten at a time: stop with Ctrl-C and run the same
    command again to go on.
    """
    from service import wiring
    from service.profiling.campaign import Campaign, CampaignSettings
    from service.profiling.pools import generated_pool, read_pool
    from service.storage import migrate
    from service.storage.measurements import MeasurementRepository

    if hardware is None:
        if device != "cpu":
            fail(f"shardwright: --hardware: name what {device} is, for example --hardware a100")
        hardware = "cpu-fbgemm"
    settings = CampaignSettings(hardware, seed, optimizer, data_type, int(memory_gib * 2**30))
    campaign = Campaign(read_pool(tables) if tables else generated_pool(), settings)
    with wiring.database(settings_with(data_dir=data_dir)) as engine:
        migrate.upgrade(engine)
        store = MeasurementRepository(engine)
        try:
            if kind is not Kind.COMPUTE:
                _measure_exchanges(store, hardware, ranks, seed, device, exchanges)
            if kind is not Kind.COMMUNICATION:
                _measure_combinations(store, campaign, device, samples, minutes)
        except KeyboardInterrupt:
            typer.echo("stopped: what was measured is stored, the same command goes on from here", err=True)


def _measure_combinations(
    store: "MeasurementStore", campaign: "Campaign", device: str, samples: int, minutes: float
) -> None:
    from service.profiling.compute_bench import BenchSettings, ComputeBench

    bench = ComputeBench(BenchSettings(device=device, memory_bytes=campaign.settings.memory_bytes))
    with progress_bar() as bar:
        task = bar.add_task(f"combinations of {campaign.name}", total=samples)

        def report(progress: "Progress") -> None:
            bar.update(task, completed=progress.stored + progress.measured + progress.refused)

        done = campaign.run(bench, store, samples, minutes * 60, report)
    typer.echo(f"{campaign.name}: {done.measured} measured, {done.stored} stored before, {done.refused} refused")


def _measure_exchanges(
    store: "MeasurementStore", hardware: str, ranks: int, seed: int, device: str, samples: int
) -> None:
    from service.profiling.comm_campaign import CommunicationCampaign

    campaign = CommunicationCampaign(hardware, ranks, seed)
    with progress_bar() as bar:
        task = bar.add_task(f"exchanges of {campaign.name}", total=samples)
        measured = campaign.run(store, samples, device, lambda done: bar.update(task, completed=done))
    typer.echo(f"{campaign.name}: {measured} measured, {samples - measured} stored before")
