"""Measurements held in memory, and compute models trained on some of them as ``shardwright train compute`` does."""

import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime

from service.cost_models.compute import ComputeModel
from service.domain.measurements import CommunicationMeasurement, ComputeMeasurement
from service.domain.ports import MeasurementStore
from service.registry.store import ModelStore, Version
from service.training.compute_trainer import ComputeTraining
from service.usecases.train_models import TrainedVersion, train_compute_version


class HeldRows(MeasurementStore):
    """A measurement store that is gone with the process; it keeps no exchanges."""

    def __init__(self, rows: Sequence[ComputeMeasurement] = ()) -> None:
        self.rows = list(rows)

    def add_compute(self, measurement: ComputeMeasurement) -> bool:
        """Keeps one measurement."""
        self.rows.append(measurement)
        return True

    def measured_indices(self, campaign: str) -> set[int]:
        """Indices of a campaign."""
        return {row.index for row in self.rows if row.campaign == campaign}

    def compute(self, hardware: str) -> list[ComputeMeasurement]:
        """All of one hardware, ordered by campaign and index."""
        return sorted((r for r in self.rows if r.hardware == hardware), key=lambda row: (row.campaign, row.index))

    def add_communication(self, measurement: CommunicationMeasurement) -> bool:
        """Keeps none."""
        return False

    def communication(self, hardware: str) -> list[CommunicationMeasurement]:
        """There is none."""
        return []


def trained(rows: Sequence[ComputeMeasurement], config: ComputeTraining) -> tuple[ComputeModel, TrainedVersion]:
    """A model trained on the train rows among these, and its metrics on the test rows among them."""
    with tempfile.TemporaryDirectory() as folder:
        store = ModelStore(folder, {})
        version = train_compute_version(rows[0].hardware, HeldRows(rows), store, config, datetime.now(UTC))
        model = store.compute_model(Version.parse(version.version))
        assert isinstance(model, ComputeModel)
        return model, version
