"""Trains cost models on stored measurements and writes them as new versions."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, Generic, TypeVar

import numpy as np

from service.cost_models.analytic import AnalyticCompute
from service.cost_models.arrays import Arrays
from service.cost_models.calibrated import CALIBRATED, CalibratedCompute, Calibration, figures
from service.cost_models.communication import CommunicationModel
from service.cost_models.compute import ComputeModel
from service.cost_models.data_sheets import PROCESSORS, Processor
from service.cost_models.features import FEATURES_VERSION
from service.domain.errors import TooFewMeasurements, UnknownHardware
from service.domain.measurements import (
    CHOSEN_BY,
    CommunicationMeasurement,
    ComputeMeasurement,
    Kind,
    Split,
    comparable,
)
from service.domain.ports import ComputeCostModel, MeasurementStore, ModelWriter
from service.training.calibration import calibrate
from service.training.communication_dataset import exchange_groups, exchanges_fingerprint, measured_exchanges
from service.training.communication_evaluation import evaluate_communication
from service.training.communication_trainer import CommunicationTraining, train_communication
from service.training.compute_dataset import data_fingerprint, measured_domain, measurements_dataset
from service.training.compute_predictions import predicted_costs
from service.training.compute_trainer import ComputeTraining, train_compute
from service.training.cross_fitting import held_out_exchanges
from service.training.intervals import fit_compute_intervals, fit_exchange_intervals
from service.training.judged_rows import judged_combinations, judged_exchanges
from service.training.metrics import Metrics, metrics
from service.training.sittings import PAUSE, sittings, without_factors
from service.training.slices import Judged

LEAST_COMPUTE = 50
"""Fewest compute measurements to train on."""

LEAST_CALIBRATION = 30
"""Fewest compute measurements to correct an analytic model by."""

LEAST_IN_PART = 5
"""Fewest of them in each part of the split."""

LEAST_FOR_INTERVALS = 39
"""Fewest held-out rows that intervals are fitted to: 19 is where 5% and 95% ends exist at all, as the smallest and the
largest; with 39 one of either side may be an outlier."""

LEAST_COMMUNICATION = 100
"""Fewest exchanges to train on."""

Model = TypeVar("Model")

_REMEDY = "run `shardwright profile` or `shardwright db seed`"


@dataclass(frozen=True, slots=True)
class TrainedVersion:
    """A version that was written, the rows of each part, and what was found on the held-out part.

    Attributes:
        version: its name.
        rows: of each part.
        metrics: by what they judge.
        coverage: share of the rows that are within their 90% intervals, by what is judged.
    """

    version: str
    rows: dict[str, int]
    metrics: dict[str, Metrics]
    coverage: dict[str, float]


@dataclass(frozen=True, slots=True, eq=False)
class Fitted(Generic[Model]):
    """A cost model that was trained and is not written.

    Attributes:
        model: it, with its errors and, of compute, its novelty.
        arrays: what a version of it consists of.
        facts: for the manifest of such a version.
        rows: of each part.
        metrics: by what they judge, on the held-out part.
        coverage: share of the rows that are within their 90% intervals, by what is judged.
    """

    model: Model
    arrays: Arrays
    facts: dict[str, Any]
    rows: dict[str, int]
    metrics: dict[str, Metrics]
    coverage: dict[str, float]


FittedCompute = Fitted[ComputeModel]


def train_compute_version(
    hardware: str,
    measurements: MeasurementStore,
    models: ModelWriter,
    config: ComputeTraining,
    now: datetime,
    report: Callable[[int], None] = lambda epoch: None,
) -> TrainedVersion:
    """Trains the compute model of a hardware as ``fit_compute`` does and writes the next version.

    Raises:
        TooFewMeasurements: see ``fit_compute``.
        ModelStoreUnwritable: nothing was trained.
    """
    models.refuse_unwritable()
    fitted = fit_compute(hardware, measurements.compute(hardware), config, now, report)
    version = str(models.write(hardware, "compute", fitted.arrays, fitted.facts))
    return TrainedVersion(version, fitted.rows, fitted.metrics, fitted.coverage)


def fit_compute(
    hardware: str,
    stored: Sequence[ComputeMeasurement],
    config: ComputeTraining,
    now: datetime,
    report: Callable[[int], None] = lambda epoch: None,
) -> FittedCompute:
    """Trains the compute model of a hardware and writes nothing.

    One model is of all optimizers, precisions and batch sizes, and of the measurements of the newest device and bench
    alone; combinations that mix parts of the split are left out. How fast the machine was in each sitting is taken
    out. Trains on the train part, fits intervals on the validation part, and reports on the frozen test part.

    Raises:
        TooFewMeasurements: fewer than ``LEAST_COMPUTE`` are stored, or than ``LEAST_IN_PART`` in a part, or than
            ``LEAST_FOR_INTERVALS`` in the validation part.
    """
    rows = [row for row in comparable(stored) if row.split is not None]
    parts = _parts(hardware, rows, LEAST_COMPUTE, Split.VALIDATION, "combinations")
    times = sittings(rows, config)
    parts = {split: without_factors(part, times) for split, part in parts.items()}
    weights = train_compute(measurements_dataset(parts[Split.TRAIN]), config, report)
    measured = measured_domain(parts[Split.TRAIN])
    model = ComputeModel(f"{hardware}/compute/new", weights, FEATURES_VERSION, measured)
    validation, test = parts[Split.VALIDATION], parts[Split.TEST]
    arrays = fit_compute_intervals(predicted_costs(model, validation), parts[Split.TRAIN], validation, measured)
    whole = model.with_errors(arrays)
    found, coverage = _judged(whole, test)
    facts = {
        **_provenance(rows, now),
        "features_version": FEATURES_VERSION,
        "measured": asdict(measured),
        "data": {"fingerprint": data_fingerprint(rows), **_amounts(parts, stored)},
        "sittings": [sitting.as_dict() for sitting in times],
        "training": asdict(config),
        "metrics": _told(found, coverage),
    }
    return Fitted(whole, {**weights, **arrays}, facts, _counts(parts), found, coverage)


def calibrate_compute_version(
    hardware: str,
    measurements: MeasurementStore,
    models: ModelWriter,
    now: datetime,
    samples: int | None = None,
    seed: int = 0,
    processors: Mapping[str, Processor] = PROCESSORS,
) -> TrainedVersion:
    """Corrects the analytic compute model of a hardware by measurements of it and writes the next version.

    Takes the measurements of the newest device and bench alone, of all optimizers and precisions together; those of
    the train part, and reports on the frozen test part. How fast the machine was in each sitting is taken out, where
    there are rows enough to tell.

    Args:
        hardware: what they are of.
        measurements: where they are.
        models: where the version goes.
        now: the time.
        samples: how many of the train part to use, drawn at random; None uses all.
        seed: of the draw, and of the cross-validation.
        processors: data sheets by hardware.

    Raises:
        UnknownHardware: there is no data sheet of it.
        TooFewMeasurements: ``samples`` is, or the train part has, fewer than ``LEAST_CALIBRATION``; it has fewer than
            ``samples``; or the test part fewer than ``LEAST_IN_PART``.
    """
    processor = processors.get(hardware)
    if processor is None:
        known = sorted(processors)
        raise UnknownHardware(
            f"there is no data sheet of hardware {hardware!r} to start from, only of {', '.join(known)}: train without "
            "--from-analytic",
            known=known,
        )
    stored = measurements.compute(hardware)
    rows = [row for row in comparable(stored) if row.split is not None]
    train, test = ([row for row in rows if row.split is split] for split in (Split.TRAIN, Split.TEST))
    _refuse_too_few(hardware, len(train), len(test), samples)
    times = sittings(rows, ComputeTraining(seed=seed))
    train, test = (without_factors(part, times) for part in (train, test))
    drawn = np.random.default_rng(seed).permutation(len(train))[: samples or len(train)]
    chosen = [train[i] for i in sorted(drawn)]
    analytic = AnalyticCompute(f"{hardware}/compute/new", processor)
    weights = calibrate(analytic, chosen, seed)
    provenance = _provenance(chosen, now)
    calibration = Calibration(len(chosen), provenance["device"], measured_domain(chosen))
    model = CalibratedCompute(analytic.version, analytic, weights, calibration)
    found, coverage = _judged(model, test)
    counts = {Split.TRAIN.value: len(chosen), Split.VALIDATION.value: 0, Split.TEST.value: len(test)}
    facts = {
        **provenance,
        "kind": CALIBRATED,
        "analytic": figures(processor),
        "measured": asdict(calibration.measured),
        "samples": {"count": len(chosen), "seed": seed, "fingerprint": data_fingerprint(chosen)},
        "data": {"fingerprint": data_fingerprint(rows), "rows": counts, "left_out": len(stored) - len(rows)},
        "sittings": [sitting.as_dict() for sitting in times],
        "metrics": _told(found, coverage),
    }
    return TrainedVersion(str(models.write(hardware, "compute", weights, facts)), counts, found, coverage)


def train_communication_version(
    hardware: str,
    measurements: MeasurementStore,
    models: ModelWriter,
    config: CommunicationTraining,
    now: datetime,
    report: Callable[[int, float], None] = lambda epoch, error: None,
) -> TrainedVersion:
    """Trains the communication model of a hardware as ``fit_communication`` does and writes the next version.

    Raises:
        TooFewMeasurements: see ``fit_communication``.
        ModelStoreUnwritable: nothing was trained.
    """
    models.refuse_unwritable()
    fitted = fit_communication(hardware, measurements.communication(hardware), config, now, report)
    version = str(models.write(hardware, "communication", fitted.arrays, fitted.facts))
    return TrainedVersion(version, fitted.rows, fitted.metrics, fitted.coverage)


def fit_communication(
    hardware: str,
    stored: Sequence[CommunicationMeasurement],
    config: CommunicationTraining,
    now: datetime,
    report: Callable[[int, float], None] = lambda epoch, error: None,
) -> Fitted[CommunicationModel]:
    """Trains the communication model of a hardware, for all numbers of devices, and writes nothing.

    Takes the measurements of the newest device and bench alone. Trains on the train part, chooses the epoch on the
    validation part and reports on the frozen test part; intervals are fitted to the train part, as models see it that
    were not trained on it (``service.training.cross_fitting``).

    Raises:
        TooFewMeasurements: fewer than ``LEAST_COMMUNICATION`` are stored, or than ``LEAST_FOR_INTERVALS`` in the train
            part, or than ``LEAST_IN_PART`` in a part of any number of devices.
    """
    rows = comparable(stored)
    parts = _parts(hardware, rows, LEAST_COMMUNICATION, Split.TRAIN, "exchanges")
    measured = measured_exchanges(rows, LEAST_IN_PART)
    if not measured.ranks:
        raise TooFewMeasurements(
            f"no number of devices has {LEAST_IN_PART} exchanges of {hardware} in every part: {_REMEDY}"
        )
    groups = {split: exchange_groups(part) for split, part in parts.items()}
    weights = train_communication(groups[Split.TRAIN], groups[Split.VALIDATION], config, report)
    model = CommunicationModel(f"{hardware}/communication/new", weights, measured)
    held_out = held_out_exchanges(parts[Split.TRAIN], groups[Split.VALIDATION], measured, config)
    arrays = fit_exchange_intervals(held_out, measured)
    found = evaluate_communication(model, groups[Split.TEST])
    whole = model.with_errors(arrays)
    coverage = _coverage(judged_exchanges(whole, parts[Split.TEST]))
    facts = {
        **_provenance(rows, now),
        "measured": asdict(measured),
        "data": {"fingerprint": exchanges_fingerprint(rows), **_amounts(parts, stored)},
        "training": asdict(config),
        "metrics": _told(found, coverage),
    }
    return Fitted(whole, {**weights, **arrays}, facts, _counts(parts), found, coverage)


def _parts(
    hardware: str, rows: Sequence[Kind], least: int, intervals_from: Split, what: str
) -> dict[Split, list[Kind]]:
    """Rows of each part, enough to train on and, in the part that intervals come from, for those."""
    parts: dict[Split, list[Kind]] = {split: [] for split in Split}
    for row in rows:
        if row.split is not None:
            parts[row.split].append(row)
    fewest = {split: LEAST_FOR_INTERVALS if split is intervals_from else LEAST_IN_PART for split in Split}
    if len(rows) < least or any(len(part) < fewest[split] for split, part in parts.items()):
        stored = ", ".join(f"{len(part)} {split.value}" for split, part in parts.items())
        needed = ", ".join(f"{count} {split.value}" for split, count in fewest.items())
        raise TooFewMeasurements(
            f"{len(rows)} {what} of {hardware} by the newest device and bench are stored ({stored}), {least} are "
            f"needed with {needed}, for intervals come from the {intervals_from.value} part: {_REMEDY}"
        )
    return parts


def _refuse_too_few(hardware: str, train: int, test: int, samples: int | None) -> None:
    """Raises TooFewMeasurements where rows of the parts, or the samples asked for, are too few to calibrate by."""
    if samples is not None and samples < LEAST_CALIBRATION:
        raise TooFewMeasurements(
            f"--samples {samples} is too few to correct an analytic model by, {LEAST_CALIBRATION} are needed: give "
            "more, or leave --samples out to use all of the train part"
        )
    wanted = max(samples or 0, LEAST_CALIBRATION)
    if train < wanted or test < LEAST_IN_PART:
        raise TooFewMeasurements(
            f"{train} combinations of {hardware} by the newest device and bench are in the train part and {test} in "
            f"the test part, {wanted} to calibrate with and {LEAST_IN_PART} to judge it on are needed: {_REMEDY}"
        )


def _judged(model: ComputeCostModel, test: Sequence[ComputeMeasurement]) -> tuple[dict[str, Metrics], dict[str, float]]:
    """Metrics and coverage on the held-out part, by what they judge."""
    judged = judged_combinations(model, test)
    return {name: metrics(cost.predicted, cost.measured) for name, cost in judged.items()}, _coverage(judged)


def _coverage(judged: Mapping[str, Judged]) -> dict[str, float]:
    return {name: float(cost.covered.mean()) for name, cost in judged.items()}


def _told(found: Mapping[str, Metrics], coverage: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Metrics for a manifest, with the coverage of what has intervals."""
    told = {name: metrics.as_dict() for name, metrics in found.items()}
    return {
        name: numbers | ({"coverage": round(coverage[name], 5)} if name in coverage else {})
        for name, numbers in told.items()
    }


