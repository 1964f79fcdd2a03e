"""Hand-written stand-ins for the ports: nonlinear, deterministic, and quick."""

from collections.abc import Sequence

import numpy as np

from service.domain.error_law import ErrorLaw
from service.domain.ports import CostModels, Embeddings, Floats, Integers
from service.domain.tables import Optimizer, Table


class FakeCompute:
    """Compute costs that are not additive: index work, traffic, and a cache that many rows overflow.

    Attributes:
        encoded: what each call of ``encode`` was given.
    """

    version = "fake/compute/1"

    def __init__(self) -> None:
        self.encoded: list[tuple[Table, ...]] = []

    def encode(self, tables: Sequence[Table], batch_size: int, optimizer: Optimizer) -> Embeddings:
        self.encoded.append(tuple(tables))
        rows = np.array([table.num_embeddings for table in tables], dtype=np.float64)
        widths = np.array([table.embedding_dim for table in tables], dtype=np.float64)
        lookups = np.array([table.pooling_factor * batch_size for table in tables], dtype=np.float64)
        outputs = np.array([table.output_width * batch_size for table in tables], dtype=np.float64)
        features = [
            np.ones_like(rows),
            lookups / 1e5,
            lookups * widths / 1e7,
            outputs / 1e7,
            np.log10(rows),
            np.minimum(rows, lookups) * np.maximum(widths, 16.0) / 1e7,
        ]
        return np.stack(features, axis=1).astype(np.float32)

    def head(self, sums: Embeddings) -> Floats:
        count, lookups, traffic, outputs, magnitude, touched = np.moveaxis(sums.astype(np.float64), -1, 0)
        misses = touched * touched / (1.0 + touched)
        forward = 0.02 * count + 0.3 * lookups + 1.1 * traffic + 0.4 * outputs + 0.9 * misses
        backward = np.sqrt(count) * 0.1 + 2.3 * traffic + 1.7 * np.sqrt(touched * (1.0 + magnitude / 10.0))
        return np.stack([forward, backward], axis=-1)

    def least_costs(
        self, tables: Sequence[Table], widths: Integers, batch_size: int, optimizer: Optimizer
    ) -> "FakeLeastCosts":
        return FakeLeastCosts(self, tables, widths, batch_size, optimizer)

    def assumptions(self, tables: Sequence[Table], batch_size: int, optimizer: Optimizer) -> list[str]:
        missing = [table.name for table in tables if table.reuse_histogram is None]
        return [f"no reuse histogram: {', '.join(missing)}"] if missing else []

    def novelty(self, tables: Sequence[Table], batch_size: int, optimizer: Optimizer) -> Floats:
        return np.array([table.num_embeddings / 1e7 for table in tables])

    def errors(self, costs: Floats, held: Sequence[Sequence[Table]], batch_size: int, optimizer: Optimizer) -> ErrorLaw:
        return ErrorLaw(np.full((len(costs), 3), 0.1), np.tile(np.linspace(-1.0, 1.5, 11), (3, 1)), shared=0.2)


class FakeLeastCosts:
    """What holds for the fake: costs grow with every quantity; the first four add up and misses are convex."""

    def __init__(
        self, model: FakeCompute, tables: Sequence[Table], widths: Integers, batch_size: int, optimizer: Optimizer
    ) -> None:
        self._head = model.head
        before = np.concatenate([np.zeros_like(widths[:, :1]), widths[:, :-1]], axis=1)
        slices = [
            table.sliced(int(width))
            for table, narrowest in zip(tables, np.minimum(before + 4, widths), strict=True)
            for width in narrowest
        ]
        encoded = model.encode(slices, batch_size, optimizer)
        self._narrowest = encoded.reshape(*widths.shape, -1)
        self._whole = model.encode(tables, batch_size, optimizer)

    @property
    def alone(self) -> Floats:
        return np.asarray(self._head(self._narrowest).sum(axis=-1) * (1 - 1e-6))

    def together(self, held: Sequence[Sequence[int]]) -> Floats:
        sums = np.stack([self._whole[list(tables)].sum(axis=0) for tables in held])
        return np.asarray(self._head(sums).sum(axis=-1) * (1 - 1e-6))

    def shared(self, tables: Integers, widest: Integers, devices: int) -> float:
        count, lookups, traffic, outputs, _, touched = self._whole[tables].sum(axis=0) / devices
        misses = touched * touched / (1.0 + touched)
        forward = 0.02 * count + 0.3 * lookups + 1.1 * traffic + 0.4 * outputs + 0.9 * misses
        return float((forward + 2.3 * traffic) * (1 - 1e-6))


class FakeCommunication:
    """Latency and bytes over bandwidth; the widest device slows all of them a little, a wait saves each a little."""

    version = "fake/communication/1"

    def forward_transfer(self, widths: Floats, wait_ms: Floats, batch_size: int) -> Floats:
        widest: Floats = widths.max(axis=-1, keepdims=True)
        return 0.2 + batch_size * (widths + 0.25 * widest) * 4 / 4e6 * (1 - 0.5 * wait_ms / (wait_ms + 1.0))

    def backward(self, widths: Floats, batch_size: int) -> Floats:
        return 0.25 + batch_size * widths * 4 / 3e6

    def least_exchange(self, width: int, devices: int, batch_size: int) -> float:
        return 0.2 + 0.25 + batch_size * 1.25 * width / devices * 4 / 4e6 * 0.5

    def assumptions(self, widths: Floats, wait_ms: Floats, batch_size: int) -> list[str]:
        return []

    def errors(self, costs: Floats, widths: Floats, batch_size: int) -> ErrorLaw:
        return ErrorLaw(np.full(costs.shape, 0.2), np.tile(np.linspace(-1.0, 1.0, 11), (2, 1)), shared=0.8)


def fake_models() -> CostModels:
    """A fresh pair of fakes."""
    return CostModels(FakeCompute(), FakeCommunication())
