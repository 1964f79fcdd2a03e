"""Composition root of what keeps models and database in shape, at night and by hand: retraining and pruning."""

import logging
from collections.abc import Callable, Sequence
from datetime import timedelta

from sqlalchemy import Engine

from service.database import database
from service.domain.errors import RetrainingUnderWay, UnknownHardware
from service.domain.retention import Kept, Retention
from service.domain.trainings import MODELS, Outcome
from service.registry.trained_benches import trained_benches
from service.settings import Settings
from service.storage.observations import ObservationRepository
from service.storage.promotions import PromotionRepository
from service.storage.retention import RetentionRepository
from service.storage.trainings import TrainingRepository
from service.telemetry import logging as structured_logging
from service.usecases import retention

_log = logging.getLogger(__name__)


def prune(settings: Settings, engine: Engine, dry_run: bool = False) -> dict[Kept, int]:
    """Deletes what the settings keep no longer, or says what that would be; see ``usecases.retention``.

    Raises:
        StorageUnavailable: the database cannot be reached.
        DamagedArtifact: a version in the model store does not say what it was trained on; nothing was deleted.
    """
    keep = Retention(
        plans=timedelta(days=settings.keep_plans_days),
        observations=timedelta(days=settings.keep_observations_days),
        profiles=timedelta(days=settings.keep_profiles_days),
        measurements=timedelta(days=settings.keep_measurements_days),
    )
    return retention.prune(
        RetentionRepository(engine), keep, lambda: trained_benches(settings.model_store), dry_run=dry_run
    )


def retrain(
    settings: Settings,
    engine: Engine,
    hardware: str,
    models: Sequence[str] | None = None,
    report: Callable[[Outcome], None] = lambda outcome: None,
) -> list[Outcome]:
    """Retrains models of a hardware, all without a name, and promotes what is better; see ``usecases.retrain``.

    Raises:
        RetrainingUnderWay: another process does.
        UnknownHardware: there is neither a model nor a measurement of it.
        StorageUnavailable: the database cannot be reached.
    """
    # Not above: whoever serves needs no torch.
    import torch

    from service.profiling.pools import generated_pool
    from service.registry.store import ModelStore
    from service.storage.measurements import MeasurementRepository
    from service.usecases.retrain import retrain as retrain_models
    from service.usecases.retraining_works import Recipes, Retraining

    # The networks are small: more threads would wait for each other, and keep others from the cores.
    torch.set_num_threads(1)
    job = Retraining(
        hardware=hardware,
        measurements=MeasurementRepository(engine),
        observations=ObservationRepository(engine),
        models=ModelStore(settings.model_store),
        promotions=PromotionRepository(engine),
        trainings=TrainingRepository(engine),
        recipes=Recipes(generated_pool()),
        margin=settings.nightly_margin,
    )
    return retrain_models(job, models or MODELS, report)


def retrain_at_night(settings: Settings, hardware: str) -> None:
    """Retrains all models of a hardware; called in a process of its own.

    Raises:
        StorageUnavailable: the database cannot be reached.
    """
    structured_logging.configure(settings.log_level)
    try:
        with database(settings) as engine:
            retrain(settings, engine, hardware)
    except (RetrainingUnderWay, UnknownHardware) as error:
        _log.warning("nothing is retrained this night", extra={"fields": {"cause": error.detail}})


def prune_at_night(settings: Settings) -> None:
    """Deletes what is kept no longer; called in a process of its own.

    Raises:
        StorageUnavailable: the database cannot be reached.
        DamagedArtifact: a version in the model store does not say what it was trained on; nothing was deleted.
    """
    structured_logging.configure(settings.log_level)
    with database(settings) as engine:
        deleted = prune(settings, engine)
    _log.info("pruned", extra={"fields": {kind.value: count for kind, count in deleted.items()}})
