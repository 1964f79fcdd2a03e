"""``shardwright measure``: carries plans out on this machine and puts what was predicted beside what was measured."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, cast

import typer

from service.cli.common import (
    Device,
    ModelStoreRoot,
    Pretty,
    RequestFile,
    progress_bar,
    read_body,
    refuse,
    settings_with,
)
from service.domain.errors import Fault, InvalidRequest, MeasurementRefused, ShardwrightError

if TYPE_CHECKING:
    from service.api.parsing import Limits
    from service.api.schemas import PlanRequest
    from service.domain.plan import Shard
    from service.profiling.plan_bench import CarriedOut, GivenPlan
    from service.profiling.plan_summary import PlanComparison

app = typer.Typer()

_DECIMALS = 4


@app.command()
def measure(
    request: RequestFile,
    plans: Annotated[list[Path], typer.Argument(help="Answers of /plan, or anything with their shards.")],
    pretty: Pretty = False,
    repeats: Annotated[
        int, typer.Option(min=1, max=1000, help="Timed repeats of everything; under 5 no plans are told apart.")
    ] = 9,
    device: Device = "cpu",
    memory_gib: Annotated[
        float | None,
        typer.Option(min=0.01, help="Most memory for the compute; rows are cut to it (default: half of what is free)."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the lookups.")] = 0,
    model_store: ModelStoreRoot = None,
) -> None:
    """Carry plans of one request out on this machine; run it alone.

    Each device's compute runs alone, the exchanges run between as many ranks as there are devices. All plans take
    turns, so that they can be compared.
    """
    from service import local_planning, wiring
    from service.api.conversion import posed_problem
    from service.api.parsing import parse_plan
    from service.profiling.plan_bench import PlanBench, PlanBenchSettings

    settings = settings_with(model_store=model_store)
    limits = wiring.request_limits(settings)
    names = _names(plans)
    try:
        asked = parse_plan(read_body(request), limits)
        models = local_planning.local_models(settings, asked.devices.hardware)
    except ShardwrightError as error:
        refuse(error, file=str(request))
    given = _given(names, plans, asked, limits)
    memory = None if memory_gib is None else int(memory_gib * 2**30)
    _warn_of_few_cores(asked.devices.count, device)
    try:
        with _reporting() as report:
            bench = PlanBench(PlanBenchSettings(device, repeats, memory, seed), report)
            found = bench.carry_out(posed_problem(asked), given, models)
    except MeasurementRefused as error:
        refuse(error, title="This cannot be measured here", status=422)
    answer = measured_answer(found)
    if pretty:
        from service.cli.pretty import print_measured

        print_measured(answer)
    else:
        typer.echo(json.dumps(answer, indent=2))


@contextmanager
def _reporting() -> Iterator[Callable[[str, int, int], None]]:
    """Progress bars, one for each thing that is done, moved by what the context gives."""
    with progress_bar() as bar:
        tasks: dict[str, Any] = {}

        def report(what: str, done: int, of: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=of)
            bar.update(tasks[what], completed=done)

        yield report


def _warn_of_few_cores(devices: int, device: str) -> None:
    from service.profiling.host import oversubscribed, usable_cores

    if oversubscribed(devices, device):
        where = f"{usable_cores()} cores"
        typer.echo(f"{devices} ranks will exchange on {where}: starting and running them takes longer", err=True)


def measured_answer(found: "CarriedOut") -> dict[str, Any]:
    """Plans carried out as JSON; assumptions that all plans share are told once."""
    common = [said for said in found.plans[0].assumptions if all(said in plan.assumptions for plan in found.plans)]
    cap = found.rows_capped
    answer = {
        "plans": [_plan_answer(plan, common) for plan in found.plans],
        "summary": asdict(found.summary),
        "rows_capped": cap and {"cap": cap.cap, "tables": dict(cap.tables)},
        "cores": found.cores,
        "oversubscribed": found.oversubscribed,
        "repeats": found.repeats,
        "environment": dict(found.environment),
        "models": dict(found.models),
        "assumptions": [*common, *found.assumptions],
    }
    return cast(dict[str, Any], _rounded(answer))


def _plan_answer(plan: "PlanComparison", common: Sequence[str]) -> dict[str, Any]:
    return {
        "name": plan.name,
        "devices": [
            {
                "device": number,
                "predicted_ms": {**asdict(device.predicted), "total": device.predicted.total},
                "measured_ms": {**asdict(device.measured), "total": device.measured_total_ms},
                "compute_spread": device.compute_spread,
            }
            for number, device in enumerate(plan.devices)
        ],
        "max_cost_ms": {
            "predicted": plan.predicted_ms,
            "interval": plan.predicted_interval_ms,
            "measured": plan.measured_ms,
        },
        "cost_spread": plan.cost_spread,
        "fits": plan.fits,
        "assumptions": [said for said in plan.assumptions if said not in common],
    }


def _rounded(value: Any) -> Any:
    """A JSON-like value with its numbers rounded far below what can be measured."""
    if isinstance(value, dict):
        return {key: _rounded(member) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(member) for member in value]
    return round(value, _DECIMALS) if isinstance(value, float) else value


def _names(paths: Sequence[Path]) -> list[str]:
    """A name for each plan: its file's stem, or the whole path where several files have that stem."""
    twice = [str(path) for path, uses in Counter(paths).items() if uses > 1]
    if twice:
        raise typer.BadParameter(f"{twice[0]} is given twice", param_hint="PLANS...")
    stems = Counter(path.stem for path in paths)
    return [path.stem if stems[path.stem] == 1 else str(path) for path in paths]


