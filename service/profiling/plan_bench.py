"""Carries plans out on this machine: each device's compute by the operator, the exchanges over real ranks.

Devices run alone, one after the other on one thread, so that more of them can be carried out than there are cores or
GPUs' worth of weights in memory. A device's cost is composed of its parts as the cost models compose it: it starts the
forward exchange once its compute and the backward exchange are done, and waits for the slowest.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

import numpy as np
import torch
from numpy.typing import NDArray

from service.domain.costs import DeviceCost
from service.domain.errors import MeasurementRefused
from service.domain.memory import optimizer_bytes
from service.domain.plan import Problem, Shard, tables_on_devices
from service.domain.ports import CostModels
from service.domain.tables import DataType, Table
from service.profiling.comm_bench import Exchange, ExchangeTiming, measure_exchanges
from service.profiling.compute_bench import BenchSettings, ComputeBench, PreparedStep, free_bytes
from service.profiling.plan_summary import DeviceComparison, PlanComparison, Summary, spread, summary_of
from service.profiling.rows_cap import RowsCap, capped, rows_cap
from service.profiling.workload import IndexStream, index_stream
from service.usecases.estimate import Estimate, estimate

Times = NDArray[np.float64]
"""Milliseconds of forward and backward compute of P plans, D devices, R repeats; [P, D, R, 2]."""

Held = Sequence[Sequence[Sequence[Table]]]
"""Tables, or slices of them, that each device of each plan holds."""

ExchangeBench = Callable[[Sequence[Exchange]], list[ExchangeTiming]]
Report = Callable[[str, int, int], None]

_FREE_SHARE = 0.5
_WARMUP = 2
_NAMED = 5


@dataclass(frozen=True, slots=True)
class GivenPlan:
    """A placement to carry out, under the caller's name for it."""

    name: str
    shards: tuple[Shard, ...]


@dataclass(frozen=True, slots=True)
class PlanBenchSettings:
    """How to carry plans out.

    Attributes:
        device: ``cpu`` or ``cuda`` (or ``cuda:1``) for the compute; exchanges are between CPU ranks or all GPUs.
        repeats: timed repeats.
        memory_bytes: most that the compute may take; half of what is free where None.
        seed: of the lookups.
    """

    device: str = "cpu"
    repeats: int = 9
    memory_bytes: int | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True)
class CarriedOut:
    """Plans as predicted and as measured, together.

    Attributes:
        plans: in the order given.
        summary: what that says about the predictions.
        rows_capped: None where all tables were measured with all of their rows.
        models: version of each cost model, by kind.
        assumptions: what measuring here had to assume, one sentence each.
        cores: processor cores that this process may use.
        oversubscribed: whether the exchanges had more ranks than cores, which makes them slower than they are.
        repeats: timed repeats.
        environment: versions of libraries and the device's name.
    """

    plans: tuple[PlanComparison, ...]
    summary: Summary
    rows_capped: RowsCap | None
    models: Mapping[str, str]
    assumptions: tuple[str, ...]
    cores: int
    oversubscribed: bool
    repeats: int
    environment: Mapping[str, str]


