"""Model versions at ``<root>/<hardware>/<model>/<version>/{manifest.json, weights.safetensors}``.

The root is any fsspec location. Weights are safetensors with their sha256 in the manifest, and the manifest carries
a hash of itself: no pickle is ever loaded, and a damaged file is refused by name.

Hardware that has a data sheet is priced by it, as version ``analytic-<number>``, until there is a trained version: for
compute and for communication each on its own.
"""

import hashlib
import json
import posixpath
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import fsspec
import numpy as np
from fsspec.core import url_to_fs
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from service.cost_models.analytic import (
    ANALYTIC,
    ANALYTIC_VERSION,
    AnalyticCommunication,
    AnalyticCompute,
    fingerprint,
    is_analytic,
)
from service.cost_models.arrays import Arrays
from service.cost_models.calibrated import CALIBRATED, CalibratedCompute, Calibration, analytic_of
from service.cost_models.communication import CommunicationModel, MeasuredExchanges
from service.cost_models.compute import ComputeModel
from service.cost_models.data_sheets import PROCESSORS, DataSheet, Processor
from service.cost_models.measured_domain import MeasuredDomain
from service.domain.errors import DamagedArtifact, UnknownHardware
from service.domain.plan import LEARNED, Algorithm, content_hash
from service.domain.policy import PlacementPolicy
from service.domain.ports import CommunicationCostModel, ComputeCostModel, CostModels
from service.policies.autoshard import AutoShardNetworks
from service.policies.dreamshard import DreamShardNetworks

FORMAT = 1
"""Layout of a manifest; raised when it changes."""

COMPUTE, COMMUNICATION = "compute", "communication"

_POLICIES: Mapping[Algorithm, Callable[[str, Arrays, int], PlacementPolicy]] = {
    Algorithm.DREAMSHARD: DreamShardNetworks,
    Algorithm.AUTOSHARD: AutoShardNetworks,
}

_MANIFEST, _WEIGHTS = "manifest.json", "weights.safetensors"
_MEASUREMENTS, _MEASUREMENT_FILE = "measurements", "measurements.json.gz"


@dataclass(frozen=True, slots=True)
class Version:
    """One version of one model of one hardware.

    Attributes:
        hardware: what it is for.
        model: ``compute``, ``communication``, or an algorithm whose policy it is.
        number: counts up.
        analytic: whether it comes from a data sheet, and so is no file of a store.
    """

    hardware: str
    model: str
    number: int
    analytic: bool = False

    def __str__(self) -> str:
        return f"{self.hardware}/{self.model}/{ANALYTIC if self.analytic else ''}{self.number}"

    @classmethod
    def parse(cls, name: str) -> "Version":
        """The version of a name ``<hardware>/<model>/[analytic-]<number>``; ValueError for any other text."""
        hardware, model, number = name.split("/")
        return cls(hardware, model, int(number.removeprefix(ANALYTIC)), is_analytic(name))


