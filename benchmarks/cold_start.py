"""How many measurements of new hardware are worth what: the analytic model, the same calibrated, and a network alone.

All are judged on the held-out part; its tables are in no sample. The samples are combinations drawn at random.
Run: python -m benchmarks.cold_start [--measurements FILE] [--write]
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from benchmarks.own_rows import HARDWARE, Rows, measurement_option, own_rows
from service.cost_models.analytic import AnalyticCompute
from service.cost_models.calibrated import CalibratedCompute, Calibration
from service.cost_models.compute import ComputeModel
from service.cost_models.data_sheets import PROCESSORS
from service.cost_models.features import FEATURES_VERSION
from service.domain.ports import Floats
from service.training.calibration import calibrate
from service.training.compute_dataset import measured_domain, measurements_dataset
from service.training.compute_evaluation import predict
from service.training.compute_predictions import measured_costs, predicted_costs
from service.training.compute_trainer import ComputeTraining, train_compute
from service.training.metrics import Metrics, metrics

SAMPLES = (50, 100, 200, 400, 800)
DECIDING = 200
"""Samples with which the calibrated model must be the best one."""

SEEDS = (0, 1, 2)
RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"

_ANALYTIC = AnalyticCompute(f"{HARDWARE}/compute/analytic", PROCESSORS[HARDWARE])
_LEAST_STEPS = 4_000


@dataclass(frozen=True, slots=True)
class Way:
    """A way to have a model from some measurements; ``predict`` has those, those to predict and a seed."""

    name: str
    predict: Callable[[Rows, Rows, int], Floats]


@dataclass(frozen=True, slots=True)
class Point:
    """A way's metrics of the total with some samples, a run for each seed."""

    way: str
    samples: int
    runs: tuple[Metrics, ...]

    def mape(self) -> Floats:
        """Of each run; [R]."""
        return np.array([run.mape for run in self.runs])

    def tau(self) -> Floats:
        """Of each run; [R]."""
        return np.array([run.tau for run in self.runs])


def calibrated(samples: Rows, wanted: Rows, seed: int) -> Floats:
    """Costs by the analytic model corrected by the samples."""
    calibration = Calibration(len(samples), HARDWARE, measured_domain(samples))
    model = CalibratedCompute("calibrated", _ANALYTIC, calibrate(_ANALYTIC, samples, seed), calibration)
    return predicted_costs(model, wanted)


def network(samples: Rows, wanted: Rows, seed: int) -> Floats:
    """Costs by the network trained on the samples alone."""
    config = ComputeTraining(seed=seed)
    epochs = max(config.epochs, _LEAST_STEPS * config.batch_size // len(samples))
    weights = train_compute(measurements_dataset(samples), replace(config, epochs=epochs))
    model = ComputeModel(f"{HARDWARE}/compute/0", weights, FEATURES_VERSION, measured_domain(samples))
    return predict(model, measurements_dataset(wanted))


WAYS = (Way("calibrated", calibrated), Way("network", network))


def curves(train: Rows, held_out: Rows) -> list[Point]:
    """The analytic model without a sample, then each way at each number of samples, the same samples for all."""
    measured = measured_costs(held_out).sum(axis=1)

    def judged(predicted: Floats) -> Metrics:
        return metrics(predicted.sum(axis=1), measured)

    points = [Point("analytic", 0, (judged(predicted_costs(_ANALYTIC, held_out)),))]
    for count in (*(n for n in SAMPLES if n < len(train)), len(train)):
        drawn = [[train[i] for i in np.random.default_rng(seed).permutation(len(train))[:count]] for seed in SEEDS]
        for way in WAYS:
            runs = [judged(way.predict(samples, held_out, seed)) for seed, samples in zip(SEEDS, drawn, strict=True)]
            points.append(Point(way.name, count, tuple(runs)))
            print(_row(points[-1]))
    return points


def verdict(points: Sequence[Point], samples: int = DECIDING) -> bool:
    """Whether that many samples calibrated beat the analytic model and the network on the same, in every run."""
    found = {point.way: point for point in points if point.samples in (0, samples)}
    best_of_others = np.minimum(found["analytic"].mape(), found["network"].mape())
    return bool((found["calibrated"].mape() < best_of_others).all())


def table(points: Sequence[Point], held_out: int) -> list[str]:
    """The results as Markdown."""
    won = "beat" if verdict(points) else "do not beat"
    return [
        "# The cold start",
        "",
        "Written by `python -m benchmarks.cold_start --write`; why and how is in `../decisions/0010-*.md`.",
        "",
        f"Error of forward + backward compute on {held_out} held-out combinations of {HARDWARE}, whose tables are in",
        f"no sample; mean of {len(SEEDS)} draws of the samples (least to most). {DECIDING} samples calibrated {won}",
        f"the analytic model and a network trained on the same {DECIDING} in every draw.",
        "",
        "| samples | model | MAPE | Kendall's tau |",
        "|--:|---|--:|--:|",
        *map(_row, points),
        "",
        "![Error against the number of samples](cold-start.png)",
    ]


def _row(point: Point) -> str:
    mape, tau = point.mape(), point.tau()
    spread = f" ({mape.min():.1%} to {mape.max():.1%})" if len(mape) > 1 else ""
    return f"| {point.samples} | {point.way} | {mape.mean():.1%}{spread} | {tau.mean():.3f} |"


def draw(points: Sequence[Point], path: Path) -> None:
    """Draws the curves with the range of the runs."""
    figure = Figure(figsize=(9.2, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, of, label in zip(
        figure.subplots(1, 2), (Point.mape, Point.tau), ("MAPE, held out", "Kendall's tau, held out"), strict=True
    ):
        axes.axhline(of(points[0]).mean(), color="0.5", linestyle="--", label="analytic, no sample")
        for way in WAYS:
            own = [point for point in points if point.way == way.name]
            counts = [point.samples for point in own]
            (line,) = axes.plot(counts, [of(point).mean() for point in own], marker="o", markersize=4, label=way.name)
            low, high = ([end(of(point)) for point in own] for end in (np.min, np.max))
            axes.fill_between(counts, low, high, color=line.get_color(), alpha=0.2)
        axes.set(xscale="log", xlabel="samples", ylabel=label)
    figure.axes[0].set(yscale="log")
    for which in (figure.axes[0].yaxis.set_major_formatter, figure.axes[0].yaxis.set_minor_formatter):
        which(PercentFormatter(1, decimals=0))
    figure.axes[1].legend(loc="lower right")
    figure.savefig(path, dpi=120)


def main() -> None:
    """Prints the curves; with --write, writes them beside the other results."""
    parser = argparse.ArgumentParser(description=__doc__)
    measurement_option(parser)
    parser.add_argument("--write", action="store_true", help="write docs/results/cold-start.{md,png}")
    given = parser.parse_args()
    rows = own_rows(given.measurements)
    if len(rows.random) < DECIDING or not rows.test:
        sys.exit(
            f"{given.measurements} has {len(rows.random)} train rows and {len(rows.test)} test rows, {DECIDING} and 1 "
            "are needed: run `shardwright profile`, then `shardwright db export`"
        )
    points = curves(rows.random, rows.test)
    lines = table(points, len(rows.test))
    print("\n".join(lines))
    if given.write:
        (RESULTS / "cold-start.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
        draw(points, RESULTS / "cold-start.png")


if __name__ == "__main__":
    main()
