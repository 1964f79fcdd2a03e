"""The measurements of the thread behind ``cpu-fbgemm``, as training takes them: one time of the machine, by part."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace

from service.domain.measurements import ComputeMeasurement, Split, comparable
from service.registry.store import ModelStore
from service.storage.measurement_files import read_measurements
from service.training.compute_trainer import ComputeTraining
from service.training.sittings import sittings, without_factors

HARDWARE = "cpu-fbgemm"
Rows = Sequence[ComputeMeasurement]


@dataclass(frozen=True, slots=True)
class OwnRows:
    """Combinations by time, those that mix parts left out.

    Attributes:
        random: train rows of combinations drawn at random.
        chosen: train rows of combinations that models chose.
        validation: drawn at random.
        test: drawn at random.
    """

    random: list[ComputeMeasurement]
    chosen: list[ComputeMeasurement]
    validation: list[ComputeMeasurement]
    test: list[ComputeMeasurement]

    @property
    def train(self) -> list[ComputeMeasurement]:
        """All train rows."""
        return [*self.random, *self.chosen]

    @property
    def held_out(self) -> list[ComputeMeasurement]:
        """What no model is fitted to, but for the choice of an epoch and the intervals."""
        return [*self.validation, *self.test]


def measurement_option(parser: argparse.ArgumentParser) -> None:
    """Adds ``--measurements FILE``; the default is the model store's file."""
    stored = ModelStore("model_store").measurement_file(HARDWARE)
    parser.add_argument("--measurements", default=stored, help="file of `shardwright db export`")


def own_rows(path: str) -> OwnRows:
    """What a file holds of the newest device and bench, as its newest sitting would have measured it.

    How fast the machine was in each sitting is told from all rows together, for all trainings alike: told anew from
    what each training is given, it would differ with the choice. So all rows are of one time here.
    """
    measured = sorted(read_measurements(path)[0], key=lambda row: row.measured_at)
    rows = [row for row in comparable(measured) if row.split is not None]
    rows = without_factors(rows, sittings(rows, ComputeTraining()))
    once = [replace(row, measured_at=rows[-1].measured_at) for row in rows]

    def part(split: Split) -> list[ComputeMeasurement]:
        return [row for row in once if row.split is split]

    train = part(Split.TRAIN)
    return OwnRows(
        [row for row in train if not row.chosen],
        [row for row in train if row.chosen],
        part(Split.VALIDATION),
        part(Split.TEST),
    )