class PlanBench:
    """Prices and measures plans of one problem at a time.

    Args:
        settings: how to measure.
        report: told what is being done, how much of it is done, and of how much.
        exchange_bench: measures exchanges; ``measure_exchanges`` on the settings' device where None.
    """

    def __init__(
        self,
        settings: PlanBenchSettings,
        report: Report = lambda what, done, of: None,
        exchange_bench: ExchangeBench | None = None,
    ) -> None:
        self._settings = settings
        self._report = report
        self._exchange = exchange_bench or _exchanges_on(settings)
        self._on_cpu = settings.device == "cpu"

    def carry_out(self, problem: Problem, plans: Sequence[GivenPlan], models: CostModels) -> CarriedOut:
        """Carries plans out, interleaved repeat by repeat, so that drift of the machine hits all alike.

        Args:
            problem: what the plans place; tables' rows are cut where they do not fit in memory.
            plans: at least one, names distinct.
            models: price the plans, with the rows that are measured.

        Raises:
            InvalidRequest: the problem has faults, or a plan does not place every column of it exactly once.
            MeasurementRefused: the operator cannot run a device's tables here, the plans do not fit in memory, or
                the exchanges failed.
        """
        _refuse_mixed_precision(problem)
        _refuse_missing_gpus(self._settings.device, problem.topology.device_count)
        estimates = [estimate(problem, models, plan.shards) for plan in plans]
        memory = self._settings.memory_bytes or int(_FREE_SHARE * free_bytes(torch.device(self._settings.device)))
        devices = [tables for found in estimates for tables in tables_on_devices(problem, found.shards)]
        cap = rows_cap(problem, devices, memory, shared=self._on_cpu)
        assumed = [found.assumptions for found in estimates]
        if cap:
            problem = capped(problem, cap)
            estimates = [estimate(problem, models, plan.shards) for plan in plans]
        held = [tables_on_devices(problem, found.shards) for found in estimates]
        times, environment = self._compute(problem, plans, held, memory)
        measured = self._with_exchanges(problem, held, times)
        compared = tuple(map(_compared, plans, estimates, assumed, measured, times))
        cores = len(os.sched_getaffinity(0))
        oversubscribed = self._on_cpu and problem.topology.device_count > cores
        return CarriedOut(
            plans=compared,
            summary=summary_of(compared),
            rows_capped=cap,
            models=models.versions,
            assumptions=tuple(_assumptions(cap, problem.topology.device_count, cores if oversubscribed else None)),
            cores=cores,
            oversubscribed=oversubscribed,
            repeats=self._settings.repeats,
            environment=environment,
        )

    def _compute(
        self, problem: Problem, plans: Sequence[GivenPlan], held: Held, memory: int
    ) -> tuple[Times, dict[str, str]]:
        """Runs every device of every plan, all of them once before any is run again; empty devices take no time."""
        bench = ComputeBench(BenchSettings(device=self._settings.device, memory_bytes=memory))
        _refuse_what_cannot_run(bench, problem, plans, held)
        self._report("tables prepared", 0, 1)
        steps = _prepared(bench, problem, held, self._settings.seed)
        self._report("tables prepared", 1, 1)
        rounds = _WARMUP + self._settings.repeats
        times = np.zeros((len(held), problem.topology.device_count, rounds, 2))
        for repeat in range(rounds):
            for plan in plan_order(len(held), repeat):
                for device in range(problem.topology.device_count):
                    if (plan, device) in steps:
                        times[plan, device, repeat] = steps[plan, device].run()
            self._report("repeats of all devices' compute", repeat + 1, rounds)
        return times[:, :, _WARMUP:], bench.environment()

    def _with_exchanges(self, problem: Problem, held: Held, times: Times) -> list[tuple[DeviceCost, ...]]:
        widths = [tuple(sum(table.output_width for table in tables) for tables in plan) for plan in held]
        self._report("exchanges", 0, 1)
        costs = exchanged_costs(np.median(times, axis=2), widths, problem.global_batch_size, self._exchange)
        self._report("exchanges", 1, 1)
        return costs


def exchanged_costs(
    compute: NDArray[np.float64], widths: Sequence[tuple[int, ...]], batch_size: int, exchange: ExchangeBench
) -> list[tuple[DeviceCost, ...]]:
    """Measured costs of P plans: their compute, and exchanges that start when it has them start.

    Args:
        compute: forward and backward milliseconds of each device; [P, D, 2].
        widths: pooled output columns of each device; P times D.
        batch_size: the global batch.
        exchange: measures exchanges; not asked for one device, which exchanges nothing.
    """
    devices = compute.shape[1]
    if devices == 1:
        nothing = ExchangeTiming((0.0,), (0.0,), (0.0,))
        return [composed(plan, nothing, nothing) for plan in compute]
    together = (0.0,) * devices
    backward = exchange([Exchange(columns, batch_size, together) for columns in widths])
    delays = [start_delays(plan, first.backward_ms) for plan, first in zip(compute, backward, strict=True)]
    forward = exchange([Exchange(columns, batch_size, late) for columns, late in zip(widths, delays, strict=True)])
    return list(map(composed, compute, backward, forward))


def start_delays(compute: NDArray[np.float64], backward_comm: Sequence[float]) -> tuple[float, ...]:
    """How much later than the first each of D devices starts its forward exchange, ms; [D, 2] and D entries."""
    starts = compute.sum(axis=1) + np.array(backward_comm)
    return tuple(float(late) for late in starts - starts.min())


def composed(compute: NDArray[np.float64], backward: ExchangeTiming, forward: ExchangeTiming) -> tuple[DeviceCost, ...]:
    """Costs of D devices from their compute [D, 2] and what each of the two exchanges is measured for."""
    return tuple(
        DeviceCost(
            forward_compute=float(compute[d, 0]),
            backward_compute=float(compute[d, 1]),
            forward_wait=forward.forward_wait_ms[d],
            forward_transfer=forward.forward_transfer_ms[d],
            backward_comm=backward.backward_ms[d],
        )
        for d in range(len(compute))
    )


