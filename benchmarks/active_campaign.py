"""Measurements chosen by the model's uncertainty against random ones: the held-out error by their number.

A replay: the stored rows of random campaigns are what can be chosen, so devices of plans are not among them. Both ways
start from the same random rows; then each gets so many more, at random or as an active campaign chooses them.
Run: python -m benchmarks.active_campaign [--rows 2000] [--seeds 3] [--epochs 150] [--write docs/results]
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks.own_rows import HARDWARE, OwnRows, measurement_option, own_rows
from service.cost_models.compute import ComputeModel
from service.domain.measurements import ComputeMeasurement
from service.domain.ports import Floats
from service.profiling.combinations import Combination
from service.profiling.uncertainty import most_uncertain
from service.training.compute_trainer import ComputeTraining
from service.usecases.train_models import fit_compute

RANDOM, UNCERTAIN = "random", "uncertain"
_FILE = "active-campaign"


@dataclass(frozen=True, slots=True, eq=False)
class Curves:
    """Held-out MAPE of both ways.

    Attributes:
        sizes: train rows; [P], ascending.
        errors: by the way of choosing; [seeds, P] each.
    """

    sizes: list[int]
    errors: dict[str, Floats]

    def mean(self, way: str) -> Floats:
        """Over the seeds; [P]."""
        return np.asarray(self.errors[way].mean(axis=0))


def replay(rows: OwnRows, sizes: Sequence[int], seeds: int, epochs: int) -> Curves:
    """Trains both ways at every size, for every seed of the order, the choice and the training."""
    found: dict[str, list[list[float]]] = {RANDOM: [], UNCERTAIN: []}
    for seed in range(seeds):
        for way, errors in found.items():
            errors.append(list(_errors(rows, sizes, ComputeTraining(seed=seed, epochs=epochs), way)))
    return Curves(list(sizes), {way: np.array(errors) for way, errors in found.items()})


def _errors(rows: OwnRows, sizes: Sequence[int], config: ComputeTraining, way: str) -> Iterator[float]:
    """The held-out error at every size."""
    rng = np.random.default_rng(config.seed)
    order = rng.permutation(len(rows.random))
    left = [rows.random[i] for i in order]
    taken: list[ComputeMeasurement] = []
    model: ComputeModel | None = None
    for size in sizes:
        started = time.monotonic()
        wanted = size - len(taken)
        places: Sequence[int] = range(wanted)
        if way == UNCERTAIN and model is not None:
            known = [Combination(row.tables, row.batch_size, row.optimizer) for row in left]
            places = most_uncertain(model, known, wanted, [], rng)
        chosen = set(places)
        taken += [left[i] for i in places]
        left = [row for i, row in enumerate(left) if i not in chosen]
        fitted = fit_compute(HARDWARE, [*taken, *rows.held_out], config, datetime.now(UTC))
        model, error = fitted.model, fitted.metrics["total"].mape
        print(
            f"seed {config.seed}, {way}: {size} rows, MAPE {error:.2%} ({time.monotonic() - started:.0f} s)", flush=True
        )
        yield error


def rows_for(error: float, sizes: Sequence[int], errors: Floats) -> float:
    """Rows with which a curve [P] first reaches an error, between sizes along a line; infinite where it never does."""
    if errors[0] <= error:
        return float(sizes[0])
    for place in range(1, len(sizes)):
        before, after = errors[place - 1], errors[place]
        if after <= error:
            return float(sizes[place - 1] + (sizes[place] - sizes[place - 1]) * (before - error) / (before - after))
    return float("inf")


def table_lines(curves: Curves) -> list[str]:
    """Both curves, and how many chosen rows reach what random ones do."""
    random, uncertain = curves.mean(RANDOM), curves.mean(UNCERTAIN)
    lines = [
        "| train rows | MAPE, random | MAPE, chosen | random's error reached by chosen rows |",
        "|--:|--:|--:|--:|",
    ]
    for place, size in enumerate(curves.sizes):
        needed = rows_for(float(random[place]), curves.sizes, uncertain)
        reached = f"{needed:,.0f}" if np.isfinite(needed) else "not reached"
        each = [_with_range(curves.errors[way][:, place]) for way in (RANDOM, UNCERTAIN)]
        lines.append(f"| {size:,} | {each[0]} | {each[1]} | {reached} |")
    return lines


def _with_range(values: Floats) -> str:
    return f"{values.mean():.2%} ({values.min():.2%} to {values.max():.2%})"


def draw(curves: Curves, path: Path) -> None:
    """Both curves with the range over the seeds, as PNG."""
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for way, errors in curves.errors.items():
        axes.plot(curves.sizes, 100 * curves.mean(way), marker="o", label=way)
        axes.fill_between(curves.sizes, 100 * errors.min(axis=0), 100 * errors.max(axis=0), alpha=0.2)
    axes.set(xlabel="train rows", ylabel="MAPE on held-out tables, %")
    axes.legend()
    figure.savefig(path, dpi=120)


def main() -> None:
    """Prints the error of every training and the table, and writes the table and the plot where told to."""
    parser = argparse.ArgumentParser(description=__doc__)
    measurement_option(parser)
    parser.add_argument("--start", type=int, default=200, help="random rows that both ways start from")
    parser.add_argument("--step", type=int, default=200, help="rows added between trainings")
    parser.add_argument("--rows", type=int, default=2_000, help="rows of the last training")
    parser.add_argument("--seeds", type=int, default=3, help="orders, each with trainings of its own")
    parser.add_argument("--epochs", type=int, default=150, help="of each training")
    parser.add_argument("--write", type=Path, help="folder to write the table and the plot to")
    given = parser.parse_args()
    if given.write and not given.write.is_dir():
        parser.error(f"--write: there is no folder {given.write}")
    rows = own_rows(given.measurements)
    sizes = range(given.start, min(given.rows, len(rows.random)) + 1, given.step)
    if len(sizes) < 2:
        sys.exit(f"{len(rows.random)} random train rows are too few: measure more, or give a smaller --step")
    curves = replay(rows, sizes, given.seeds, given.epochs)
    lines = table_lines(curves)
    print("\n".join(lines))
    if given.write:
        draw(curves, given.write / f"{_FILE}.png")
        head = [
            "# Chosen measurements against random ones",
            "",
            f"`python -m benchmarks.active_campaign` on {datetime.now(UTC).date()}: a replay of "
            f"{len(rows.random):,} stored train rows of {HARDWARE}, {given.seeds} seeds, {given.epochs} epochs, "
            "judged on the held-out test part. Mean over the seeds, and the range. Towards all of the stored rows both "
            "ways must meet.",
            "",
            f"![Held-out error by train rows]({_FILE}.png)",
            "",
        ]
        (given.write / f"{_FILE}.md").write_text("\n".join([*head, *lines, ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
