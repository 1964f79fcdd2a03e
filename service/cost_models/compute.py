"""The compute cost model: a network over summed table embeddings, evaluated with numpy.

The network is NeuroShard's (table MLP, sum over the tables of a device, head; MLSys 2023) with logarithms around the
sum: a table's embedding is the exponential of its MLP's output, and the head sees the logarithm of the sum. Costs span
five orders of magnitude, and a sum of positive parts extrapolates to more tables than were measured together, where
the head's correction stays bounded.
"""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Self

import numpy as np

from service.cost_models.arrays import Arrays, Shapes, check_arrays
from service.cost_models.assumptions import listed, reuse_assumptions
from service.cost_models.error_model import ComputeErrors
from service.cost_models.features import FEATURE_NAMES, FEATURES_VERSION, table_features
from service.cost_models.novelty import Novelty
from service.domain.errors import DamagedArtifact
from service.domain.ports import Embeddings, ErrorLaw, Floats
from service.domain.tables import Optimizer, Table

EMBEDDING_LIMIT = 20.0
"""Table embeddings are ``exp`` of values clipped to plus and minus this."""

CORRECTION_LIMIT = 1.5
"""The head moves the logarithm of a cost by less than this from that of the summed part."""

EMPTY = 1e-12
"""A sum below this is a device without tables, which costs nothing."""


@dataclass(frozen=True, slots=True)
class MeasuredDomain:
    """What the measurements behind a model cover.

    Attributes:
        batch_sizes: smallest and largest global batch.
        dims: narrowest and widest table.
        rows: fewest and most rows.
        pooling_factors: smallest and largest pooling factor.
        optimizers: optimizers measured.
        data_types: precisions measured.
        pooling_modes: ways of combining rows measured.
    """

    batch_sizes: tuple[int, int]
    dims: tuple[int, int]
    rows: tuple[int, int]
    pooling_factors: tuple[float, float]
    optimizers: tuple[str, ...]
    data_types: tuple[str, ...]
    pooling_modes: tuple[str, ...]


WEIGHT_SHAPES: Shapes = {
    "feature_mean": (len(FEATURE_NAMES),),
    "feature_scale": (len(FEATURE_NAMES),),
    "table.0.weight": ("A", len(FEATURE_NAMES)),
    "table.0.bias": ("A",),
    "table.2.weight": ("H", "A"),
    "table.2.bias": ("H",),
    "head.0.weight": ("B", "H"),
    "head.0.bias": ("B",),
    "head.2.weight": ("K", "B"),
    "head.2.bias": ("K",),
}
"""Arrays of a version: A and B hidden units, H embedding size, K costs (forward and backward)."""