def lookups_of(table: Table, batch_size: int, seed: int) -> IndexStream:
    """A table's lookups: the same for a table and any slice of it, in whatever plan."""
    name = int.from_bytes(sha256(table.name.encode()).digest()[:8], "big")
    return index_stream(table, batch_size, np.random.default_rng([seed, name]))


def plan_order(plans: int, repeat: int) -> list[int]:
    """Positions of the plans in the order that a repeat runs them: each comes first equally often."""
    return [(repeat + i) % plans for i in range(plans)]


def _prepared(bench: ComputeBench, problem: Problem, held: Held, seed: int) -> dict[tuple[int, int], PreparedStep]:
    """The steps of all devices that hold tables, by plan and device."""

    def state(place: tuple[int, int]) -> int:
        plan, device = place
        return sum(optimizer_bytes(table, problem.optimizer) for table in held[plan][device])

    def stream_of(table: Table) -> IndexStream:
        return lookups_of(table, problem.global_batch_size, seed)

    places = [(plan, device) for plan, devices in enumerate(held) for device, tables in enumerate(devices) if tables]
    # The most optimizer state first, as the bench asks for.
    return {
        (plan, device): bench.prepare(held[plan][device], problem.global_batch_size, problem.optimizer, stream_of)
        for plan, device in sorted(places, key=state, reverse=True)
    }


def _exchanges_on(settings: PlanBenchSettings) -> ExchangeBench:
    def exchange(exchanges: Sequence[Exchange]) -> list[ExchangeTiming]:
        return measure_exchanges(exchanges, settings.device, _WARMUP, settings.repeats)

    return exchange


def _compared(
    plan: GivenPlan, found: Estimate, assumed: tuple[str, ...], measured: tuple[DeviceCost, ...], times: Times
) -> PlanComparison:
    """A plan's comparison; ``times`` are its own, [D, R, 2]."""
    compute = times.sum(axis=-1)
    devices = zip(found.devices, measured, compute, strict=True)
    return PlanComparison(
        name=plan.name,
        devices=tuple(DeviceComparison(report.cost, cost, spread(repeats)) for report, cost, repeats in devices),
        slowest_compute_spread=spread(compute.max(axis=0)),
        assumptions=assumed,
    )


def _assumptions(cap: RowsCap | None, devices: int, cores: int | None) -> Iterator[str]:
    if cap:
        yield cap.sentence()
    if cores is not None:
        yield f"{devices} ranks exchanged on {cores} cores: they waited for each other's turn, exchanges are too slow"


def _refuse_mixed_precision(problem: Problem) -> None:
    """All devices share one memory for their weights, which holds numbers of one precision."""
    names: dict[DataType, list[str]] = {}
    for table in problem.tables:
        names.setdefault(table.data_type, []).append(table.name)
    if len(names) > 1:
        held = "; ".join(f"{data_type.value}: {_listed(members)}" for data_type, members in names.items())
        raise MeasurementRefused(f"plans are carried out with one data_type for all tables, these have several: {held}")


def _refuse_missing_gpus(device: str, devices: int) -> None:
    if device == "cpu":
        return
    found = torch.cuda.device_count()
    if found < devices:
        raise MeasurementRefused(
            f"carrying out a plan of {devices} devices needs as many GPUs for its exchanges, {found} are here: "
            "measure it on cpu"
        )


def _refuse_what_cannot_run(bench: ComputeBench, problem: Problem, plans: Sequence[GivenPlan], held: Held) -> None:
    """Before anything is measured, and with the plan, the device and its tables named."""
    for plan, devices in zip(plans, held, strict=True):
        for device, tables in enumerate(devices):
            if not tables:
                continue
            try:
                bench.refuse(tables, problem.global_batch_size, problem.optimizer)
            except MeasurementRefused as error:
                where = f"plan {plan.name}, device {device} ({_described(tables)})"
                raise MeasurementRefused(f"{where}: {error.detail}", **error.data) from error


def _described(tables: Sequence[Table]) -> str:
    groups: dict[str, list[str]] = {}
    for table in tables:
        groups.setdefault(f"{table.data_type.value}, {table.pooling_mode.value}", []).append(table.name)
    return "; ".join(f"{kind}: {_listed(names)}" for kind, names in groups.items())


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_NAMED])
    return shown if len(names) <= _NAMED else f"{shown} and {len(names) - _NAMED} more"
