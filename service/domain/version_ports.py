"""What the inner rooms ask of the outer ones about versions of models: which there are, and which serve."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from service.domain.access import AdminCall
from service.domain.plan import Algorithm
from service.domain.policy import PlacementPolicy
from service.domain.ports import CommunicationCostModel, ComputeCostModel, CostModels
from service.domain.versions import ModelName, Promotion, Standing, Version


class ModelCatalog(Protocol):
    """What versions there are."""

    def models(self) -> list[ModelName]:
        """All models that have a version, trained or analytic; sorted."""

    def versions(self, hardware: str, model: str) -> list[Version]:
        """All versions of a model, the analytic one first and then the oldest."""

    def newest(self, hardware: str, model: str) -> Version | None:
        """The newest trained version of a model, else the analytic one, or None."""

    def analytic(self, hardware: str, model: str) -> Version | None:
        """The analytic version of a model, or None."""

    def has(self, version: Version) -> bool:
        """Whether there is such a version, sound or not."""

    def check(self, version: Version) -> None:
        """Loads a version and lets it go; raises DamagedArtifact where that fails."""

    def facts(self, version: Version) -> Mapping[str, Any]:
        """What the manifest of a trained version says; raises DamagedArtifact where it is not what was written."""


class PrunableCatalog(ModelCatalog, Protocol):
    """Versions that can be deleted."""

    def numbers(self, hardware: str, model: str) -> list[int]:
        """Numbers of a model that are taken, by versions and by what is left of some; ascending."""

    def delete(self, hardware: str, model: str, number: int) -> None:
        """Deletes a trained version, or what is left of one, whole or not at all."""


class ModelSource(ModelCatalog, Protocol):
    """Where models come from."""

    def hardware(self) -> list[str]:
        """Names of the hardware that has cost models."""

    def policies(self, hardware: str) -> list[Algorithm]:
        """Algorithms of which there is a policy for some hardware."""

    def cost_models(
        self, hardware: str, versions: Mapping[str, str] | None = None, policy: Algorithm | None = None
    ) -> CostModels:
        """The models of some hardware: those of the versions named for each kind, or the newest.

        Args:
            hardware: what they price.
            versions: as in ``CostModels.versions``.
            policy: the algorithm whose newest policy comes with them, where there is one and none is named.

        Raises:
            UnknownHardware: there are none.
            ModelsUnavailable: there are none of any hardware, or nobody can tell.
            DamagedArtifact: they cannot be trusted.
        """


class TrainableModels(ModelSource, Protocol):
    """Versions that are judged beside others, and where new ones go; loading raises DamagedArtifact."""

    def compute(self, version: Version) -> ComputeCostModel:
        """Loads a compute model, trained or analytic."""

    def communication(self, version: Version) -> CommunicationCostModel:
        """Loads a communication model, trained or analytic."""

    def policy(self, version: Version) -> PlacementPolicy:
        """Loads a policy."""

    def refuse_unwritable(self) -> None:
        """Raises ModelStoreUnwritable where no version can be written."""

    def write(
        self, hardware: str, model: str, weights: Mapping[str, NDArray[np.float32]], facts: Mapping[str, Any]
    ) -> Version:
        """Writes the next version, whole or not at all."""


class PromotionChange(Protocol):
    """Promotions while nobody else changes them."""

    def standing(self) -> Standing:
        """The promotions that stand."""

    def add(
        self,
        version: Version,
        by: str,
        reason: str,
        comparison: Mapping[str, Any] | None = None,
        undoes: int | None = None,
    ) -> Promotion:
        """Writes down that a version serves; all who follow learn of it once the change is over."""


class PromotionStore(Protocol):
    """Keeps the decisions that versions serve; all methods raise StorageUnavailable where the database is away."""

    def standing(self) -> Standing:
        """The promotions that stand."""

    def history(self, hardware: str, model: str, limit: int) -> list[Promotion]:
        """Promotions of a model, rollbacks among them, the last first."""

    def changing(
        self, call: AdminCall | None = None, prepare: Callable[[], None] = lambda: None
    ) -> AbstractContextManager[PromotionChange]:
        """One change at a time, durable at its end or, where an error ends it, not made at all.

        ``call`` makes it, and is put on record with it. ``prepare`` takes its time and may refuse, before others are
        kept out.
        """
