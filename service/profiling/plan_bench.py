"""Carries plans out on this machine: each device's compute by the operator, the exchanges over real ranks.

Devices run alone, one after the other and on the CPU on one thread, so that more of them can be carried out than there
are cores. On the CPU all keep their weights in the same memory; on a GPU the weights of all devices of all plans are on
that one GPU at once. A device's cost is composed of its parts as the cost models compose it, in each repeat: it starts
the forward exchange once its compute and the backward exchange are done, and waits for the slowest.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from service.domain.costs import DeviceCost
from service.domain.memory import optimizer_bytes
from service.domain.plan import Problem, Shard, tables_on_devices
from service.domain.ports import CostModels
from service.domain.tables import Table
from service.domain.topology import Topology
from service.profiling.comm_bench import Exchange, ExchangeTimes, exchange_times, turns
from service.profiling.compute_bench import BenchSettings, ComputeBench, PreparedStep, free_bytes
from service.profiling.host import oversubscribed, usable_cores
from service.profiling.plan_checks import Held, refuse_devices, refuse_problem
from service.profiling.plan_summary import DeviceComparison, PlanComparison, Summary, spread, summary_of
from service.profiling.rows_cap import RowsCap, capped, rows_cap
from service.profiling.workload import IndexStream, index_stream
from service.usecases.estimate import Estimate, estimate

Times = NDArray[np.float64]
"""Milliseconds; of D devices in R repeats, where no shape is given."""

ExchangeBench = Callable[[Sequence[Exchange]], list[ExchangeTimes]]
Report = Callable[[str, int, int], None]

_FREE_SHARE = 0.5
_WARMUP = 2
# Other processors round differently, and files may be written with fewer digits.
_SAME_COST = {"rel_tol": 1e-4, "abs_tol": 1e-3}


class Step(Protocol):
    """What one device does between exchanges."""

    def run(self) -> tuple[float, float]:
        """Runs it once: milliseconds of forward and backward."""


@dataclass(frozen=True, slots=True)
class GivenPlan:
    """A placement to carry out.

    Attributes:
        name: the caller's.
        shards: the placement.
        told_ms: cost that was predicted when it was made, None where that is not known.
    """

    name: str
    shards: tuple[Shard, ...]
    told_ms: float | None = None


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
        exchange_bench: measures exchanges; ``exchange_times`` on the settings' device where None.
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
            MeasurementRefused: the hardware asked for is not what is measured on, the operator cannot run a device's
                tables here, the plans do not fit in memory, or the exchanges failed.
        """
        refuse_problem(problem, self._settings.device)
        asked = [estimate(problem, models, plan.shards) for plan in plans]
        memory = self._settings.memory_bytes or int(_FREE_SHARE * free_bytes(torch.device(self._settings.device)))
        devices = [tables for found in asked for tables in tables_on_devices(problem, found.shards)]
        cap = rows_cap(problem, devices, memory, shared=self._on_cpu)
        cut = capped(problem, cap)
        priced = [estimate(cut, models, plan.shards) for plan in plans] if cap else asked
        held = [tables_on_devices(cut, found.shards) for found in priced]
        compute, environment = self._compute(cut, [plan.name for plan in plans], held, memory)
        compared = tuple(map(_compared, plans, asked, priced, self._parts(cut, held, compute)))
        shared = oversubscribed(problem.topology.device_count, self._settings.device)
        said = _assumptions(problem.topology, environment["device"], cap, usable_cores() if shared else None)
        return CarriedOut(
            plans=compared,
            summary=summary_of(compared),
            rows_capped=cap,
            models=models.versions,
            assumptions=tuple(said),
            cores=usable_cores(),
            oversubscribed=shared,
            repeats=self._settings.repeats,
            environment=environment,
        )

    def _compute(self, problem: Problem, names: Sequence[str], held: Held, memory: int) -> tuple[Times, dict[str, str]]:
        bench = ComputeBench(BenchSettings(device=self._settings.device, memory_bytes=memory))
        refuse_devices(bench, problem, names, held)
        self._report("tables prepared", 0, 1)
        steps = prepared_steps(bench, problem, held, self._settings.seed)
        self._report("tables prepared", 1, 1)
        devices = problem.topology.device_count
        return run_in_turns(steps, len(held), devices, self._settings.repeats, self._report), bench.environment()

    def _parts(self, problem: Problem, held: Held, compute: Times) -> list[Times]:
        widths = [tuple(sum(table.output_width for table in tables) for tables in plan) for plan in held]
        self._report("exchanges", 0, 1)
        parts = exchanged_parts(compute, widths, problem.global_batch_size, self._exchange)
        self._report("exchanges", 1, 1)
        return parts


def run_in_turns(
    steps: Mapping[tuple[int, int], Step], plans: int, devices: int, repeats: int, report: Report, warmup: int = _WARMUP
) -> Times:
    """Runs every device of every plan, all of them once before any is run again, and untimed at first.

    Args:
        steps: by plan and device; a device without one takes no time.
        plans: number P.
        devices: number D of each.
        repeats: timed ones, R.
        report: told how many rounds are done.
        warmup: untimed rounds.

    Returns:
        Milliseconds of forward and backward, [P, D, R, 2].
    """
    rounds = warmup + repeats
    times = np.zeros((plans, devices, rounds, 2))
    for repeat in range(rounds):
        for plan in turns(plans, repeat):
            for device in range(devices):
                if (plan, device) in steps:
                    times[plan, device, repeat] = steps[plan, device].run()
        report("repeats of all devices' compute", repeat + 1, rounds)
    return times[:, :, warmup:]


