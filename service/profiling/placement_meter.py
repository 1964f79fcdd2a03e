"""Measures what placements cost, for policies that learn: each device's compute by the operator, exchanges over ranks.

As in ``service.profiling.plan_bench``, devices run alone, one after the other, and a device's cost is composed of its
parts as the cost models compose it. Placements of one call may be of different tasks; they are measured one after the
other, so that only one placement's lookups are in memory, and all their exchanges together.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from service.domain.errors import MeasurementRefused
from service.domain.plan import Problem, tables_on_devices
from service.domain.tables import Table
from service.profiling.comm_bench import Exchange, ExchangeTimes, exchange_times
from service.profiling.compute_bench import BenchSettings, ComputeBench, free_bytes
from service.profiling.devices import refuse_device
from service.profiling.plan_bench import ExchangeBench, Times, exchanged_parts, prepared_steps, run_in_turns
from service.profiling.plan_checks import refuse_devices, refuse_problem
from service.profiling.rows_cap import capped, rows_cap
from service.search.layout import shards_of
from service.training.meters import Placed, StepTimes

Held = Sequence[Sequence[Table]]
"""Tables, or slices of them, that each device of a placement holds."""

_FREE_SHARE = 0.5
_BACKWARD_EXCHANGE = 4


@dataclass(frozen=True, slots=True)
class PlacementMeterSettings:
    """How to measure placements.

    Attributes:
        device: ``cpu`` or ``cuda`` (or ``cuda:1``) for the compute; exchanges are between CPU ranks or all GPUs.
        warmup: untimed repeats.
        repeats: timed repeats; the median counts.
        memory_bytes: most that the compute may take; half of what is free where None.
        exchanges: whether exchanges are measured; without them a step is the largest compute of a device.
        seed: of the lookups.
    """

    device: str = "cpu"
    warmup: int = 2
    repeats: int = 5
    memory_bytes: int | None = None
    exchanges: bool = True
    seed: int = 0


class PlacementMeter:
    """A ``service.training.meters.Meter`` that measures.

    Tables keep as many rows as fit in memory with the whole task on one device, so that what is cut depends on the
    task alone and all of its placements can be compared.
    """

    def __init__(
        self,
        settings: PlacementMeterSettings,
        report: Callable[[int, int], None] = lambda done, of: None,
        exchange_bench: ExchangeBench | None = None,
    ) -> None:
        """Takes the memory that measuring may use.

        Args:
            settings: how to measure.
            report: told how many placements' compute is measured, and of how many.
            exchange_bench: measures exchanges; ``exchange_times`` on the settings' device where None.

        Raises:
            MeasurementRefused: there is no such device, or it does not have the memory that the settings allow.
        """
        if settings.repeats < 1 or settings.warmup < 0:
            raise MeasurementRefused(
                f"repeats is {settings.repeats} and warmup {settings.warmup}: give at least 1 and 0"
            )
        self._settings = settings
        self._report = report
        self._exchange = exchange_bench or _exchanges_on(settings)
        free = free_bytes(torch.device(settings.device))
        self._memory = int(_FREE_SHARE * free) if settings.memory_bytes is None else settings.memory_bytes
        self._bench = ComputeBench(BenchSettings(device=settings.device, memory_bytes=self._memory))

    def __call__(self, placed: Sequence[Placed]) -> list[StepTimes]:
        """Measures placements.

        Args:
            placed: workspaces and the device of each of their pieces, [S] each.

        Raises:
            MeasurementRefused: the hardware asked for is not what is measured on, the operator cannot run a device's
                tables here, a task does not fit in memory however few rows its tables keep, or the exchanges failed.
        """
        cut = {id(workspace): self._cut(workspace.problem) for workspace, _ in placed}
        problems = [cut[id(workspace)] for workspace, _ in placed]
        held = [tables_on_devices(problem, shards_of(*each)) for problem, each in zip(problems, placed, strict=True)]
        for i, (problem, tables) in enumerate(zip(problems, held, strict=True)):
            refuse_devices(self._bench, problem, [str(i)], [tables])
        compute = []
        for i, (problem, tables) in enumerate(zip(problems, held, strict=True)):
            compute.append(self._computed(problem, tables))
            self._report(i + 1, len(placed))
        if not self._settings.exchanges:
            return [_without_exchanges(times) for times in compute]
        return self._with_exchanges(problems, held, compute)

    def _cut(self, problem: Problem) -> Problem:
        """A task with as many rows as can be measured."""
        if self._settings.exchanges or self._settings.device == "cpu":
            refuse_problem(problem, self._settings.device)
        else:
            refuse_device(problem.topology.hardware, self._settings.device)
        return capped(problem, rows_cap(problem, [problem.tables], self._memory, shared=True))

    def _computed(self, problem: Problem, held: Held) -> Times:
        """Forward and backward of each device of a placement in each repeat; [D, R, 2]."""
        steps = prepared_steps(self._bench, problem, [held], self._settings.seed)
        repeats, warmup = self._settings.repeats, self._settings.warmup
        times: Times = run_in_turns(steps, 1, len(held), repeats, lambda what, done, of: None, warmup)[0]
        return times

    def _with_exchanges(
        self, problems: Sequence[Problem], held: Sequence[Held], compute: Sequence[Times]
    ) -> list[StepTimes]:
        """One call for all placements on as many devices at one batch size, whose ranks are started together."""
        groups: dict[tuple[int, int], list[int]] = defaultdict(list)
        for i, problem in enumerate(problems):
            groups[problem.topology.device_count, problem.global_batch_size].append(i)
        found: dict[int, StepTimes] = {}
        for (_, batch_size), rows in groups.items():
            widths = [tuple(sum(table.output_width for table in tables) for tables in held[i]) for i in rows]
            parts = exchanged_parts(np.stack([compute[i] for i in rows]), widths, batch_size, self._exchange)
            found.update({i: _step_times(compute[i], each) for i, each in zip(rows, parts, strict=True)})
        return [found[i] for i in range(len(problems))]


def _step_times(compute: Times, parts: Times) -> StepTimes:
    """Medians over the repeats of [D, R, 2] and of what ``composed`` returns, [D, 5, R]."""
    plan = np.median(parts.sum(axis=1).max(axis=0))
    exchange = np.median(parts[:, _BACKWARD_EXCHANGE], axis=1)
    return StepTimes(np.median(compute, axis=1), exchange, float(plan))


def _without_exchanges(compute: Times) -> StepTimes:
    """Medians over the repeats, [D, R, 2]."""
    plan = np.median(compute.sum(axis=-1).max(axis=0))
    return StepTimes(np.median(compute, axis=1), np.zeros(len(compute)), float(plan))


def _exchanges_on(settings: PlacementMeterSettings) -> ExchangeBench:
    def exchange(exchanges: Sequence[Exchange]) -> list[ExchangeTimes]:
        return exchange_times(exchanges, settings.device, settings.warmup, settings.repeats)

    return exchange
