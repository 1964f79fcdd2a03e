"""How models price devices of plans, trained on random rows alone and with rows of an active campaign among them.

``measure`` plans tasks of held-out tables with the newest models and measures the devices of the plans, one after the
other on one thread, in turns with random combinations of the same tables; ``compare`` trains on as many rows both ways.
Run it alone on the machine: python -m benchmarks.planned_devices measure FILE.json.gz [--count 60]
and then: python -m benchmarks.planned_devices compare FILE.json.gz [--seeds 3] [--write FILE.md]
"""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from benchmarks.active_campaign import HARDWARE, Rows
from benchmarks.held_rows import HeldRows, trained
from service.cost_models.compute import ComputeModel
from service.domain.measurements import ComputeMeasurement, Split, table_part
from service.domain.ports import CostModels
from service.domain.tables import Table
from service.profiling.campaign import CampaignSettings, Combination, MeasuringRun, Progress, random_combination
from service.profiling.compute_bench import (
    BenchSettings,
    ComputeBench,
    supported_data_types,
    supported_optimizers,
)
from service.profiling.planned import planned_devices
from service.profiling.pools import generated_pool
from service.registry.store import ModelStore
from service.storage.measurement_files import read_measurements, write_measurements
from service.training.compute_trainer import ComputeTraining

PLANNED, RANDOM = "planned-devices", "random-combinations"
"""Campaigns of the file that ``measure`` writes."""

_MEMORY_BYTES = 4 * 2**30


@dataclass(frozen=True, slots=True)
class LogErrors:
    """Errors of N predictions.

    Attributes:
        rows: N.
        mape: mean absolute percentage error, as a fraction.
        bias: mean of the logarithm of predicted over measured; below 0 where predictions are too low.
    """

    rows: int
    mape: float
    bias: float


def combinations(
    pool: Sequence[Table], settings: CampaignSettings, models: CostModels, count: int
) -> list[tuple[str, Combination]]:
    """Devices of plans and as many random combinations, in turns by precision, with the campaign of each.

    All are of test tables.
    """
    test = [table for table in pool if table_part(table) is Split.TEST]
    rng = np.random.default_rng([settings.seed, 3])
    planned = planned_devices(rng, test, settings, models, count)
    random = [random_combination(rng, test, settings) for _ in planned]
    both = [pair for one, other in zip(planned, random, strict=True) for pair in ((PLANNED, one), (RANDOM, other))]
    return sorted(((name, c) for name, c in both if c.tables), key=lambda pair: pair[1].tables[0].data_type)


def measured(
    bench: ComputeBench, settings: CampaignSettings, wanted: Sequence[tuple[str, Combination]]
) -> list[ComputeMeasurement]:
    """Each combination measured alone, in this order."""
    held = HeldRows()
    runs = {name: MeasuringRun(bench, held, name, settings, _say_refused) for name in (PLANNED, RANDOM)}
    for index, (name, combination) in enumerate(wanted):
        runs[name].measure(index, combination)
    return held.rows


def _say_refused(progress: Progress) -> None:
    if progress.refusal:
        print(f"{progress.refused} refused, the last one because {progress.refusal}", flush=True)


def halves(rows: Rows) -> dict[str, list[ComputeMeasurement]]:
    """As many train rows both ways: random alone, and with the chosen ones in the place of the last random ones."""
    kept = max(len(rows.candidates) - len(rows.chosen), 0)
    chosen = rows.chosen[: len(rows.candidates)]
    return {"random rows alone": rows.candidates, "with chosen rows": [*rows.candidates[:kept], *chosen]}


def log_errors(model: ComputeModel, rows: Sequence[ComputeMeasurement]) -> LogErrors:
    """Errors of the total, forward and backward together."""
    predicted = [model.head(model.encode(r.tables, r.batch_size, r.optimizer).sum(axis=0)).sum() for r in rows]
    ratios = np.array(predicted) / np.array([row.forward_ms + row.backward_ms for row in rows])
    return LogErrors(len(rows), float(np.abs(ratios - 1.0).mean()), float(np.log(ratios).mean()))


def compared_lines(rows: Rows, judged: Sequence[ComputeMeasurement], seeds: int, epochs: int) -> list[str]:
    """A row for each way of training: errors on planned devices and on random combinations, mean over the seeds."""
    lines = [
        "| trained on | rows | planned devices, MAPE | bias | random combinations, MAPE | bias | held-out part, MAPE |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    parts = [[row for row in judged if row.campaign == name] for name in (PLANNED, RANDOM)]
    for called, train in halves(rows).items():
        started = time.monotonic()
        found = []
        for seed in range(seeds):
            model, version = trained([*train, *rows.held_out], ComputeTraining(seed=seed, epochs=epochs))
            errors = [log_errors(model, part) for part in parts]
            found.append([*(v for e in errors for v in (e.mape, e.bias)), version.metrics["total"].mape])
        planned, bias, random, random_bias, held_out = np.mean(found, axis=0)
        lines.append(
            f"| {called} | {len(train):,} | {planned:.1%} | {bias:+.1%} | {random:.1%} | {random_bias:+.1%} "
            f"| {held_out:.1%} |"
        )
        print(f"{called}: trained {seeds} times in {time.monotonic() - started:.0f} s", flush=True)
    return [
        *lines,
        "",
        f"{len(parts[0])} planned devices with up to {max(len(row.tables) for row in parts[0])} tables and "
        f"{len(parts[1])} random combinations of held-out tables, measured in turns. Bias is the mean of the logarithm "
        "of predicted over measured. How fast the machine was that day is in both biases alike: their difference is "
        "the models' own.",
    ]


def main() -> None:
    """Measures to a file, or compares on one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("measure", "compare"))
    parser.add_argument("file", type=Path, help="measured devices, as gzipped JSON")
    parser.add_argument("--count", type=int, default=60, help="planned devices to measure")
    parser.add_argument("--measurements", help="file of `shardwright db export` (default: that of the model store)")
    parser.add_argument("--seeds", type=int, default=3, help="trainings of each way")
    parser.add_argument("--epochs", type=int, default=150, help="of each training")
    parser.add_argument("--write", type=Path, help="Markdown file to write the comparison to")
    given = parser.parse_args()
    for path in (given.file, given.write):
        if path and not path.parent.is_dir():
            parser.error(f"there is no folder {path.parent}")
    store = ModelStore("model_store")
    if given.what == "measure":
        settings = CampaignSettings(
            HARDWARE, 0, supported_optimizers("cpu"), supported_data_types("cpu"), _MEMORY_BYTES
        )
        wanted = combinations(generated_pool(), settings, store.cost_models(HARDWARE), given.count)
        started = time.monotonic()
        rows = measured(ComputeBench(BenchSettings(memory_bytes=_MEMORY_BYTES)), settings, wanted)
        write_measurements(str(given.file), rows, [])
        print(f"{len(rows)} of {len(wanted)} measured in {time.monotonic() - started:.0f} s")
        return
    known = Rows.read(given.measurements or store.measurement_file(HARDWARE), ComputeTraining())
    if not known.chosen:
        sys.exit("there are no rows of an active campaign: run `shardwright profile --active`, then `db export`")
    lines = compared_lines(known, read_measurements(str(given.file))[0], given.seeds, given.epochs)
    print("\n".join(lines))
    if given.write:
        head = ["# Planned devices, before and after an active campaign", "",
                f"`python -m benchmarks.planned_devices` on {datetime.now(UTC).date()}, {HARDWARE}, mean over "
                f"{given.seeds} trainings of {given.epochs} epochs.", ""]  # fmt: skip
        given.write.write_text("\n".join([*head, *lines, ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