class ComputeModel:
    """A compute cost model of one hardware; implements ``ComputeCostModel``."""

    def __init__(self, version: str, weights: Arrays, features_version: int, measured: MeasuredDomain) -> None:
        _check_features(version, features_version)
        check_arrays(version, weights, WEIGHT_SHAPES)
        self._version = version
        # In double precision, so that the shape of a batch moves no result by as much as a search can see.
        self._w = {name: array.astype(np.float64) for name, array in weights.items()}
        self._measured = measured
        self._novelty: Novelty | None = None
        self._errors: ComputeErrors | None = None

    def with_errors(self, arrays: Arrays) -> Self:
        """This model with the novelty and the errors that a version's arrays tell; it prices as before.

        Raises:
            DamagedArtifact: the arrays are not those of ``NOVELTY_SHAPES`` and ``error_shapes``.
        """
        measured, found = self._measured, copy(self)
        found._novelty = Novelty(
            self._version, arrays, measured.optimizers, measured.data_types, measured.pooling_modes
        )
        found._errors = ComputeErrors(self._version, arrays, found._novelty)
        return found

    @property
    def version(self) -> str:
        """Name of the version."""
        return self._version

    def encode(self, tables: Sequence[Table], batch_size: int, optimizer: Optimizer) -> Embeddings:
        """Embeddings of T tables at a global batch size; [T, H], positive."""
        return self.embed(table_features(tables, batch_size))

    def embed(self, features: Embeddings) -> Embeddings:
        """Embeddings of T rows of ``table_features``; [T, F] -> [T, H]."""
        w = self._w
        x = (features - w["feature_mean"]) / w["feature_scale"]
        hidden = np.maximum(x @ w["table.0.weight"].T + w["table.0.bias"], 0)
        log_parts = hidden @ w["table.2.weight"].T + w["table.2.bias"]
        return np.asarray(np.exp(np.clip(log_parts, -EMBEDDING_LIMIT, EMBEDDING_LIMIT)), dtype=np.float32)

    def head(self, sums: Embeddings) -> Floats:
        """Costs in milliseconds for sums of embeddings; [..., H] -> [..., K]."""
        w = self._w
        log_sums = np.log(np.maximum(sums.astype(np.float64), EMPTY))
        hidden = np.maximum(log_sums @ w["head.0.weight"].T + w["head.0.bias"], 0)
        raw = hidden @ w["head.2.weight"].T + w["head.2.bias"]
        costs = len(w["head.2.bias"])
        log_cost = log_sums[..., :costs] + CORRECTION_LIMIT * np.tanh(raw / CORRECTION_LIMIT)
        empty = sums[..., :1] < EMPTY
        return np.where(empty, 0.0, np.exp(log_cost))

    def assumptions(self, tables: Sequence[Table], batch_size: int, optimizer: Optimizer) -> list[str]:
        """What the prediction rests on besides the request."""
        return [
            *reuse_assumptions(tables, batch_size),
            *_beyond(self._measured, tables, batch_size),
            *_unmeasured(self._measured, tables, optimizer),
        ]

    def novelty(self, tables: Sequence[Table], batch_size: int, optimizer: Optimizer) -> Floats:
        """How far each of T tables is from what was measured, see ``Novelty``; [T]. Only of a model with errors."""
        if self._novelty is None:
            raise ValueError(f"{self._version} has no errors fitted")
        return self._novelty.of(tables, batch_size, optimizer)

    def errors(self, costs: Floats, held: Sequence[Sequence[Table]], batch_size: int, optimizer: Optimizer) -> ErrorLaw:
        """How far measured costs may be from these, see ``ComputeErrors``. Only of a model with errors."""
        if self._errors is None:
            raise ValueError(f"{self._version} has no errors fitted")
        return self._errors.law(costs, held, batch_size, optimizer)


def _check_features(version: str, features_version: int) -> None:
    if features_version != FEATURES_VERSION:
        raise DamagedArtifact(
            f"{version} was trained on features version {features_version}, this code makes version "
            f"{FEATURES_VERSION}: retrain it with `shardwright train compute`"
        )


def _beyond(measured: MeasuredDomain, tables: Sequence[Table], batch_size: int) -> list[str]:
    said = []
    low, high = measured.batch_sizes
    if not low <= batch_size <= high:
        said.append(f"global_batch_size {batch_size} is outside the measured {low} to {high}: the cost is extrapolated")
    checks: tuple[tuple[str, tuple[float, float]], ...] = (
        ("embedding_dim", measured.dims),
        ("num_embeddings", measured.rows),
        ("pooling_factor", measured.pooling_factors),
    )
    for field, (least, most) in checks:
        names = [t.name for t in tables if not least <= getattr(t, field) <= most]
        if names:
            said.append(f"{field} of {listed(names)} is outside the measured {least:g} to {most:g}: extrapolated")
    shared = [t.name for t in tables if t.num_features > 1]
    if shared:
        said.append(f"{listed(shared)} serve several features, which was not measured: priced by lookups and output")
    return said


def _unmeasured(measured: MeasuredDomain, tables: Sequence[Table], optimizer: Optimizer) -> list[str]:
    said = []
    if optimizer.value not in measured.optimizers:
        said.append(
            f"compute was measured with {', '.join(measured.optimizers)}: the times for {optimizer.value} are those, "
            "its memory is counted in full"
        )
    names = [t.name for t in tables if t.data_type.value not in measured.data_types]
    if names:
        said.append(
            f"compute was measured with {', '.join(measured.data_types)}: other precisions of {listed(names)} are "
            "priced by the bytes of their rows"
        )
    names = [t.name for t in tables if t.pooling_mode.value not in measured.pooling_modes]
    if names:
        said.append(
            f"compute was measured with {', '.join(measured.pooling_modes)} pooling: so is {listed(names)} priced"
        )
    return said