def _given(names: Sequence[str], paths: Sequence[Path], asked: "PlanRequest", limits: "Limits") -> list["GivenPlan"]:
    """The plans in the files; ends the command with every fault in all of them."""
    from service.profiling.plan_bench import GivenPlan

    given: list[GivenPlan] = []
    faults: list[tuple[Path, Fault]] = []
    for name, path in zip(names, paths, strict=True):
        try:
            body = read_body(path)
            given.append(GivenPlan(name, _shards(body, asked, limits), _told_ms(body)))
        except InvalidRequest as error:
            faults += [(path, fault) for fault in error.faults]
        except ShardwrightError as error:
            refuse(error, file=str(path))
    if faults:
        _refuse_plans(faults)
    return given


def _refuse_plans(faults: Sequence[tuple[Path, Fault]]) -> NoReturn:
    from service.api.problems import MAX_FAULTS

    error = InvalidRequest([fault for _, fault in faults])
    listed = [{"file": str(path), **asdict(fault)} for path, fault in faults[:MAX_FAULTS]]
    refuse(error, detail=f"{faults[0][0]}: {error.detail}", faults=listed)


def _shards(plan: bytes, asked: "PlanRequest", limits: "Limits") -> tuple["Shard", ...]:
    """The shards of a plan, checked as /estimate does with those of a request.

    Raises:
        InvalidRequest: with every fault.
        UnsupportedSharding: a shard is of a kind that no cost model describes.
    """
    from service.api.conversion import given_shards
    from service.api.parsing import parse_estimate, parse_object
    from service.api.schemas import ShardsEstimateRequest
    from service.domain.plan import Problem, tiling_faults

    shards = {key: value for key, value in parse_object(plan).items() if key == "shards"}
    question = asked.model_dump(mode="json", include=set(ShardsEstimateRequest.model_fields))
    # What has no plan_id is parsed as this form.
    parsed = parse_estimate(json.dumps({**question, **shards}).encode(), limits)
    placed, problem = cast(tuple[ShardsEstimateRequest, Problem], parsed)
    given = given_shards(placed)
    faults = tiling_faults(problem.tables, problem.topology.device_count, given)
    if faults:
        raise InvalidRequest(faults)
    return given


def _told_ms(plan: bytes) -> float | None:
    """The cost that an answer of /plan or /estimate says, where the file is one."""
    from service.api.parsing import parse_object

    told = parse_object(plan).get("max_cost_ms")
    return float(told) if isinstance(told, int | float) and not isinstance(told, bool) else None
