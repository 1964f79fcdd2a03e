"""Made-up measurements of a thread that differs from its data sheet in known ways."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache

import numpy as np

from service.cost_models.analytic import BACKWARD_TERMS, FORWARD_TERMS, AnalyticCompute
from service.cost_models.calibrated import KINDS, terms_and_shares, work_by_kind
from service.cost_models.data_sheets import PROCESSORS
from service.domain.measurements import ComputeMeasurement, Split, table_part
from service.domain.ports import Floats
from service.domain.tables import DataType, Optimizer, Table
from service.profiling.pools import generated_pool

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
ANALYTIC = AnalyticCompute("cpu-fbgemm/compute/analytic-2", PROCESSORS["cpu-fbgemm"])
POOL = 25
"""Tables of each part that are drawn from."""

ROW_FACTOR, SLOW_HALF, SHEET_FACTOR = 3.0, 2.0, 1.5
MEASURED_KINDS = [kind for kind in KINDS if kind[0] is not Optimizer.ADAM and kind[1] is not DataType.BF16]


def true_costs(tables: Sequence[Table], batch_size: int, optimizer: Optimizer) -> Floats:
    """A machine that differs from its data sheet: all is slower, new rows are more so, and fp16 with sgd is apart."""
    sums = work_by_kind(ANALYTIC, tables, batch_size, optimizer).sum(axis=0)
    (forward, backward), _ = terms_and_shares(ANALYTIC, sums)
    forward[FORWARD_TERMS.index("new rows")] *= ROW_FACTOR
    backward[BACKWARD_TERMS.index("updates")] *= ROW_FACTOR
    slow = optimizer is Optimizer.SGD and tables[0].data_type is DataType.FP16
    return SHEET_FACTOR * np.array([forward.sum(), backward.sum() * (SLOW_HALF if slow else 1.0)])


@cache
def pool_by_part() -> dict[Split, list[Table]]:
    """The generated tables that have lookups, made once; nobody changes the lists."""
    found = [table for table in generated_pool() if table.pooling_factor]
    return {split: [table for table in found if table_part(table) is split] for split in Split}


def synthetic(count: int, seed: int = 0, noise: float = 0.05) -> list[ComputeMeasurement]:
    """Measurements of that machine."""
    rng = np.random.default_rng(seed)
    found = []
    for index in range(count):
        pool = pool_by_part()[Split(rng.choice(["train", "train", "train", "test"]))]
        optimizer, data_type = MEASURED_KINDS[int(rng.integers(len(MEASURED_KINDS)))]
        batch_size = int(rng.choice([1_024, 65_536]))
        tables = tuple(
            replace(pool[int(rng.integers(POOL))], embedding_dim=int(rng.choice([8, 64, 256])), data_type=data_type)
            for _ in range(int(rng.integers(1, 6)))
        )
        forward, backward = true_costs(tables, batch_size, optimizer) * np.exp(rng.normal(0, noise, 2))
        found.append(
            ComputeMeasurement("synthetic", index, "cpu-fbgemm", tables, batch_size, optimizer, forward, backward,
                               0.02, 0.02, 5, {"device": "a processor"}, NOW)
        )  # fmt: skip
    return found
