"""Trains cost models on stored measurements and writes them as new versions."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, TypeVar

from service.cost_models.communication import CommunicationModel
from service.cost_models.compute import ComputeModel
from service.cost_models.features import FEATURES_VERSION
from service.domain.errors import TooFewMeasurements
from service.domain.measurements import CommunicationMeasurement, ComputeMeasurement, Split
from service.domain.ports import MeasurementStore, ModelWriter
from service.domain.tables import Optimizer
from service.training.communication_dataset import exchange_groups, exchanges_fingerprint, measured_exchanges
from service.training.communication_evaluation import evaluate_communication
from service.training.communication_trainer import CommunicationTraining, train_communication
from service.training.compute_dataset import data_fingerprint, measured_domain, measurements_dataset
from service.training.compute_evaluation import evaluate_compute
from service.training.compute_trainer import ComputeTraining, train_compute
from service.training.metrics import Metrics

LEAST_COMPUTE = 50
"""Fewest compute measurements to train on."""

LEAST_IN_PART = 5
"""Fewest of them in each part of the split."""

LEAST_COMMUNICATION = 100
"""Fewest exchanges to train on."""

_PAUSE = timedelta(minutes=5)

Kind = TypeVar("Kind", ComputeMeasurement, CommunicationMeasurement)


@dataclass(frozen=True, slots=True)
class TrainedVersion:
    """A version that was written, the rows of each part, and its metrics on the held-out part by what they judge."""

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
    parts = _parts(hardware, rows, LEAST_COMPUTE, f"combinations with {optimizer.value}")
    weights = train_compute(
        measurements_dataset(parts[Split.TRAIN]), measurements_dataset(parts[Split.VALIDATION]), config, report
    )
    model = ComputeModel(f"{hardware}/compute/new", weights, FEATURES_VERSION, measured_domain(rows))
    found = evaluate_compute(model, measurements_dataset(parts[Split.TEST]))
    facts = {
        **_provenance(rows, now),
        "features_version": FEATURES_VERSION,
        "measured": asdict(measured_domain(rows)),
        "data": {"fingerprint": data_fingerprint(rows), "rows": _counts(parts)},
        "training": asdict(config),
        "metrics": {name: value.as_dict() for name, value in found.items()},
    }
    return TrainedVersion(str(models.write(hardware, "compute", weights, facts)), _counts(parts), found)


def train_communication_version(
    hardware: str,
    measurements: MeasurementStore,
    models: ModelWriter,
    config: CommunicationTraining,
    now: datetime,
    report: Callable[[int, float], None] = lambda epoch, error: None,
) -> TrainedVersion:
    """Trains the communication model of a hardware, for all numbers of devices, and writes the next version.

    Raises:
        TooFewMeasurements: fewer than ``LEAST_COMMUNICATION`` are stored, or than ``LEAST_IN_PART`` in a part.
    """
    rows = measurements.communication(hardware)
    parts = _parts(hardware, rows, LEAST_COMMUNICATION, "exchanges")
    groups = {split: exchange_groups(part) for split, part in parts.items()}
    weights = train_communication(groups[Split.TRAIN], groups[Split.VALIDATION], config, report)
    model = CommunicationModel(f"{hardware}/communication/new", weights, measured_exchanges(rows))
    found = evaluate_communication(model, groups[Split.TEST])
    facts = {
        **_provenance(rows, now),
        "measured": asdict(measured_exchanges(rows)),
        "data": {"fingerprint": exchanges_fingerprint(rows), "rows": _counts(parts)},
        "training": asdict(config),
        "metrics": {name: value.as_dict() for name, value in found.items()},
    }
    return TrainedVersion(str(models.write(hardware, "communication", weights, facts)), _counts(parts), found)


def _parts(hardware: str, rows: Sequence[Kind], least: int, what: str) -> dict[Split, list[Kind]]:
    parts: dict[Split, list[Kind]] = {split: [] for split in Split}
    for row in rows:
        parts[row.split].append(row)
    if len(rows) < least or min(map(len, parts.values())) < LEAST_IN_PART:
        raise TooFewMeasurements(
            f"{len(rows)} {what} of {hardware} are stored, {least} with {LEAST_IN_PART} in every part are needed: run "
            "`shardwright profile` or `shardwright db seed`"
        )
    return parts


def _counts(parts: Mapping[Split, Sequence[object]]) -> dict[str, int]:
    return {split.value: len(part) for split, part in parts.items()}


def _provenance(
    rows: Sequence[ComputeMeasurement] | Sequence[CommunicationMeasurement], now: datetime
) -> dict[str, Any]:
    """Where a version comes from: hardware, the device that its costs are of, campaigns and environments."""
    environments = Counter(tuple(sorted(row.environment.items())) for row in rows)
    return {
        "hardware": rows[0].hardware,
        "device": dict(environments.most_common(1)[0][0]).get("device", "unknown"),
        "created_at": now.isoformat(timespec="seconds"),
        "campaigns": {name: _campaign(rows, name) for name in sorted({row.campaign for row in rows})},
        "environments": [{**dict(items), "rows": count} for items, count in environments.most_common()],
    }


def _campaign(rows: Sequence[ComputeMeasurement] | Sequence[CommunicationMeasurement], name: str) -> dict[str, Any]:
    """Size of a campaign, and the hours that it measured; pauses do not count."""
    times = sorted(row.measured_at for row in rows if row.campaign == name)
    gaps = [after - before for before, after in pairwise(times)]
    measuring = sum((gap for gap in gaps if gap < _PAUSE), timedelta())
    return {"rows": len(times), "hours": round(measuring.total_seconds() / 3600, 2)}
