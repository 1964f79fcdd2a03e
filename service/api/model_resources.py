"""The answers to /models: which versions there are, which serve, and that another one shall."""

from service.api.model_answers import (
    ModelAnswer,
    ModelDetailAnswer,
    ModelsAnswer,
    ModelVersionAnswer,
    PromotionAnswer,
    TrainingAnswer,
)
from service.api.model_versions import ModelVersions
from service.api.parsing import parse_decision
from service.domain.callers import Caller
from service.domain.ports import TrainingStore
from service.domain.trainings import Outcome
from service.domain.version_ports import ModelCatalog, PromotionStore
from service.domain.versions import Promotion
from service.usecases import model_versions as usecases

_PROMOTIONS = 50
_TRAININGS = 20


class ModelResources:
    """Blocks the calling thread."""

    def __init__(
        self,
        serving: ModelVersions,
        catalog: ModelCatalog,
        promotions: PromotionStore,
        trainings: TrainingStore,
    ) -> None:
        """Ties the parts together.

        Args:
            serving: the versions that serve here.
            catalog: the versions that there are.
            promotions: the decisions which serve.
            trainings: what retraining came to.
        """
        self._serving = serving
        self._catalog = catalog
        self._promotions = promotions
        self._trainings = trainings

    def all(self) -> ModelsAnswer:
        """All models and what serves of each, as this replica has it: needs no database."""
        return ModelsAnswer(
            models=[
                ModelAnswer(hardware=hardware, model=model, serves=self._serves(hardware, model))
                for hardware, model in self._catalog.models()
            ]
        )

    def one(self, hardware: str, model: str) -> ModelDetailAnswer:
        """A model's versions, promotions and trainings.

        Raises:
            UnknownModelVersion: there is no such model.
            StorageUnavailable: the database cannot be reached.
        """
        listed = usecases.listed(self._catalog, (hardware, model))
        serves = self._serves(hardware, model)
        return ModelDetailAnswer(
            hardware=hardware,
            model=model,
            serves=serves,
            versions=[
                ModelVersionAnswer(
                    version=str(found.version),
                    serves=str(found.version) == serves,
                    created_at=found.created_at,
                    device=found.device,
                    metrics={name: dict(values) for name, values in found.metrics.items()},
                    damaged=found.fault is not None,
                )
                for found in listed
            ],
            promotions=[self._told(p) for p in self._promotions.history(hardware, model, _PROMOTIONS)],
            trainings=[_training(o) for o in self._trainings.of_model(hardware, model, _TRAININGS)],
        )

    def promote(self, hardware: str, model: str, number: str, body: bytes, caller: Caller) -> PromotionAnswer:
        """Has a version serve on all replicas, within seconds.

        Args:
            hardware: hardware of the version.
            model: model of the version.
            number: its number, ``analytic`` or ``analytic-<number>``.
            body: says why.
            caller: who decides.

        Raises:
            ShardwrightError: the body is not valid, there is no such version or it is damaged, or the database cannot
                be reached.
        """
        reason = parse_decision(body).reason
        version = usecases.named(self._catalog, hardware, model, number)
        return self._told(usecases.promote(self._catalog, self._promotions, version, str(caller), reason))

    def rollback(self, hardware: str, model: str, body: bytes, caller: Caller) -> PromotionAnswer:
        """Has the version serve that served before, on all replicas, within seconds.

        Raises:
            ShardwrightError: the body is not valid, no version served before or it is damaged, or the database cannot
                be reached.
        """
        reason = parse_decision(body).reason
        return self._told(usecases.rollback(self._catalog, self._promotions, (hardware, model), str(caller), reason))

    def _serves(self, hardware: str, model: str) -> str | None:
        version = self._serving.serving.get((hardware, model))
        return str(version) if version else None

    def _told(self, promotion: Promotion) -> PromotionAnswer:
        version = usecases.numbered(self._catalog, (promotion.hardware, promotion.model), promotion.number)
        return PromotionAnswer(
            id=promotion.id,
            version=str(version) if version else None,
            promoted_at=promotion.promoted_at,
            promoted_by=promotion.promoted_by,
            reason=promotion.reason,
            comparison=dict(promotion.comparison) if promotion.comparison is not None else None,
            rollback=promotion.undoes is not None,
        )


def _training(outcome: Outcome) -> TrainingAnswer:
    return TrainingAnswer(
        outcome=outcome.ended,
        reason=outcome.reason,
        started_at=outcome.started_at,
        finished_at=outcome.finished_at,
        trained=outcome.trained,
        serving=outcome.serving,
        comparison=dict(outcome.comparison) if outcome.comparison is not None else None,
    )
