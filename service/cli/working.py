"""``shardwright worker``: the processes that measure what requests bring."""

import itertools
import os
from collections import Counter
from collections.abc import Sequence
from typing import Annotated

import typer

from service.cli.common import DataDir, checked_device, checked_hardware, settings_with

app = typer.Typer()


def _checked_devices(names: list[str] | None) -> list[str] | None:
    return names and [checked_device(name) for name in names]


def cpu_set(text: str) -> tuple[int, ...]:
    """Processor cores, as in ``0-3,8``.

    Raises:
        typer.BadParameter: that is not what the text says, or this process may not run on one of them.
    """
    cores: set[int] = set()
    try:
        for part in text.split(","):
            first, _, last = part.partition("-")
            cores.update(range(int(first), int(last or first) + 1))
    except ValueError:
        raise typer.BadParameter(f"{text!r} must be cores, for example 1 or 0-3 or 0,2", param_hint="--cpus") from None
    usable = os.sched_getaffinity(0)
    if not cores or not cores <= usable:
        known = ",".join(map(str, sorted(usable)))
        raise typer.BadParameter(f"{text!r}: this process may run on cores {known}", param_hint="--cpus")
    return tuple(sorted(cores))


def cpu_sets(texts: Sequence[str]) -> list[tuple[int, ...]]:
    """The cores of each worker.

    Raises:
        typer.BadParameter: as of ``cpu_set``, or two workers would share a core.
    """
    sets = [cpu_set(text) for text in texts]
    shared = sorted(core for core, uses in Counter(itertools.chain(*sets)).items() if uses > 1)
    if shared:
        raise typer.BadParameter(
            f"core {shared[0]} is given twice: workers on the same core would time each other", param_hint="--cpus"
        )
    return sets


@app.command()
def worker(
    hardware: Annotated[
        str, typer.Option(help="Name of the hardware that is measured, as in requests.", callback=checked_hardware)
    ],
    device: Annotated[
        list[str] | None,
        typer.Option(help="cpu or cuda:<n>; give it once for each GPU [cpu].", callback=_checked_devices),
    ] = None,
    cpus: Annotated[
        list[str] | None,
        typer.Option(help="Cores that measuring is bound to, as 1 or 0-3; give it once for each worker on the CPU."),
    ] = None,
    memory_gib: Annotated[
        float | None, typer.Option(min=0.05, help="Most memory that one table may take; rows are cut to it [4].")
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Measure tables that requests bring, one worker to a GPU or to a set of cores, until SIGTERM or Ctrl-C.

    Run it alone on the machine, or bound to cores that nothing else uses: what else runs there is in the times. A job
    in hand has SHARDWRIGHT_WORKER_SHUTDOWN_S seconds (20) to finish, then it is given back; ten more, and what still
    runs is killed.
    """
    from service import wiring
    from service.jobs.measuring import Device
    from service.profiling.devices import refuse_device

    names = device or ["cpu"]
    if cpus and names != ["cpu"]:
        raise typer.BadParameter("binds workers on the CPU: leave it out, or --device", param_hint="--cpus")
    if len(set(names)) < len(names):
        raise typer.BadParameter("a device has one worker: give each once", param_hint="--device")
    for name in names:
        refuse_device(hardware, name)
    devices = [Device("cpu", cores) for cores in cpu_sets(cpus)] if cpus else [Device(name) for name in names]
    wiring.work(settings_with(data_dir=data_dir, worker_memory_gib=memory_gib), hardware, devices)
