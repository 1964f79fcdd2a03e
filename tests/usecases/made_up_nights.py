"""Made-up measurements of a machine whose laws are known, and what retrains its models within seconds."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
from sqlalchemy import Engine

from service.cost_models.communication import exchange_quantities
from service.domain.measurements import CommunicationMeasurement, ComputeMeasurement, Split
from service.domain.tables import Optimizer, Table
from service.profiling.pools import generated_pool
from service.registry.store import ModelStore
from service.storage.measurements import MeasurementRepository
from service.storage.observations import ObservationRepository
from service.storage.promotions import PromotionRepository
from service.storage.trainings import TrainingRepository
from service.training.communication_trainer import CommunicationTraining
from service.training.compute_trainer import ComputeTraining
from service.usecases.retraining_works import Recipes, Retraining
from tests.training.data_sheet_machine import pool_by_part

HARDWARE = "cpu-x"
ENVIRONMENT = {"device": "a processor", "bench": "1"}
NARROW, WIDE = (8, 16, 32), (128, 256)
RECIPES = Recipes(
    generated_pool(512),
    compute=ComputeTraining(epochs=40, table_hidden=24, embedding=10, head_hidden=12),
    communication=CommunicationTraining(epochs=3),
)


def earlier(hours: float = 24.0) -> datetime:
    """A time before any version is trained."""
    return datetime.now(UTC) - timedelta(hours=hours)


def later(hours: float = 1.0) -> datetime:
    """A time after every version was trained."""
    return datetime.now(UTC) + timedelta(hours=hours)


def law(tables: Sequence[Table], batch_size: int) -> tuple[float, float]:
    """Forward and backward milliseconds."""
    forward = 0.05 + sum(t.lookups(batch_size) * (1 + t.embedding_dim / 16) for t in tables) * 2e-5
    return forward, 2.5 * forward


def combinations(
    campaign: str, count: int, when: datetime, dims: Sequence[int] = NARROW, seed: int = 0
) -> list[ComputeMeasurement]:
    """Measurements that follow ``law`` with 3% noise, one a second; 60% train, 20% validation, 20% test."""
    rng, found = np.random.default_rng(seed), []
    for index in range(count):
        pool = pool_by_part()[[*Split][int(rng.choice(3, p=[0.6, 0.2, 0.2]))]]
        drawn = [pool[int(rng.integers(len(pool)))] for _ in range(int(rng.integers(1, 5)))]
        tables = tuple(replace(table, embedding_dim=int(rng.choice(dims))) for table in drawn)
        batch_size = int(rng.choice([2048, 8192]))
        forward, backward = np.array(law(tables, batch_size)) * rng.normal(1, 0.03, 2)
        found.append(
            ComputeMeasurement(
                campaign, index, HARDWARE, tables, batch_size, Optimizer.SGD, float(forward), float(backward),
                0.02, 0.02, 5, ENVIRONMENT, when + timedelta(seconds=index),
            )
        )  # fmt: skip
    return found


def inverted(rows: Sequence[ComputeMeasurement]) -> list[ComputeMeasurement]:
    """A bad set: what is dear is measured as cheap, and the other way round, about the middle of all."""
    forward, backward = (
        float(np.median([getattr(row, part) for row in rows])) for part in ("forward_ms", "backward_ms")
    )
    return [
        replace(row, forward_ms=forward**2 / row.forward_ms, backward_ms=backward**2 / row.backward_ms) for row in rows
    ]


def exchanges(campaign: str, count: int, when: datetime, seed: int = 0) -> list[CommunicationMeasurement]:
    """Exchanges between two devices that are linear in what is exchanged, with 2% noise."""
    rng, found = np.random.default_rng(seed), []
    per_quantity = np.array([[0.3, 2e-7, 3e-7, 5e-8], [0.5, 1e-7, 6e-7, 2e-8]])
    for index in range(count):
        widths, batch_size = rng.integers(8, 400, size=2), int(rng.choice([2048, 8192]))
        delays = rng.uniform(0, 10, size=2)
        costs = exchange_quantities(widths.astype(float), batch_size) @ per_quantity.T
        forward, backward = (costs * rng.normal(1, 0.02, costs.shape)).T
        found.append(
            CommunicationMeasurement(
                campaign, index, HARDWARE, (int(widths[0]), int(widths[1])), batch_size, tuple(delays.tolist()),
                tuple((delays.max() - delays).tolist()), tuple(forward.tolist()), tuple(backward.tolist()), 5,
                ENVIRONMENT, when + timedelta(seconds=index),
            )
        )  # fmt: skip
    return found


@dataclass(frozen=True)
class Night:
    """A machine's measurements, versions and trainings, all in a real database and a real store."""

    job: Retraining
    store: ModelStore
    measurements: MeasurementRepository
    promotions: PromotionRepository
    trainings: TrainingRepository


def night(engine: Engine, folder: Path, hardware: str = HARDWARE, recipes: Recipes = RECIPES) -> Night:
    """Without any measurement yet, and without any version."""
    store, measurements = ModelStore(str(folder / "models")), MeasurementRepository(engine)
    promotions, trainings = PromotionRepository(engine), TrainingRepository(engine)
    job = Retraining(
        hardware, measurements, ObservationRepository(engine), store, promotions, trainings, recipes
    )  # fmt: skip
    return Night(job, store, measurements, promotions, trainings)
