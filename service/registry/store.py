"""Models from the versions of a store, and from data sheets.

Hardware that has a data sheet is priced by it, as version ``analytic-<number>``, until there is a trained version: for
compute and for communication each on its own.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.cost_models.analytic import ANALYTIC_VERSION, AnalyticCommunication, AnalyticCompute, fingerprint
from service.cost_models.arrays import Arrays
from service.cost_models.calibrated import CALIBRATED, CalibratedCompute, Calibration, analytic_of
from service.cost_models.communication import CommunicationModel, MeasuredExchanges
from service.cost_models.compute import ComputeModel
from service.cost_models.data_sheets import PROCESSORS, DataSheet, Processor
from service.cost_models.measured_domain import MeasuredDomain
from service.domain.errors import DamagedArtifact, ModelsUnavailable, UnknownHardware
from service.domain.plan import LEARNED, Algorithm, content_hash
from service.domain.policy import PlacementPolicy
from service.domain.ports import CommunicationCostModel, ComputeCostModel, CostModels
from service.domain.versions import COMMUNICATION, COMPUTE, ModelName, Version
from service.policies.autoshard import AutoShardNetworks
from service.policies.dreamshard import DreamShardNetworks
from service.registry.artifacts import RETRY_AFTER_S, Artifacts

_POLICIES: Mapping[Algorithm, Callable[[str, Arrays, int], PlacementPolicy]] = {
    Algorithm.DREAMSHARD: DreamShardNetworks,
    Algorithm.AUTOSHARD: AutoShardNetworks,
}

_KINDS = (COMPUTE, COMMUNICATION)


class ModelStore:
    """Reads and writes model versions under one root."""

    def __init__(self, root: str, sheets: Mapping[str, Processor] = PROCESSORS) -> None:
        """Reads nothing yet.

        Args:
            root: where versions are kept.
            sheets: what prices hardware of which no version is kept, by its name.
        """
        self._artifacts = Artifacts(root)
        self._sheets = sheets

    def hardware(self) -> list[str]:
        """Hardware that has a compute and a communication version, trained or analytic; sorted."""
        names = {*self._artifacts.hardware(), *self._sheets}
        return sorted(name for name in names if all(self.newest(name, kind) for kind in _KINDS))

    def newest(self, hardware: str, model: str) -> Version | None:
        """The newest trained version of a model, else the analytic one, or None."""
        return self.latest(hardware, model) or self.analytic(hardware, model)

    def latest(self, hardware: str, model: str) -> Version | None:
        """The newest trained version of a model, or None."""
        numbers = reversed(self._artifacts.numbers((hardware, model)))
        found = next((number for number in numbers if self._artifacts.has((hardware, model), number)), None)
        return Version(hardware, model, found) if found else None

    def analytic(self, hardware: str, model: str) -> Version | None:
        """The analytic version of a model, or None; exchanges of processors and policies have none."""
        sheet = self._sheets.get(hardware)
        priced = {COMPUTE: sheet is not None, COMMUNICATION: isinstance(sheet, DataSheet)}
        return Version(hardware, model, ANALYTIC_VERSION, analytic=True) if priced.get(model) else None

    def models(self) -> list[ModelName]:
        """All models that have a version, trained or analytic; sorted."""
        stored = [(hardware, model) for hardware in self._artifacts.hardware() for model in self._models_of(hardware)]
        analytic = [(hardware, kind) for hardware in self._sheets for kind in _KINDS if self.analytic(hardware, kind)]
        return sorted({*analytic, *(model for model in stored if self.latest(*model))})

    def versions(self, hardware: str, model: str) -> list[Version]:
        """All versions of a model, the analytic one first and then the oldest."""
        numbers = self._artifacts.numbers((hardware, model))
        trained = [Version(hardware, model, n) for n in numbers if self._artifacts.has((hardware, model), n)]
        return [*filter(None, [self.analytic(hardware, model)]), *trained]

    def has(self, version: Version) -> bool:
        """Whether there is such a version, sound or not."""
        if version.analytic:
            return version == self.analytic(*version.of)
        return self._artifacts.has(version.of, version.number)

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
            ModelsUnavailable: there are none of any hardware but from data sheets, or the store cannot be read.
            DamagedArtifact: a file is missing, damaged or of another format.
        """
        if hardware not in (known := self.hardware()):
            self._refuse_empty(hardware)
            raise UnknownHardware(
                f"no cost models for hardware {hardware!r}; known: {', '.join(known) or 'none'}", known=known
            )
        compute, communication = (
            Version.parse(versions[kind]) if versions else self.newest(hardware, kind) for kind in _KINDS
        )
        if compute is None or communication is None:
            raise DamagedArtifact(f"a model version of {hardware} vanished while it was being read")
        placing = self._policy_version(hardware, versions, policy)
        held = [self._held(version) for version in (compute, communication, placing) if version]
        return CostModels(
            self.compute(compute),
            self.communication(communication),
            content_hash({"weights": held}),
            self.policy(placing) if placing else None,
        )

    def policy(self, version: Version) -> PlacementPolicy:
        """Loads a policy; raises DamagedArtifact where its files are not what was written."""
        manifest, weights = self.read(version)
        try:
            features_version = int(manifest["features_version"])
            networks = _POLICIES[Algorithm(version.model)]
        except (KeyError, TypeError, ValueError) as error:
            raise _of_another_release(version, error) from error
        return networks(str(version), weights, features_version)

    def compute(self, version: Version) -> ComputeCostModel:
        """Loads a compute model, trained or analytic; raises DamagedArtifact where that fails."""
        if version.analytic:
            return AnalyticCompute(str(version), self._processor(version))
        return self.compute_model(version)

    def communication(self, version: Version) -> CommunicationCostModel:
        """Loads a communication model, trained or analytic; raises DamagedArtifact where that fails."""
        if version.analytic and isinstance(sheet := self._processor(version), DataSheet):
            return AnalyticCommunication(str(version), sheet)
        return self.communication_model(version)

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

    def check(self, version: Version) -> None:
        """Loads a version and lets it go; raises DamagedArtifact where that fails."""
        if version.model == COMPUTE:
            self.compute(version)
        elif version.model == COMMUNICATION:
            self.communication(version)
        else:
            self.policy(version)

    def facts(self, version: Version) -> Mapping[str, Any]:
        """What the manifest of a trained version says; raises DamagedArtifact where it is not what was written."""
        return self._artifacts.manifest(version)

    def measurement_file(self, hardware: str) -> str:
        """Where the measurements behind a hardware's versions are kept; a path for fsspec."""
        return self._artifacts.measurement_file(hardware)

    def measurement_files(self) -> dict[str, str]:
        """The measurement files that are there, by hardware."""
        return self._artifacts.measurement_files()

    def read(self, version: Version) -> tuple[dict[str, Any], dict[str, NDArray[np.float32]]]:
        """Manifest and arrays of a version, integrity checked.

        Raises:
            DamagedArtifact: a file is missing, altered or of another format.
        """
        return self._artifacts.read(version)

    def refuse_unwritable(self) -> None:
        """Raises ModelStoreUnwritable where no version can be written."""
        self._artifacts.refuse_unwritable()

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
        return self._artifacts.write((hardware, model), weights, facts)

    def numbers(self, hardware: str, model: str) -> list[int]:
        """Numbers of a model that are taken, by versions and by what is left of some; ascending."""
        return self._artifacts.numbers((hardware, model))

    def delete(self, hardware: str, model: str, number: int) -> None:
        """Deletes a trained version, or what is left of one, whole or not at all."""
        self._artifacts.delete((hardware, model), number)

    def _refuse_empty(self, hardware: str) -> None:
        stored = ((name, model) for name in self._artifacts.hardware() for model in self._models_of(name))
        if not any(self.latest(*model) for model in stored):
            raise ModelsUnavailable(
                f"no cost models for hardware {hardware!r}, as the model store is empty or missing; whoever runs the "
                f"service must restore it or set SHARDWRIGHT_MODEL_STORE: {self._artifacts.root} has no version",
                retry_after_s=RETRY_AFTER_S,
            )

    def _models_of(self, hardware: str) -> list[str]:
        return [name for name in self._artifacts.models(hardware) if name in _KINDS or name in LEARNED]

    def _policy_version(
        self, hardware: str, versions: Mapping[str, str] | None, policy: Algorithm | None
    ) -> Version | None:
        named = [versions[algorithm.value] for algorithm in LEARNED if versions and algorithm.value in versions]
        if named:
            return Version.parse(named[0])
        return self.latest(hardware, policy.value) if policy else None

    def _held(self, version: Version) -> str:
        """Hash of what a version's prices come from."""
        return (
            fingerprint(self._processor(version))
            if version.analytic
            else str(self._artifacts.manifest(version)["weights_sha256"])
        )

    def _processor(self, version: Version) -> Processor:
        if version != self.analytic(*version.of):
            raise DamagedArtifact(f"{version}: this code has no such analytic version")
        return self._sheets[version.hardware]


def _check_has_errors(version: Version, weights: Mapping[str, object]) -> None:
    if not any(name.startswith("errors.") for name in weights):
        raise _of_another_release(version, KeyError("errors"))


def _of_another_release(version: Version, error: Exception) -> DamagedArtifact:
    """For sound files that do not say what this code needs."""
    return DamagedArtifact(
        f"{version}: it does not have what a {version.model} model of this release has ({error!r}): it was written "
        f"by another one; train it again with `shardwright train {version.model} --hardware {version.hardware}`"
    )


def _tuple(value: Any) -> tuple[Any, ...]:
    return tuple(tuple(part) if isinstance(part, list) else part for part in value)
