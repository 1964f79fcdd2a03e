"""``shardwright train dreamshard | autoshard``: policies that place tables."""

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from service.cli.common import (
    Device,
    Hardware,
    ModelStoreRoot,
    echo_next_step,
    fail,
    progress_bar,
    read_body,
    settings_with,
)
from service.cli.output import console

if TYPE_CHECKING:
    from service.training.autoshard_trainer import AutoShardTraining
    from service.training.dreamshard_trainer import DreamShardTraining
    from service.training.meters import Meter
    from service.usecases.train_policies import PolicyKind, PolicyTasks, TrainedPolicy

app = typer.Typer()

_Config = TypeVar("_Config", "DreamShardTraining", "AutoShardTraining")


class RewardSource(StrEnum):
    """Where the costs that a policy learns from come from."""

    PREDICTED = "predicted"
    MEASURED = "measured"


Reward = Annotated[RewardSource, typer.Option(help="Costs to learn from: the cost models', or measured here.")]
Tables = Annotated[
    Path | None,
    typer.Option(
        help="JSON file with the tables that tasks are drawn from (default: a generated pool), some hundreds or more. "
        "Families have widths and precisions of their own; --family as-given takes the widths of the tables."
    ),
]
Family = Annotated[
    list[str] | None, typer.Option(help="Family of tasks; may be given again (default: those of shipped versions).")
]
Tasks = Annotated[int | None, typer.Option(min=1, help="Tasks of each family to train on.")]
HeldOut = Annotated[int | None, typer.Option(min=1, help="Tasks of each family, of other tables, to judge it on.")]
BatchSize = Annotated[
    int | None, typer.Option(min=1, max=2**24, help="Global batch size of all tasks (default: the family's own).")
]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", help="JSON object of hyper-parameters to change from the others' values.")
]
Paper = Annotated[bool, typer.Option("--paper", help="Start from the paper's hyper-parameters, not the shipped ones.")]
Seed = Annotated[int | None, typer.Option(min=0, help="Seed of the run and of the tasks [0].")]
Checkpoints = Annotated[
    Path | None,
    typer.Option("--checkpoints", help="Folder for the checkpoint and TensorBoard's event files; goes on from it."),
]


@app.command()
def dreamshard(
    hardware: Hardware = "cpu-fbgemm",
    reward: Reward = RewardSource.PREDICTED,
    tables: Tables = None,
    family: Family = None,
    tasks: Tasks = None,
    held_out: HeldOut = None,
    batch_size: BatchSize = None,
    config: ConfigFile = None,
    paper: Paper = False,
    seed: Seed = None,
    checkpoints: Checkpoints = None,
    device: Device = "cpu",
    model_store: ModelStoreRoot = None,
) -> None:
    """Train DreamShard's cost network and policy, judge them on held-out tasks and write the next version."""
    from service.training.dreamshard_trainer import DreamShardTraining
    from service.training.policy_kinds import SHIPPED_DREAMSHARD, DreamShardKind

    start = DreamShardTraining() if paper else SHIPPED_DREAMSHARD
    kind = DreamShardKind(_configured(replace(start, device=device), config, seed))
    meter = _meter(reward, hardware, device, exchanges=True)
    drawn = _tasks(family, tasks, held_out, batch_size, seed)
    _print_trained(_trained(kind, hardware, tables, meter, reward, drawn, checkpoints, model_store))


@app.command()
def autoshard(
    hardware: Hardware = "cpu-fbgemm",
    reward: Reward = RewardSource.PREDICTED,
    tables: Tables = None,
    family: Family = None,
    tasks: Tasks = None,
    held_out: HeldOut = None,
    batch_size: BatchSize = None,
    config: ConfigFile = None,
    paper: Paper = False,
    seed: Seed = None,
    checkpoints: Checkpoints = None,
    device: Device = "cpu",
    model_store: ModelStoreRoot = None,
) -> None:
    """Train AutoShard's cost model and policy, judge them on held-out tasks and write the next version."""
    from service.training.autoshard_trainer import AutoShardTraining
    from service.training.policy_kinds import SHIPPED_AUTOSHARD, AutoShardKind

    start = AutoShardTraining() if paper else SHIPPED_AUTOSHARD
    kind = AutoShardKind(_configured(replace(start, device=device), config, seed))
    meter = _meter(reward, hardware, device, exchanges=False)
    drawn = _tasks(family, tasks, held_out, batch_size, seed)
    _print_trained(_trained(kind, hardware, tables, meter, reward, drawn, checkpoints, model_store))


