"""Planning time against the number of tables and of devices, as growth shows it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from benchmarks.planner_answers import Outcome, Planner
from benchmarks.search_tasks import BATCH_SIZE, HARDWARE
from service.domain.plan import Constraints, Problem
from service.domain.tables import Optimizer, Table
from service.domain.topology import Topology

LONGEST_S = 60.0
"""No planner is asked for a size that would take it longer, as the sizes before have it."""

_DIMS = (16, 32, 64, 128)
_SEED = 0
_FILLED = 0.5


@dataclass(frozen=True, slots=True)
class Size:
    """Size of a problem: number of tables and of devices."""

    tables: int
    devices: int


@dataclass(frozen=True, slots=True)
class Timed:
    """A planner at a size.

    Attributes:
        planner: its name.
        size: of the problem.
        seconds: that planning took.
        cost_ms: predicted cost of the plan, NaN where there is none.
        outcome: of the answer.
    """

    planner: str
    size: Size
    seconds: float
    cost_ms: float
    outcome: Outcome


def grown_problem(pool: Sequence[Table], size: Size) -> Problem:
    """A problem of a size: tables drawn from a pool with replacement, dims of 16 to 128; weights only, fp32, sgd.

    The same tables for every number of devices. Their weights fill half of the devices' memory, or less where a table
    needs more than that of one.
    """
    rng = np.random.default_rng([_SEED, size.tables])
    drawn, dims = rng.integers(len(pool), size=size.tables), rng.choice(_DIMS, size=size.tables)
    tables = tuple(
        replace(pool[i], name=f"{i}_{n}", embedding_dim=int(dim))
        for n, (i, dim) in enumerate(zip(drawn, dims, strict=True))
    )
    weights = [table.weight_bytes for table in tables]
    memory = max(round(sum(weights) / size.devices / _FILLED), *weights)
    topology = Topology(HARDWARE, (memory,) * size.devices)
    return Problem(tables, topology, BATCH_SIZE, Optimizer.SGD, Constraints(count_buffers=False))


def timed(
    pool: Sequence[Table], planners: Mapping[str, Planner], tables: Sequence[int], devices: Sequence[int]
) -> list[Timed]:
    """Every planner at every size, up to those that take too long; tables ascending."""
    found = []
    for name, planner in planners.items():
        for count in devices:
            known: list[Timed] = []
            for number in sorted(tables):
                if known and _next_s(known, number) > LONGEST_S:
                    break
                size = Size(number, count)
                answer = planner(grown_problem(pool, size))
                known.append(Timed(name, size, answer.seconds, answer.cost_ms, answer.outcome))
                print(f"{name}, {number} x {count}: {answer.seconds:.2f} s, {answer.cost_ms:.1f} ms", flush=True)
            found += known
    return found


def _next_s(known: Sequence[Timed], tables: int) -> float:
    """What the next number of tables will take, should time grow by its cube, as TorchRec's defaults do."""
    return known[-1].seconds * (tables / known[-1].size.tables) ** 3


def time_lines(found: Sequence[Timed]) -> list[str]:
    """A table for each planner: seconds by tables and devices."""
    devices = sorted({point.size.devices for point in found})
    lines = []
    for name, points in groupby(found, key=lambda point: point.planner):
        seconds = {point.size: point for point in points}
        lines += [
            f"### {name}: seconds, and predicted cost in ms",
            "",
            "| tables | " + " | ".join(f"{count} devices" for count in devices) + " |",
            "|--:|" + "--:|" * len(devices),
        ]
        for number in sorted({size.tables for size in seconds}):
            cells = [_cell(seconds.get(Size(number, count))) for count in devices]
            lines.append(f"| {number:,} | " + " | ".join(cells) + " |")
        lines.append("")
    return lines


def _cell(point: Timed | None) -> str:
    if point is None:
        return "-"
    ended = {Outcome.PLANNED: f"{point.cost_ms:.1f}", Outcome.CUT_SHORT: f"{point.cost_ms:.1f}, cut short"}
    return f"{point.seconds:.2f} ({ended.get(point.outcome, point.outcome.value)})"


def draw(found: Sequence[Timed], path: Path) -> None:
    """Seconds against tables, a panel for each planner and a line for each number of devices, as PNG."""
    names = list(dict.fromkeys(point.planner for point in found))
    sizes = sorted({point.size.tables for point in found})
    figure = Figure(figsize=(3.2 * len(names), 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    panels = np.ravel(figure.subplots(1, len(names), sharex=True, sharey=True, squeeze=False))
    for axes, name in zip(panels, names, strict=True):
        own = sorted((p for p in found if p.planner == name), key=lambda p: (p.size.devices, p.size.tables))
        for count, points in groupby(own, key=lambda point: point.size.devices):
            line = list(points)
            label = f"{count} devices"
            axes.plot([p.size.tables for p in line], [p.seconds for p in line], marker="o", markersize=4, label=label)
        axes.set(title=name, xscale="log", yscale="log", xlabel="tables")
        axes.set_xticks(sizes, [f"{size:,}" for size in sizes], rotation=45)
        axes.xaxis.set_minor_locator(NullLocator())
    panels[0].set(ylabel="planning time, s")
    panels[0].legend()
    figure.savefig(path, dpi=120)
