"""Judges a version on measurements, overall and slice by slice, and says what stands in the way of trusting that."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from service.cost_models.calibrated import CALIBRATED
from service.cost_models.communication import CommunicationModel
from service.domain.errors import TooFewMeasurements
from service.domain.measurements import CommunicationMeasurement, ComputeMeasurement, Kind, Split, comparable
from service.domain.ports import ComputeCostModel
from service.training.communication_dataset import exchanges_fingerprint
from service.training.compute_dataset import data_fingerprint
from service.training.judged_rows import judged_combinations, judged_exchanges
from service.training.sittings import Sitting, without_factors
from service.training.slices import Judged

_TRAINED = "was trained on this part: its errors on new input are larger"
_COMPUTE_USES = {
    Split.TRAIN: _TRAINED,
    Split.VALIDATION: "fitted its intervals to this part: those of new input may hold less often",
}
_CALIBRATION_USES = {Split.TRAIN: _TRAINED}
_COMMUNICATION_USES = {
    Split.TRAIN: "was trained on this part, and fitted its intervals to it: its errors on new input are larger",
    Split.VALIDATION: "chose its epoch on this part: its errors on new input are larger",
}


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation:
    """A version judged on one part of the measurements.

    Attributes:
        version: its name.
        part: of the frozen split.
        rows: measurements in that part.
        costs: what was judged, by name.
        warnings: why the numbers may say less than they seem to, one sentence each.
    """

    version: str
    part: Split
    rows: int
    costs: Mapping[str, Judged]
    warnings: tuple[str, ...]


def evaluate_compute_version(
    model: ComputeCostModel, manifest: Mapping[str, Any], stored: Sequence[ComputeMeasurement], part: Split
) -> Evaluation:
    """Judges a compute version as training does: by the rows of the newest device and bench, of its optimizers.

    The sittings' factors, as the version's manifest has them, are taken out.

    Args:
        model: the version.
        manifest: of the version.
        stored: compute measurements of its hardware, of all parts.
        part: to judge it on.

    Raises:
        TooFewMeasurements: the part has none.
    """
    sound = comparable(stored)
    rows = [row for row in sound if row.split is not None]
    optimizers = manifest["measured"]["optimizers"]
    held_out = _in_part(model.version, [row for row in rows if row.optimizer.value in optimizers], part)
    others = Counter(row.optimizer.value for row in rows if row.split is part) - Counter(
        row.optimizer.value for row in held_out
    )
    uses = _CALIBRATION_USES if manifest.get("kind") == CALIBRATED else _COMPUTE_USES
    warnings = [
        *_warnings(manifest, data_fingerprint(rows), uses.get(part)),
        *_left_out(stored, sound),
        *_mixed(len(sound) - len(rows)),
        *(f"{count} combinations with {name} are left out: {model.version} has none" for name, count in others.items()),
    ]
    times = [Sitting.from_dict(sitting) for sitting in manifest.get("sittings", [])]
    if times:
        held_out = without_factors(held_out, times)
    else:
        warnings.append(f"{model.version} does not say how fast the machine was in each sitting: taken to be the same")
    costs = judged_combinations(model, held_out)
    return Evaluation(model.version, part, len(held_out), costs, tuple(warnings))


def evaluate_communication_version(
    model: CommunicationModel, manifest: Mapping[str, Any], stored: Sequence[CommunicationMeasurement], part: Split
) -> Evaluation:
    """Judges a communication version by the rows of the newest device and bench.

    Its arguments are those of ``evaluate_compute_version``.

    Raises:
        TooFewMeasurements: the part has none.
    """
    rows = comparable(stored)
    held_out = _in_part(model.version, rows, part)
    warnings = [
        *_warnings(manifest, exchanges_fingerprint(rows), _COMMUNICATION_USES.get(part)),
        *_left_out(stored, rows),
    ]
    return Evaluation(model.version, part, len(held_out), judged_exchanges(model, held_out), tuple(warnings))


def _in_part(version: str, rows: Sequence[Kind], part: Split) -> list[Kind]:
    found = [row for row in rows if row.split is part]
    if not found:
        raise TooFewMeasurements(
            f"no measurements in the {part.value} part to judge {version} on: run `shardwright profile`, "
            "`shardwright db seed`, or name a file with --measurements"
        )
    return found


def _warnings(manifest: Mapping[str, Any], fingerprint: str, use: str | None) -> list[str]:
    """What stands in the way of trusting a version's numbers; ``use`` is what it did with the part."""
    version, said = manifest["version"], []
    if use:
        said.append(f"{version} {use}")
    if fingerprint != manifest["data"]["fingerprint"]:
        said.append(
            f"{version} was trained on other measurements than these (fingerprint {manifest['data']['fingerprint']}, "
            f"not {fingerprint}): that it has not seen this part rests on the frozen split alone"
        )
    return said


def _mixed(count: int) -> list[str]:
    return [f"{count} combinations of tables of several parts are left out"] if count else []


def _left_out(stored: Sequence[Kind], rows: Sequence[Kind]) -> list[str]:
    others = len(stored) - len(rows)
    return [f"{others} measurements of an older bench or of another device are left out"] if others else []
