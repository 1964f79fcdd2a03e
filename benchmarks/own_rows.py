"""The measurements behind the shipped models, as training takes them: one time of the machine, by part."""

import argparse

from service.domain.measurements import ComputeMeasurement, Split, comparable
from service.registry.store import ModelStore
from service.storage.measurement_files import read_measurements
from service.training.compute_trainer import ComputeTraining
from service.training.sittings import sittings, without_factors

HARDWARE = "cpu-fbgemm"
Rows = list[ComputeMeasurement]


def measurement_option(parser: argparse.ArgumentParser) -> None:
    """Adds ``--measurements FILE``; the default is the model store's file."""
    stored = ModelStore("model_store").measurement_file(HARDWARE)
    parser.add_argument("--measurements", default=stored, help="file of `shardwright db export`")


def own_rows(path: str) -> dict[Split, Rows]:
    """The combinations of each part, the sittings' factors taken out; those that mix parts are left out."""
    measured, _ = read_measurements(path)
    rows = [row for row in comparable(measured) if row.split is not None]
    rows = without_factors(rows, sittings(rows, ComputeTraining()))
    return {part: [row for row in rows if row.split is part] for part in Split}
