"""Trains cost models on stored measurements and writes them as new versions."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import numpy as np

from service.cost_models.compute import ComputeModel
from service.cost_models.features import FEATURES_VERSION
from service.domain.errors import TooFewMeasurements
from service.domain.measurements import CommunicationMeasurement, ComputeMeasurement, Split
from service.domain.ports import MeasurementStore, ModelWriter
from service.domain.tables import Optimizer
from service.training.communication_trainer import fit_lines, line_error
from service.training.compute_dataset import data_fingerprint, measured_domain, measurements_dataset
from service.training.compute_evaluation import evaluate_compute
from service.training.compute_trainer import ComputeTraining, train_compute
from service.training.metrics import Metrics

LEAST_COMPUTE = 50
"""Fewest compute measurements to train on."""

LEAST_IN_PART = 5
"""Fewest of them in each part of the split."""

LEAST_COMMUNICATION = 10
"""Fewest exchanges that a line is fitted to."""


@dataclass(frozen=True, slots=True)
class TrainedVersion:
    """A version that was written, and its metrics on the held-out part (``total``, ``forward``, ``backward``)."""

    version: str
    rows: dict[str, int]
    metrics: dict[str, Metrics]


def train_compute_version(
    hardware: str,
    measurements: MeasurementStore,
    models: ModelWriter,
    config: ComputeTraining,
    now: datetime,
    optimizer: Optimizer = Optimizer.SGD,
    report: Callable[[int, float], None] = lambda epoch, mape: None,
) -> TrainedVersion:
    """Trains the compute model of a hardware and writes the next version.

    The features do not tell optimizers apart, so one model is of one optimizer's measurements. Trains on the train
    part, chooses the epoch on the validation part and reports on the frozen test part.

    Raises:
        TooFewMeasurements: fewer than ``LEAST_COMPUTE`` are stored, or than ``LEAST_IN_PART`` in a part.
    """
    rows = [row for row in measurements.compute(hardware) if row.optimizer is optimizer]
    parts = _parts(hardware, rows)
    weights = train_compute(
        measurements_dataset(parts[Split.TRAIN]), measurements_dataset(parts[Split.VALIDATION]), config, report
    )
    model = ComputeModel(f"{hardware}/compute/new", weights, FEATURES_VERSION, measured_domain(rows))
    found = evaluate_compute(model, measurements_dataset(parts[Split.TEST]))
    counts = {split.value: len(part) for split, part in parts.items()}
    facts = {
        **_provenance(rows, now),
        "features_version": FEATURES_VERSION,
        "measured": asdict(measured_domain(rows)),
        "data": {"fingerprint": data_fingerprint(rows), "rows": counts},
        "training": asdict(config),
        "metrics": {name: value.as_dict() for name, value in found.items()},
    }
    return TrainedVersion(str(models.write(hardware, "compute", weights, facts)), counts, found)


def train_communication_version(
    hardware: str, measurements: MeasurementStore, models: ModelWriter, now: datetime
) -> tuple[str, float, float]:
    """Fits the lines of a hardware's collectives and writes the next version.

    Returns:
        Name of the version, and its mean absolute percentage errors forward and backward, as fractions.

    Raises:
        TooFewMeasurements: fewer than ``LEAST_COMMUNICATION`` exchanges are stored.
    """
    rows = measurements.communication(hardware)
    if len(rows) < LEAST_COMMUNICATION:
        raise TooFewMeasurements(
            f"{len(rows)} exchanges of {hardware} are stored, {LEAST_COMMUNICATION} are needed: run "
            "`shardwright profile --kind communication` or `shardwright db seed`"
        )
    forward, backward = fit_lines(rows)
    errors = line_error(forward, rows, backward=False), line_error(backward, rows, backward=True)
    weights = {
        "forward": np.array([forward.latency_ms, forward.ms_per_byte], dtype=np.float32),
        "backward": np.array([backward.latency_ms, backward.ms_per_byte], dtype=np.float32),
    }
    facts = {
        **_provenance(rows, now),
        "data": {"rows": len(rows), "ranks": sorted({len(row.widths) for row in rows})},
        "metrics": {"forward_mape": round(errors[0], 5), "backward_mape": round(errors[1], 5)},
    }
    return str(models.write(hardware, "communication", weights, facts)), *errors


def _parts(hardware: str, rows: Sequence[ComputeMeasurement]) -> dict[Split, list[ComputeMeasurement]]:
    parts: dict[Split, list[ComputeMeasurement]] = {split: [] for split in Split}
    for row in rows:
        parts[row.split].append(row)
    if len(rows) < LEAST_COMPUTE or min(map(len, parts.values())) < LEAST_IN_PART:
        raise TooFewMeasurements(
            f"{len(rows)} combinations of {hardware} are stored for this optimizer, {LEAST_COMPUTE} with "
            f"{LEAST_IN_PART} in every part are needed: run `shardwright profile` or `shardwright db seed`"
        )
    return parts


def _provenance(
    rows: Sequence[ComputeMeasurement] | Sequence[CommunicationMeasurement], now: datetime
) -> dict[str, Any]:
    """Where a version comes from: hardware, the device that its costs are of, campaigns and environments."""
    environments = Counter(tuple(sorted(row.environment.items())) for row in rows)
    return {
        "hardware": rows[0].hardware,
        "device": dict(environments.most_common(1)[0][0]).get("device", "unknown"),
        "created_at": now.isoformat(timespec="seconds"),
        "campaigns": dict(Counter(row.campaign for row in rows)),
        "environments": [{**dict(items), "rows": count} for items, count in environments.most_common()],
    }
