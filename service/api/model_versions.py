"""Which versions of the models answer a request."""

import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from service.api.problems import public_detail
from service.api.readiness import Check
from service.api.recent import Recent
from service.domain.errors import DamagedArtifact, Fault, InvalidRequest, ModelsUnavailable, ShardwrightError
from service.domain.plan import LEARNED, Algorithm
from service.domain.ports import CostModels
from service.domain.version_ports import ModelSource
from service.domain.versions import COMMUNICATION, COMPUTE, ModelName, Promotion, Standing, Version
from service.search.algorithms import no_policy
from service.telemetry.metrics import Metrics
from service.usecases.model_versions import numbered

_KEPT = 256

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Chosen:
    """The models that answer one request, from its beginning to its end.

    Attributes:
        versions: name of each, by kind, as in ``CostModels.versions``.
        digest: as in ``CostModels``.
    """

    versions: Mapping[str, str]
    digest: str

    @property
    def identity(self) -> dict[str, str]:
        """What an answer depends on besides the question."""
        return {**self.versions, "digest": self.digest}


class ModelVersions:
    """The versions that serve: those that were promoted, and until there is a promotion the newest that were found."""

    def __init__(self, source: ModelSource, metrics: Metrics) -> None:
        """Loads nothing yet.

        Args:
            source: of the models.
            metrics: shows the versions that serve.
        """
        self._source = source
        self._metrics = metrics
        self._serving: Mapping[ModelName, Version] = {}
        self._changing = threading.Lock()
        self._chosen: Recent[tuple[str, ...], Chosen] = Recent(_KEPT)
        self._refused: dict[ModelName, dict[Version, str]] = {}

    @property
    def serving(self) -> Mapping[ModelName, Version]:
        """What serves now, as far as anyone asked for it; never changed, but replaced."""
        return self._serving

    def of(self, hardware: str, algorithm: Algorithm | None = None, pinned: Mapping[str, str] | None = None) -> Chosen:
        """The models for one request; a promotion that comes later is for later requests.

        Args:
            hardware: what is planned for.
            algorithm: its policy comes with them, where there is one.
            pinned: names of versions that the request asks for, by kind; what serves takes the place of the others.

        Raises:
            UnknownHardware: there are no models for it.
            ModelsUnavailable: the model store is empty or cannot be read.
            DamagedArtifact: they cannot be trusted.
            InvalidRequest: a pinned version does not exist, or is of something else.
            UnsupportedAlgorithm: the algorithm needs a policy, and there is none.
        """
        kinds = [COMPUTE, COMMUNICATION, *([algorithm.value] if algorithm in LEARNED else [])]
        pinned = pinned or {}
        serving = self._found(hardware, [kind for kind in kinds if kind not in pinned])
        if not {COMPUTE, COMMUNICATION} <= {*serving, *pinned}:
            return _chosen(self._source.cost_models(hardware))
        self._refuse_unknown(hardware, kinds, pinned)
        if algorithm in LEARNED and algorithm.value not in {*serving, *pinned}:
            raise no_policy(algorithm, hardware, self._source.policies(hardware))
        try:
            return self._loaded(hardware, {kind: str(version) for kind, version in serving.items()} | dict(pinned))
        except DamagedArtifact:
            self._refuse_damaged(pinned)
            raise

    def follow(self, standing: Standing) -> None:
        """Has those versions serve that were promoted last; one that cannot be loaded leaves what serves in its place.

        New versions are loaded before they serve, all together and in one step. Where nothing changed, nothing is
        read but versions that could not be loaded before.
        """
        with self._changing:
            before = self._serving
            found = {
                model: version
                for model, promotions in standing.items()
                if (version := self._first_sound(model, promotions)) and version != before.get(model)
            }
            if not found:
                return
            self._prepare({**before, **found}, {hardware for hardware, _ in found})
            self._serving = {**before, **found}
            for model, version in found.items():
                self._metrics.model_serves(version, before.get(model))
                if model in before:
                    self._metrics.promotion_followed(*model)
                    fields = {"version": str(version), "before": str(before[model])}
                    _log.info("another version serves", extra={"fields": fields})

    def check(self) -> Check:
        """Whether the models of some hardware can be used, and what keeps others from it."""
        try:
            damaged = [said for hardware in self._source.hardware() if (said := self._damage(hardware))]
        except ModelsUnavailable as error:
            _log.warning("the model store cannot be read", extra={"fields": {"cause": error.detail}})
            damaged = ["the model store cannot be read"]
        damaged += [
            f"{version} was promoted and cannot be used" for refused in self._refused.values() for version in refused
        ]
        serving = self._serving
        usable = [
            (hardware, model)
            for hardware, model in serving
            if model == COMPUTE and (hardware, COMMUNICATION) in serving
        ]
        if not usable:
            return Check(False, "; ".join(damaged) or "there are no cost models")
        if all(serving[hardware, kind].analytic for hardware, _ in usable for kind in (COMPUTE, COMMUNICATION)):
            # Data sheets are always sound: they must not hide that all that was measured is damaged.
            said = "no measured cost models: only hardware with a data sheet can be planned for"
            return Check(not damaged, "; ".join(damaged) or said)
        return Check(True, "; ".join(damaged) or "ok")

    def _found(self, hardware: str, kinds: Iterable[str]) -> dict[str, Version]:
        """What serves of some kinds, as far as there is any: all as of one moment."""
        kinds = list(kinds)
        if any((hardware, kind) not in self._serving for kind in kinds):
            for kind in kinds:
                self._adopt((hardware, kind))
        serving = self._serving
        return {kind: serving[hardware, kind] for kind in kinds if (hardware, kind) in serving}

    def _adopt(self, model: ModelName) -> None:
        """Has the newest version of a model serve, where none does."""
        version = None if model in self._serving else self._source.newest(*model)
        if version is None:
            return
        self._source.check(version)
        with self._changing:
            if model in self._serving:
                return
            self._serving = {**self._serving, model: version}
            self._metrics.model_serves(version, None)

    def _first_sound(self, model: ModelName, promotions: Sequence[Promotion]) -> Version | None:
        """The version of the last promotion that can be loaded; None where none can."""
        refused: dict[Version, str] = {}
        sound = None
        for promotion in promotions:
            version = numbered(self._source, model, promotion.number)
            if version is None or version in refused:
                continue
            error = None if version == self._serving.get(model) else self._fault(version)
            if error is None:
                sound = version
                break
            refused[version] = error
        self._note_refused(model, refused)
        return sound

    def _fault(self, version: Version) -> str | None:
        try:
            self._source.check(version)
        except ShardwrightError as error:
            return error.detail
        except OSError as error:
            return str(error)
        return None

    def _note_refused(self, model: ModelName, refused: dict[Version, str]) -> None:
        before = self._refused.get(model, {})
        for version, cause in refused.items():
            self._metrics.promotion_refused(*model)
            if before.get(version) != cause:
                fields = {"version": str(version), "cause": cause, "serves": str(self._serving.get(model))}
                _log.error("a promoted version cannot be loaded", extra={"fields": fields})
        self._refused = {name: of for name, of in {**self._refused, model: refused}.items() if of}

    def _prepare(self, serving: Mapping[ModelName, Version], hardware: Iterable[str]) -> None:
        """Loads what requests for some hardware will use, so that none of them waits for it."""
        for name in hardware:
            priced_by = {kind: str(serving[name, kind]) for kind in (COMPUTE, COMMUNICATION) if (name, kind) in serving}
            policies = [{kind.value: str(serving[name, kind])} for kind in LEARNED if (name, kind) in serving]
            if len(priced_by) < 2:
                continue
            for policy in ({}, *policies):
                try:
                    self._loaded(name, priced_by | policy)
                except (ShardwrightError, OSError) as error:
                    _log.warning("models cannot be prepared", extra={"fields": {"hardware": name, "cause": str(error)}})

    def _loaded(self, hardware: str, names: Mapping[str, str]) -> Chosen:
        key = (hardware, *(names[kind] for kind in sorted(names)))
        return self._chosen.get(key, lambda: _chosen(self._source.cost_models(hardware, names)))

    def _refuse_unknown(self, hardware: str, kinds: Sequence[str], pinned: Mapping[str, str]) -> None:
        faults = []
        for kind, name in pinned.items():
            version = Version.parse(name)
            if kind not in kinds:
                faults.append(Fault(f"/models/{kind}", f"only algorithm {kind!r} asks this policy: leave it out"))
            elif version.of != (hardware, kind) or not self._source.has(version):
                known = ", ".join(map(str, self._source.versions(hardware, kind))) or "none"
                wanted = f"there is no version {name!r} of model {hardware}/{kind}; there are: {known}"
                faults.append(Fault(f"/models/{kind}", wanted))
        if faults:
            if hardware not in self._source.hardware():
                self._source.cost_models(hardware)
            raise InvalidRequest(faults)

    def _refuse_damaged(self, pinned: Mapping[str, str]) -> None:
        """Raises DamagedArtifact with its field and remedies for the first pinned version that cannot be loaded."""
        for kind, name in pinned.items():
            version = Version.parse(name)
            try:
                self._source.check(version)
            except DamagedArtifact as error:
                others = ", ".join(str(other) for other in self._source.versions(*version.of) if other != version)
                remedies = [f"leave {kind} out of models: the version that serves answers then"]
                remedies += [f"pin another one: there are {others}"] if others else []
                raise DamagedArtifact(
                    error.detail, pointer=f"/models/{kind}", version=name, remedies=remedies
                ) from error

    def _damage(self, hardware: str) -> str | None:
        try:
            for policy in (None, *self._source.policies(hardware)):
                self.of(hardware, policy)
        except ShardwrightError as error:
            fields = {"hardware": hardware, "kind": error.kind, "cause": error.detail}
            _log.warning("cost models cannot be used", extra={"fields": fields})
            return f"{hardware}: {public_detail(error)}"
        return None


def _chosen(models: CostModels) -> Chosen:
    return Chosen(models.versions, models.digest)