def _counts(parts: Mapping[Split, Sequence[object]]) -> dict[str, int]:
    return {split.value: len(part) for split, part in parts.items()}


def _amounts(parts: Mapping[Split, Sequence[object]], stored: Sequence[object]) -> dict[str, Any]:
    """Rows of each part, and how many stored ones are not among them: an older bench's, another device's, or mixed."""
    rows = _counts(parts)
    return {"rows": rows, "left_out": len(stored) - sum(rows.values())}


def _provenance(rows: Sequence[Kind], now: datetime) -> dict[str, Any]:
    """Where a version comes from: hardware, the device that its costs are of, campaigns and environments."""
    told = ({name: said for name, said in row.environment.items() if name != CHOSEN_BY} for row in rows)
    environments = Counter(tuple(sorted(environment.items())) for environment in told)
    return {
        "hardware": rows[0].hardware,
        "device": dict(environments.most_common(1)[0][0]).get("device", "unknown"),
        "created_at": now.isoformat(timespec="seconds"),
        "campaigns": _campaigns(rows),
        "environments": [{**dict(items), "rows": count} for items, count in environments.most_common()],
    }


def _campaigns(rows: Sequence[Kind]) -> dict[str, Any]:
    """Size of each campaign, and the hours that it measured.

    Campaigns may take turns: the time since the measurement before, whosever that was, is that of the one that it led
    to. Pauses do not count.
    """
    measuring: dict[str, timedelta] = defaultdict(timedelta)
    for before, after in pairwise(sorted(rows, key=lambda row: row.measured_at)):
        gap = after.measured_at - before.measured_at
        measuring[after.campaign] += gap if gap < PAUSE else timedelta()
    counts = Counter(row.campaign for row in rows)
    return {
        name: {"rows": counts[name], "hours": round(measuring[name].total_seconds() / 3600, 2)}
        for name in sorted(counts)
    }