def _configured(start: _Config, path: Path | None, seed: int | None) -> _Config:
    """A configuration with the values of a JSON file and the seed; ends the command where they are wrong."""
    from pydantic import TypeAdapter, ValidationError

    changes: dict[str, Any] = {}
    if path is not None:
        try:
            changes = json.loads(read_body(path))
        except ValueError as error:
            fail(f"shardwright: --config: {path} is not JSON: {error}")
        if not isinstance(changes, dict):
            fail(f"shardwright: --config: {path} must hold a JSON object")
    if seed is not None:
        changes["seed"] = seed
    _refuse_unknown(asdict(start), changes, "")
    try:
        # As JSON, of which a strict reader takes objects for dataclasses, but no number for a text.
        return TypeAdapter(type(start)).validate_json(json.dumps(_merged(asdict(start), changes)), strict=True)
    except ValidationError as error:
        said = [f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()]
        fail(f"shardwright: --config: {'; '.join(each.removeprefix(': Value error, ') for each in said)}")


def _refuse_unknown(known: Mapping[str, Any], given: Mapping[str, Any], where: str) -> None:
    for name, value in given.items():
        if name not in known:
            fail(f"shardwright: --config: no hyper-parameter is named {where}{name}: there are {', '.join(known)}")
        if isinstance(known[name], dict) and isinstance(value, dict):
            _refuse_unknown(known[name], value, f"{name}.")


def _merged(start: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Nested dictionaries, changed."""
    found = dict(start)
    for name, value in changes.items():
        nested = isinstance(value, dict) and isinstance(found[name], dict)
        found[name] = _merged(found[name], value) if nested else value
    return found


def _meter(reward: RewardSource, hardware: str, device: str, exchanges: bool) -> "Meter":
    from service.training.meters import predicted_times

    if reward is RewardSource.PREDICTED:
        return predicted_times
    from service.profiling.devices import refuse_device

    refuse_device(hardware, device)
    from service.profiling.placement_meter import PlacementMeter, PlacementMeterSettings

    return PlacementMeter(PlacementMeterSettings(device=device, exchanges=exchanges))


def _tasks(
    family: list[str] | None, tasks: int | None, held_out: int | None, batch_size: int | None, seed: int | None
) -> "PolicyTasks":
    from service.training.task_families import FAMILIES
    from service.usecases.train_policies import PolicyTasks

    start = PolicyTasks()
    unknown = [name for name in family or () if name not in FAMILIES]
    if unknown:
        raise typer.BadParameter(f"{unknown[0]} is none of {', '.join(FAMILIES)}", param_hint="--family")
    families = tuple(FAMILIES[name] for name in dict.fromkeys(family)) if family else start.families
    if batch_size is not None:
        families = tuple(replace(each, batch_sizes=(batch_size,)) for each in families)
    train, judged = tasks or start.train, held_out or start.held_out
    return replace(start, families=families, train=train, held_out=judged, seed=seed or 0)


def _trained(
    kind: "PolicyKind",
    hardware: str,
    tables: Path | None,
    meter: "Meter",
    reward: RewardSource,
    tasks: "PolicyTasks",
    checkpoints: Path | None,
    model_store: str | None,
) -> "TrainedPolicy":
    from datetime import UTC, datetime

    import torch

    from service.profiling.pools import generated_pool, read_pool
    from service.registry.store import ModelStore
    from service.usecases.train_policies import train_policy_version

    try:
        torch.empty(0, device=kind.config.device)
    except (AssertionError, RuntimeError) as error:
        # Either, as torch was built.
        fail(f"shardwright: --device: {kind.config.device} cannot be used here: {str(error).splitlines()[0]}")
    # The networks are small: more threads would wait for each other.
    torch.set_num_threads(1)
    store = ModelStore(settings_with(model_store=model_store).model_store)
    models = store.cost_models(hardware)
    pool = read_pool(tables) if tables else generated_pool()
    now = datetime.now(UTC)
    with progress_bar() as bar:
        task = bar.add_task("drawing tasks", total=None)

        def report(done: int, of: int) -> None:
            bar.update(task, description=kind.algorithm.value, completed=done, total=of)

        return train_policy_version(
            kind, hardware, pool, models, store, meter, reward.value, tasks, now, checkpoints, report
        )


def _print_trained(trained: "TrainedPolicy") -> None:
    from rich.table import Table

    from service.training.policy_evaluation import POLICY, SAMPLED, best_heuristic

    grid = Table("held-out family", "tasks", "policy (ms)", "with samples", "best heuristic", "random", "dead ends")
    for name, results in trained.results.items():
        best = best_heuristic(results)
        ways = (POLICY, SAMPLED, best, "random")
        policy, sampled, heuristic, random = (f"{results[way].costs.mean():.3f}" for way in ways)
        count, dead = str(len(results[POLICY].costs)), str(int(results[POLICY].dead.sum()))
        grid.add_row(name, count, policy, sampled, f"{heuristic} ({best})", random, dead)
    if not trained.written:
        typer.echo(
            f"this run was finished before and {trained.version} is what came of it: nothing was written; give another "
            "--seed or configuration, and another folder as --checkpoints, to train another policy",
            err=True,
        )
    console().print(f"{trained.version}, trained in {trained.seconds:.0f} s; mean predicted costs of a step", grid)
    echo_next_step(trained.version)
