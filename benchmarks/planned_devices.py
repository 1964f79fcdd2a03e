"""How models price devices of plans, trained on random rows alone and with rows of an active campaign among them.

A search finds what its own model prices too low, so each way of training plans the same tasks, and both are judged on
both's plans. ``measure`` trains a model each way, plans tasks of held-out tables with each, and measures the devices of
the plans, one after the other on one thread, in turns with random combinations of the same tables. ``compare`` trains
several times each way, on the same rows, and judges. Run ``measure`` alone on the machine:
python -m benchmarks.planned_devices measure FILE.json.gz [--count 60]
and then: python -m benchmarks.planned_devices compare FILE.json.gz [--seeds 3] [--write FILE.md]
"""

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from benchmarks.held_rows import HeldRows
from benchmarks.own_rows import HARDWARE, OwnRows, Rows, measurement_option, own_rows
from service.cost_models.compute import ComputeModel
from service.domain.fused_operator import supported_data_types, supported_optimizers
from service.domain.measurements import ComputeMeasurement, Split, table_part
from service.domain.ports import CommunicationCostModel, ComputeCostModel, CostModels, MeasurementStore
from service.domain.tables import Table
from service.profiling.campaign import CampaignSettings, MeasuringRun
from service.profiling.combinations import Combination, random_combination
from service.profiling.compute_bench import (
    BenchSettings,
    ComputeBench,
)
from service.profiling.planned import planned_devices
from service.profiling.pools import generated_pool
from service.registry.store import ModelStore
from service.storage.measurement_files import read_measurements, write_measurements
from service.training.compute_trainer import ComputeTraining
from service.usecases.train_models import FittedCompute, fit_compute

RANDOM, CHOSEN = "random rows alone", "with chosen rows"
"""The ways of training."""

PLANNED_BY = {RANDOM: "planned-by-random", CHOSEN: "planned-by-chosen"}
"""Campaigns of the file that ``measure`` writes: devices of the plans of each way's model."""

DRAWN = "random-combinations"
"""The campaign of random combinations in that file."""

CAMPAIGNS = (*PLANNED_BY.values(), DRAWN)

_MEMORY_BYTES = 4 * 2**30
_TURN = 60
"""Combinations among which those of one precision follow each other."""

Wanted = tuple[str, Combination]


@dataclass(frozen=True, slots=True)
class LogErrors:
    """Errors of N predictions.

    Attributes:
        mape: mean absolute percentage error, as a fraction.
        bias: mean of the logarithm of predicted over measured; below 0 where predictions are too low.
    """

    mape: float
    bias: float


def as_many(known: OwnRows) -> dict[str, list[ComputeMeasurement]]:
    """As many train rows each way: random alone, and with the chosen ones in the place of the last random ones."""
    chosen = known.chosen[: len(known.random)]
    kept = len(known.random) - len(chosen)
    return {RANDOM: known.random, CHOSEN: [*known.random[:kept], *chosen]}


def fitted(train: Rows, known: OwnRows, seed: int, epochs: int) -> FittedCompute:
    """A model trained on these rows; the same held-out rows for all."""
    config = ComputeTraining(seed=seed, epochs=epochs)
    return fit_compute(HARDWARE, [*train, *known.held_out], config, datetime.now(UTC))


def combinations(
    pool: Sequence[Table],
    settings: CampaignSettings,
    models: Mapping[str, ComputeCostModel],
    communication: CommunicationCostModel,
    count: int,
) -> list[Wanted]:
    """Devices of each model's plans of the same tasks and as many random combinations, in turns.

    All are of test tables. Those of one precision follow each other among every ``_TURN``, since the bench fills its
    memory anew for another one.

    Args:
        pool: tables.
        settings: of the campaigns.
        models: that plan, by their way of training.
        communication: that they plan with.
        count: planned devices of each.
    """
    test = [table for table in pool if table_part(table) is Split.TEST]
    sources: dict[str, list[Combination]] = {}
    for way, compute in models.items():
        tasks = np.random.default_rng([settings.seed, 3])
        sources[PLANNED_BY[way]] = planned_devices(tasks, test, settings, CostModels(compute, communication), count)
    planned = max(map(len, sources.values()))
    rng = np.random.default_rng([settings.seed, 4])
    kinds = (settings.optimizers, settings.data_types, settings.memory_bytes)
    drawn = [random_combination(rng, test, *kinds) for _ in range(planned)]
    sources[DRAWN] = [combination for combination in drawn if combination.tables]
    turns = [(name, found[i]) for i in range(planned) for name, found in sources.items() if i < len(found)]
    blocks = [turns[first : first + _TURN] for first in range(0, len(turns), _TURN)]
    return [pair for block in blocks for pair in sorted(block, key=lambda pair: pair[1].tables[0].data_type)]