class ModelStore:
    """Reads and writes model versions under one root."""

    def __init__(self, root: str, sheets: Mapping[str, Processor] = PROCESSORS) -> None:
        """Reads nothing yet.

        Args:
            root: where versions are kept.
            sheets: what prices hardware of which no version is kept, by its name.
        """
        self._fs: fsspec.AbstractFileSystem
        self._fs, self._root = url_to_fs(root)
        self._sheets = sheets

    def hardware(self) -> list[str]:
        """Hardware that has a compute and a communication version, trained or analytic; sorted."""
        names = {*self._children(self._root), *self._sheets}
        kinds = (COMPUTE, COMMUNICATION)
        return sorted(n for n in names if all(self._analytic(n, kind) or self.latest(n, kind) for kind in kinds))

    def newest(self, hardware: str, model: str) -> Version | None:
        """The newest trained version of a model, else the analytic one, or None."""
        return self.latest(hardware, model) or self._analytic(hardware, model)

    def latest(self, hardware: str, model: str) -> Version | None:
        """The newest trained version of a model, or None."""
        numbers = self._numbers(hardware, model)
        whole = (
            n for n in sorted(numbers, reverse=True) if self._fs.exists(self._path(hardware, model, str(n), _MANIFEST))
        )
        found = next(whole, None)
        return Version(hardware, model, found) if found else None

    def policies(self, hardware: str) -> list[Algorithm]:
        """Algorithms of which there is a policy for a hardware."""
        return [algorithm for algorithm in LEARNED if self.latest(hardware, algorithm.value)]

    def cost_models(
        self, hardware: str, versions: Mapping[str, str] | None = None, policy: Algorithm | None = None
    ) -> CostModels:
        """The models of a hardware.

        Args:
            hardware: what they price.
            versions: name of the version of each kind, as in ``CostModels.versions``; the newest ones without it.
            policy: the algorithm whose newest policy comes with them, where there is one and none is named.

        Raises:
            UnknownHardware: there are none; ``data['known']`` names the hardware that has them.
            DamagedArtifact: a file is missing, damaged or of another format.
        """
        known = self.hardware()
        if hardware not in known:
            raise UnknownHardware(
                f"no cost models for hardware {hardware!r}; known: {', '.join(known) or 'none'}", known=known
            )
        compute, communication = (
            Version.parse(versions[kind]) if versions else self.newest(hardware, kind)
            for kind in (COMPUTE, COMMUNICATION)
        )
        if compute is None or communication is None:
            raise DamagedArtifact(f"a model version of {hardware} vanished while it was being read")
        placing = self._policy_version(hardware, versions, policy)
        held = [self._held(version) for version in (compute, communication, placing) if version]
        return CostModels(
            self._compute(compute),
            self._communication(communication),
            content_hash({"weights": held}),
            self.policy(placing) if placing else None,
        )

    def policy(self, version: Version) -> PlacementPolicy:
        """Loads a policy; raises DamagedArtifact where its files are not what was written."""
        manifest, weights = self.read(version)
        try:
            features_version = int(manifest["features_version"])
        except (KeyError, TypeError, ValueError) as error:
            raise _of_another_release(version, error) from error
        return _POLICIES[Algorithm(version.model)](str(version), weights, features_version)

    def compute_model(self, version: Version) -> ComputeModel | CalibratedCompute:
        """Loads a compute model of either kind; raises DamagedArtifact where its files are not what was written."""
        manifest, weights = self.read(version)
        try:
            measured = MeasuredDomain(**{k: _tuple(v) for k, v in manifest["measured"].items()})
            if manifest.get("kind") == CALIBRATED:
                calibration = Calibration(manifest["samples"]["count"], manifest["device"], measured)
                analytic = analytic_of(str(version), version.hardware, manifest["analytic"])
                return CalibratedCompute(str(version), analytic, weights, calibration)
            features_version = int(manifest["features_version"])
        except (KeyError, TypeError, AttributeError) as error:
            raise _of_another_release(version, error) from error
        _check_has_errors(version, weights)
        return ComputeModel(str(version), weights, features_version, measured).with_errors(weights)

    def communication_model(self, version: Version) -> CommunicationModel:
        """Loads a communication model; raises DamagedArtifact where its files are not what was written."""
        manifest, weights = self.read(version)
        try:
            measured = MeasuredExchanges(**{k: _tuple(v) for k, v in manifest["measured"].items()})
        except (KeyError, TypeError, AttributeError) as error:
            raise _of_another_release(version, error) from error
        _check_has_errors(version, weights)
        return CommunicationModel(str(version), weights, measured).with_errors(weights)

    def measurement_file(self, hardware: str) -> str:
        """Where the measurements behind a hardware's versions are kept; a path for fsspec."""
        return str(self._fs.unstrip_protocol(self._path(hardware, _MEASUREMENTS, _MEASUREMENT_FILE)))

    def measurement_files(self) -> dict[str, str]:
        """The measurement files that are there, by hardware."""
        names = self._children(self._root)
        found = {name: self._path(name, _MEASUREMENTS, _MEASUREMENT_FILE) for name in names}
        return {name: self.measurement_file(name) for name, path in found.items() if self._fs.exists(path)}

    def read(self, version: Version) -> tuple[dict[str, Any], dict[str, NDArray[np.float32]]]:
        """Manifest and arrays of a version, integrity checked.

        Raises:
            DamagedArtifact: a file is missing, altered or of another format.
        """
        manifest = self._manifest(version)
        raw = self._bytes(version, _WEIGHTS)
        if hashlib.sha256(raw).hexdigest() != manifest["weights_sha256"]:
            raise DamagedArtifact(f"{version}: {_WEIGHTS} does not match its sha256: restore it or train a new version")
        try:
            return manifest, load(raw)
        except SafetensorError as error:
            raise DamagedArtifact(f"{version}: {_WEIGHTS} is not a safetensors file: {error}") from error

    def write(
        self, hardware: str, model: str, weights: Mapping[str, NDArray[np.float32]], facts: Mapping[str, Any]
    ) -> Version:
        """Writes the next version, whole or not at all.

        Args:
            hardware: what it is for.
            model: ``compute``, ``communication``, or an algorithm whose policy it is.
            weights: arrays by name.
            facts: what the manifest says besides format, name and hashes; JSON-like.
        """
        raw = save({name: np.ascontiguousarray(array, dtype=np.float32) for name, array in weights.items()})
        facts = {**facts, "weights_sha256": hashlib.sha256(raw).hexdigest()}
        content_hash(facts)  # What JSON cannot hold is refused before anything is written.
        version = self._claim(hardware, model)
        try:
            manifest = {"format": FORMAT, "version": str(version), **facts}
            manifest["manifest_hash"] = content_hash(manifest)
            folder = self._path(hardware, model, str(version.number))
            self._fs.pipe_file(posixpath.join(folder, _WEIGHTS), raw)
            # The manifest comes last and in one step: a version without one is none.
            unfinished = posixpath.join(folder, f".{_MANIFEST}")
            self._fs.pipe_file(unfinished, json.dumps(manifest, indent=1).encode() + b"\n")
            self._fs.mv(unfinished, posixpath.join(folder, _MANIFEST))
        except BaseException:
            self._fs.rm(self._path(hardware, model, str(version.number)), recursive=True)
            raise
        return version

    def _policy_version(
        self, hardware: str, versions: Mapping[str, str] | None, policy: Algorithm | None
    ) -> Version | None:
        named = [versions[algorithm.value] for algorithm in LEARNED if versions and algorithm.value in versions]
        if named:
            return Version.parse(named[0])
        return self.latest(hardware, policy.value) if policy else None

    def _compute(self, version: Version) -> ComputeCostModel:
        if version.analytic:
            return AnalyticCompute(str(version), self._processor(version))
        return self.compute_model(version)

    def _communication(self, version: Version) -> CommunicationCostModel:
        if version.analytic and isinstance(sheet := self._processor(version), DataSheet):
            return AnalyticCommunication(str(version), sheet)
        return self.communication_model(version)

    def _held(self, version: Version) -> str:
        """Hash of what a version's prices come from."""
        return (
            fingerprint(self._processor(version))
            if version.analytic
            else str(self._manifest(version)["weights_sha256"])
        )

    def _analytic(self, hardware: str, model: str) -> Version | None:
        """The analytic version that a data sheet makes; exchanges of processors have none."""
        sheet = self._sheets.get(hardware)
        priced = sheet is not None if model == COMPUTE else isinstance(sheet, DataSheet)
        return Version(hardware, model, ANALYTIC_VERSION, analytic=True) if priced else None

    def _processor(self, version: Version) -> Processor:
        if version != self._analytic(version.hardware, version.model):
            raise DamagedArtifact(f"{version}: this code has no such analytic version")
        return self._sheets[version.hardware]

    def _claim(self, hardware: str, model: str) -> Version:
        """The next number, its folder made: two writers never share one."""
        while True:
            number = max(self._numbers(hardware, model), default=0) + 1
            try:
                self._fs.makedirs(self._path(hardware, model, str(number)), exist_ok=False)
            except FileExistsError:
                continue
            return Version(hardware, model, number)

    def _numbers(self, hardware: str, model: str) -> list[int]:
        return [int(name) for name in self._children(self._path(hardware, model)) if name.isdecimal()]

    def _manifest(self, version: Version) -> dict[str, Any]:
        try:
            manifest = json.loads(self._bytes(version, _MANIFEST), parse_constant=_refuse_constant)
        except ValueError as error:
            raise DamagedArtifact(f"{version}: {_MANIFEST} is not JSON: {error}") from error
        if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
            raise DamagedArtifact(f"{version}: {_MANIFEST} is not of format {FORMAT}, which this code reads")
        stated = manifest.pop("manifest_hash", None)
        if stated != content_hash(manifest) or manifest.get("version") != str(version):
            raise DamagedArtifact(f"{version}: {_MANIFEST} was altered: restore it or train a new version")
        return manifest

    def _bytes(self, version: Version, name: str) -> bytes:
        path = self._path(version.hardware, version.model, str(version.number), name)
        try:
            return bytes(self._fs.cat_file(path))
        except OSError as error:
            raise DamagedArtifact(f"{version}: {name} cannot be read: {error}") from error

    def _children(self, path: str) -> list[str]:
        if not self._fs.isdir(path):
            return []
        return sorted(posixpath.basename(child.rstrip("/")) for child in self._fs.ls(path, detail=False))

    def _path(self, *parts: str) -> str:
        return posixpath.join(self._root, *parts)


def _check_has_errors(version: Version, weights: Mapping[str, object]) -> None:
    if not any(name.startswith("errors.") for name in weights):
        raise _of_another_release(version, KeyError("errors"))


def _of_another_release(version: Version, error: Exception) -> DamagedArtifact:
    """For sound files that do not say what this code needs."""
    return DamagedArtifact(
        f"{version}: it does not have what a {version.model} model of this release has ({error!r}): it was written "
        f"by another one; train it again with `shardwright train {version.model} --hardware {version.hardware}`"
    )


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _tuple(value: Any) -> tuple[Any, ...]:
    return tuple(tuple(part) if isinstance(part, list) else part for part in value)
