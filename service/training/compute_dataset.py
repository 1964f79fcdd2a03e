"""Combinations of tables and their measured costs, as arrays to train on."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.cost_models.features import FEATURE_NAMES, table_features
from service.cost_models.measured_domain import MeasuredDomain
from service.domain.measurements import ComputeMeasurement, combination_fingerprint
from service.domain.plan import content_hash
from service.domain.tables import Optimizer, Table


@dataclass(frozen=True, slots=True)
class ComputeDataset:
    """N combinations over U distinct (table, width, batch, optimizer) rows.

    Attributes:
        features: [U + 1, F] features, not standardised; the last row stands for no table.
        members: [N, M] indices into ``features``, filled up with U.
        costs: [N, K] milliseconds, all positive.
    """

    features: NDArray[np.float32]
    members: NDArray[np.int64]
    costs: NDArray[np.float64]

    def rows(self, chosen: NDArray[np.int64]) -> "ComputeDataset":
        """The combinations with these positions."""
        return ComputeDataset(self.features, self.members[chosen], self.costs[chosen])

    def __len__(self) -> int:
        return len(self.members)


def build_dataset(
    combinations: Sequence[tuple[Sequence[Table], int, Optimizer]], costs: NDArray[np.float64]
) -> ComputeDataset:
    """Arrays of N (tables, batch size, optimizer) combinations with [N, K] costs."""
    position: dict[tuple[Table, int, Optimizer], int] = {}
    for tables, batch_size, optimizer in combinations:
        for table in tables:
            position.setdefault((table.nameless(), batch_size, optimizer), len(position))
    features = np.zeros((len(position) + 1, len(FEATURE_NAMES)), dtype=np.float32)
    for (table, batch_size, optimizer), i in position.items():
        features[i] = table_features([table], batch_size, optimizer)[0]
    longest = max(len(tables) for tables, *_ in combinations)
    members = np.full((len(combinations), longest), len(position), dtype=np.int64)
    for n, (tables, batch_size, optimizer) in enumerate(combinations):
        members[n, : len(tables)] = [position[(t.nameless(), batch_size, optimizer)] for t in tables]
    return ComputeDataset(features, members, costs)


def measurements_dataset(measurements: Sequence[ComputeMeasurement]) -> ComputeDataset:
    """Arrays of measurements, with forward and backward costs (K = 2)."""
    costs = np.array([[m.forward_ms, m.backward_ms] for m in measurements], dtype=np.float64)
    return build_dataset([(m.tables, m.batch_size, m.optimizer) for m in measurements], costs)


def measured_domain(measurements: Sequence[ComputeMeasurement]) -> MeasuredDomain:
    """What the measurements cover."""
    tables = [table for m in measurements for table in m.tables]

    def span(values: list[int]) -> tuple[int, int]:
        return min(values), max(values)

    pooling = [t.pooling_factor for t in tables]
    return MeasuredDomain(
        batch_sizes=span([m.batch_size for m in measurements]),
        dims=span([t.embedding_dim for t in tables]),
        rows=span([t.num_embeddings for t in tables]),
        pooling_factors=(min(pooling), max(pooling)),
        optimizers=tuple(sorted({m.optimizer.value for m in measurements})),
        data_types=tuple(sorted({t.data_type.value for t in tables})),
        pooling_modes=tuple(sorted({t.pooling_mode.value for t in tables})),
        pairs=tuple(sorted({(m.optimizer.value, t.data_type.value) for m in measurements for t in m.tables})),
    )


def data_fingerprint(measurements: Sequence[ComputeMeasurement]) -> str:
    """Hash of what was measured and of the results, whatever the order; 32 hex digits."""
    rows = sorted(
        f"{combination_fingerprint(m.tables, m.batch_size, m.optimizer)} {m.forward_ms!r} {m.backward_ms!r}"
        for m in measurements
    )
    return content_hash({"rows": rows})