def exchanged_parts(
    compute: Times, widths: Sequence[tuple[int, ...]], batch_size: int, exchange: ExchangeBench
) -> list[Times]:
    """Parts of the costs of P plans: their compute, and exchanges that start when it has them start.

    Args:
        compute: forward and backward of each device in each repeat; [P, D, R, 2].
        widths: pooled output columns of each device; P times D.
        batch_size: the global batch.
        exchange: measures exchanges, R repeats of each; not asked for one device, which exchanges nothing.

    Returns:
        Of each plan what ``composed`` returns.
    """
    devices, repeats = compute.shape[1:3]
    if devices == 1:
        nothing = np.zeros((1, repeats))
        return [composed(plan, ExchangeTimes(nothing, nothing, nothing)) for plan in compute]
    together = (0.0,) * devices
    first = exchange([Exchange(columns, batch_size, together) for columns in widths])
    delays = [start_delays(plan, times.backward_ms) for plan, times in zip(compute, first, strict=True)]
    late = exchange([Exchange(columns, batch_size, delay) for columns, delay in zip(widths, delays, strict=True)])
    return list(map(composed, compute, late))


def start_delays(compute: Times, backward_comm: Times) -> tuple[float, ...]:
    """How much later than the first each of D devices starts its forward exchange, by medians; [D, R, 2] and [D, R]."""
    starts = np.median(compute.sum(axis=-1) + backward_comm, axis=1)
    return tuple(float(late) for late in starts - starts.min())


def composed(compute: Times, exchange: ExchangeTimes) -> Times:
    """Parts of the cost of D devices in R repeats, in the order of ``DeviceCost``; [D, 5, R].

    A device waits from its own start of the forward exchange in that repeat to the last one's. The wait that the ranks
    measured is left out: it is that of start delays which are medians, and with a repeat's compute it would let the
    noise of devices that only wait count as cost.

    Args:
        compute: forward and backward of each device; [D, R, 2].
        exchange: measured with the plan's start delays.
    """
    starts = compute.sum(axis=-1) + exchange.backward_ms
    waits = starts.max(axis=0) - starts
    parts = (compute[..., 0], compute[..., 1], waits, exchange.forward_transfer_ms, exchange.backward_ms)
    return np.stack(parts, axis=1)


def lookups_of(table: Table, batch_size: int, seed: int) -> IndexStream:
    """A table's lookups: the same for a table and any slice of it, in whatever plan."""
    name = int.from_bytes(sha256(table.name.encode()).digest()[:8], "big")
    return index_stream(table, batch_size, np.random.default_rng([seed, name]))


def prepared_steps(bench: ComputeBench, problem: Problem, held: Held, seed: int) -> dict[tuple[int, int], PreparedStep]:
    """The steps of all devices that hold tables, by plan and device; ``lookups_of`` has their lookups."""

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
    def exchange(exchanges: Sequence[Exchange]) -> list[ExchangeTimes]:
        return exchange_times(exchanges, settings.device, _WARMUP, settings.repeats)

    return exchange


def _compared(plan: GivenPlan, asked: Estimate, priced: Estimate, parts: Times) -> PlanComparison:
    """A plan's comparison.

    Args:
        plan: as given.
        asked: its price with all rows.
        priced: its price with the rows that were measured.
        parts: what ``composed`` returns, [D, 5, R].
    """
    totals, compute = parts.sum(axis=1), parts[:, :2].sum(axis=1)
    return PlanComparison(
        name=plan.name,
        devices=tuple(
            DeviceComparison(
                predicted=report.cost,
                measured=DeviceCost(*np.median(parts[d], axis=1).tolist()),
                measured_total_ms=float(np.median(totals[d])),
                compute_spread=spread(compute[d]),
            )
            for d, report in enumerate(priced.devices)
        ),
        cost_repeats_ms=tuple(totals.max(axis=0).tolist()),
        slowest_compute_repeats_ms=tuple(compute.max(axis=0).tolist()),
        fits=all(report.memory.total <= report.memory_limit_bytes for report in asked.devices),
        assumptions=(*asked.assumptions, *_told_otherwise(plan, asked)),
        predicted_interval_ms=priced.max_cost_interval_ms,
    )


def _told_otherwise(plan: GivenPlan, asked: Estimate) -> list[str]:
    if plan.told_ms is None or math.isclose(plan.told_ms, asked.max_cost_ms, **_SAME_COST):
        return []
    return [
        f"the plan says that it costs {plan.told_ms:.3f} ms, this request is predicted to cost "
        f"{asked.max_cost_ms:.3f} ms with it: it was made for another request or by other models"
    ]


def _assumptions(topology: Topology, device: str, cap: RowsCap | None, cores: int | None) -> Iterator[str]:
    """What measuring had to assume; ``cores`` where they were fewer than the ranks that exchanged."""
    yield (
        f"costs are predicted for {topology.hardware} and measured on {device}: they can be compared as far as these "
        "are the same"
    )
    if cap:
        yield cap.sentence()
    if cores is not None:
        ranks = topology.device_count
        yield f"{ranks} ranks exchanged on {cores} cores: they waited for each other's turn, exchanges are too slow"