def measure(
    bench: ComputeBench, settings: CampaignSettings, wanted: Sequence[Wanted], store: MeasurementStore
) -> list[str]:
    """Measures each combination alone, in this order, into the store; says why the refused ones were."""
    runs = {name: MeasuringRun(bench, store, name, settings) for name in CAMPAIGNS}
    for index, (name, combination) in enumerate(wanted):
        runs[name].measure(index, combination)
    refused = {name: run.progress for name, run in runs.items() if run.progress.refused}
    return [f"{name}: {p.refused} refused, the last one because {p.refusal}" for name, p in refused.items()]


def log_errors(model: ComputeModel, rows: Rows) -> LogErrors:
    """Errors of the total, forward and backward together."""
    predicted = [model.head(model.encode(r.tables, r.batch_size, r.optimizer).sum(axis=0)).sum() for r in rows]
    ratios = np.array(predicted) / np.array([row.forward_ms + row.backward_ms for row in rows])
    return LogErrors(float(np.abs(ratios - 1.0).mean()), float(np.log(ratios).mean()))


def compared_lines(known: OwnRows, judged: Rows, seeds: int, epochs: int) -> list[str]:
    """A row for each way of training and campaign: mean over the seeds, least to most."""
    parts = {name: [row for row in judged if row.campaign == name] for name in CAMPAIGNS}
    parts = {name: part for name, part in parts.items() if part}
    lines = [
        "| trained on | rows | judged on | devices | MAPE (least to most) | bias (least to most) |",
        "|---|--:|---|--:|--:|--:|",
    ]
    for way, train in as_many(known).items():
        started = time.monotonic()
        models = [fitted(train, known, seed, epochs) for seed in range(seeds)]
        for name, part in parts.items():
            errors = [log_errors(found.model, part) for found in models]
            told = f"{_ranged([e.mape for e in errors], '.1%')} | {_ranged([e.bias for e in errors], '+.1%')}"
            lines.append(f"| {way} | {len(train):,} | {name} | {len(part)} | {told} |")
        held_out = _ranged([found.metrics["total"].mape for found in models], ".1%")
        lines.append(f"| {way} | {len(train):,} | held-out part | {models[0].rows['test']} | {held_out} | |")
        print(f"{way}: trained {seeds} times in {time.monotonic() - started:.0f} s", flush=True)
    return [
        *lines,
        "",
        "The plans are those of each way's model of seed 0, of the same tasks of held-out tables; all were measured in "
        "turns. Bias is the mean of the logarithm of predicted over measured. How fast the machine was that day is in "
        "all biases alike: differences are the models' own.",
    ]


def _ranged(values: Sequence[float], form: str) -> str:
    return f"{np.mean(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def _measure_to(file: Path, known: OwnRows, communication: CommunicationCostModel, count: int, epochs: int) -> None:
    settings = CampaignSettings(HARDWARE, 0, supported_optimizers("cpu"), supported_data_types("cpu"), _MEMORY_BYTES)
    models = {way: fitted(train, known, 0, epochs).model for way, train in as_many(known).items()}
    wanted = combinations(generated_pool(), settings, models, communication, count)
    if not any(name != DRAWN for name, _ in wanted):
        sys.exit("no task could be planned: give a larger --count")
    store, started = HeldRows(), time.monotonic()
    try:
        for said in measure(ComputeBench(BenchSettings(memory_bytes=_MEMORY_BYTES)), settings, wanted, store):
            print(said)
    except KeyboardInterrupt:
        print("stopped: what was measured is written")
    if not store.rows:
        sys.exit("nothing was measured, nothing is written")
    write_measurements(str(file), store.rows, [])
    print(f"{len(store.rows)} of {len(wanted)} measured in {time.monotonic() - started:.0f} s")


def main() -> None:
    """Measures to a file, or compares on one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("measure", "compare"))
    parser.add_argument("file", type=Path, help="measured devices, as gzipped JSON")
    measurement_option(parser)
    parser.add_argument("--count", type=int, default=60, help="planned devices of each model to measure")
    parser.add_argument("--seeds", type=int, default=3, help="trainings of each way")
    parser.add_argument("--epochs", type=int, default=150, help="of each training")
    parser.add_argument("--write", type=Path, help="Markdown file to write the comparison to")
    given = parser.parse_args()
    for path in (given.file, given.write):
        if path and not path.parent.is_dir():
            parser.error(f"there is no folder {path.parent}")
    known = own_rows(given.measurements)
    if not known.chosen:
        sys.exit("there are no rows of an active campaign: run `shardwright profile --active`, then `db export`")
    if given.what == "measure":
        communication = ModelStore("model_store").cost_models(HARDWARE).communication
        _measure_to(given.file, known, communication, given.count, given.epochs)
        return
    lines = compared_lines(known, read_measurements(str(given.file))[0], given.seeds, given.epochs)
    print("\n".join(lines))
    if given.write:
        head = ["# Planned devices, before and after an active campaign", "",
                f"`python -m benchmarks.planned_devices` on {datetime.now(UTC).date()}, {HARDWARE}, mean over "
                f"{given.seeds} trainings of {given.epochs} epochs.", ""]  # fmt: skip
        given.write.write_text("\n".join([*head, *lines, ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
