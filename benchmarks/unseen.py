"""The compute model on batch sizes, and on pairs of precision and optimizer, that it was not trained on.

Each is left out of the train part, and the held-out combinations of it (of tables that no training saw) are judged,
beside the same combinations by a model that was trained on all.

Run: python -m benchmarks.unseen [--measurements FILE] [--write FILE.md]
"""

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.own_rows import OwnRows, Rows, measurement_option, own_rows
from service.cost_models.compute import ComputeModel
from service.cost_models.features import FEATURES_VERSION
from service.domain.measurements import ComputeMeasurement
from service.domain.tables import DataType, Optimizer
from service.training.compute_dataset import measured_domain, measurements_dataset
from service.training.compute_predictions import metrics_on
from service.training.compute_trainer import ComputeTraining, train_compute
from service.training.metrics import Metrics

BATCH_SIZES = ((96, 192), (768, 1_536), (6_000, 12_000), (24_000, 48_000))
"""Ranges of batch sizes that are left out, an octave each."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What is left out of training.

    Attributes:
        name: what it is called.
        has: whether a combination is of it.
    """

    name: str
    has: Callable[[ComputeMeasurement], bool]


def left_out() -> list[LeftOut]:
    """All that is left out, one after the other."""
    batches = [LeftOut(f"batch sizes {low:,} to {high:,}", _batch_sizes(low, high)) for low, high in BATCH_SIZES]
    pairs = [
        LeftOut(f"{data_type.value} with {optimizer.value}", _pair(data_type, optimizer))
        for data_type in (DataType.FP32, DataType.FP16)
        for optimizer in (Optimizer.SGD, Optimizer.ROWWISE_ADAGRAD, Optimizer.ADAGRAD)
    ]
    return [*batches, *pairs]


def _batch_sizes(low: int, high: int) -> Callable[[ComputeMeasurement], bool]:
    return lambda row: low <= row.batch_size <= high


def _pair(data_type: DataType, optimizer: Optimizer) -> Callable[[ComputeMeasurement], bool]:
    return lambda row: row.optimizer is optimizer and row.tables[0].data_type is data_type


def trained(rows: Rows) -> ComputeModel:
    """A model of these combinations."""
    weights = train_compute(measurements_dataset(rows), ComputeTraining())
    return ComputeModel("benchmark/compute/0", weights, FEATURES_VERSION, measured_domain(rows))


def judged(model: ComputeModel, rows: Rows) -> Metrics:
    """Metrics of the total."""
    return metrics_on(model, rows)["total"]


def row_of(out: LeftOut, known: OwnRows, whole: ComputeModel, overall: float) -> str:
    """A line of the table: trains without what is left out, where there are held-out rows of it to judge on.

    Args:
        out: what is left out.
        known: all rows.
        whole: the model that was trained on all.
        overall: MAPE of that on all held-out rows.
    """
    rows = [row for row in known.test if out.has(row)]
    if not rows:
        return f"| {out.name} | none | - | - | - |"
    unseen = judged(trained([row for row in known.train if not out.has(row)]), rows)
    seen = judged(whole, rows)
    return f"| {out.name} | {len(rows)} | {unseen.mape:.1%} | {unseen.mape / overall:.2f} | {seen.mape:.1%} |"


def main() -> None:
    """Prints a line for each thing that is left out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    measurement_option(parser)
    parser.add_argument("--write", type=Path, help="Markdown file to write")
    asked = parser.parse_args()
    known = own_rows(asked.measurements)
    if not known.test:
        sys.exit(f"{asked.measurements} has no test rows to judge on: run `shardwright profile`, then `db export`")
    whole = trained(known.train)
    overall = judged(whole, known.test)
    lines = [
        f"All {overall.rows} held-out combinations: MAPE {overall.mape:.1%}, tau {overall.tau:.3f}.",
        "",
        "| left out of training | held-out rows | MAPE, left out | / MAPE of all | MAPE, trained on all |",
        "|---|--:|--:|--:|--:|",
    ]
    print("\n".join(lines))
    for out in left_out():
        lines.append(row_of(out, known, whole, overall.mape))
        print(lines[-1], flush=True)
    if asked.write:
        written = f"Written by `python -m benchmarks.unseen --write {asked.write}`."
        asked.write.write_text("\n".join(["# The compute model on what it has not seen", "", written, "", *lines, ""]))


if __name__ == "__main__":
    main()
