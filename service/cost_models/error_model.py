"""How far measured costs may be from predicted ones: error laws, scaled by what is predicted.

The logarithm of measured over predicted is a scale times a standardised law. The scale is the exponential of something
linear in a few features; the law is kept as quantiles. Both are fitted to measurements of tables that the model was not
trained on (locally weighted split conformal prediction: Papadopoulos, Gammerman and Vovk, Normalized nonconformity
measures for regression conformal prediction, 2008; Lei et al., Distribution-free predictive inference for regression,
2018). Fitting is in ``service.training.error_fit``.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from service.cost_models.arrays import Arrays, Shapes, check_arrays
from service.domain.error_law import QUANTILES, ErrorLaw
from service.domain.ports import Floats
from service.domain.tables import DataType, Optimizer, Table

_TOLD_OPTIMIZERS = tuple(optimizer for optimizer in Optimizer if optimizer is not Optimizer.SGD)

COMPUTE_ERROR_FEATURES = (
    "log2_cost",
    "log2_tables",
    "log2_batch",
    "log2_dim",
    "log2_pooling",
    "half_precision",
    *(optimizer.value for optimizer in _TOLD_OPTIMIZERS),
)
"""Columns of ``compute_error_features``, in order."""

_AMOUNTS = [COMPUTE_ERROR_FEATURES.index(name) for name in ("log2_cost", "log2_tables")]
"""Features that novelty, which is of single tables, knows nothing of."""

EXCHANGE_ERROR_FEATURES = (
    "log2_forward",
    "log2_backward",
    "log2_devices",
    "log2_batch",
    "log2_share",
    "log2_unevenness",
)
"""Columns of ``exchange_error_features``, in order."""

COMPUTE_SHARED = 0.2
"""``ErrorLaw.shared`` of compute. Combinations that were measured one after the other err alike by 0.12 to 0.14 (two
shipped campaigns); what a whole sitting has in common comes on top."""

EXCHANGE_SHARED = 0.8
"""``ErrorLaw.shared`` of exchanges: 0.6 to 0.96 within the shipped ones, by number of devices. The two directions have
a fifth of that in common, which is left out."""

_SMALL = 1e-3


class _NoveltyOfTables(Protocol):
    def of(self, tables: Sequence[Table], batch_size: int, optimizer: Optimizer) -> Floats: ...


def error_shapes(features: int, costs: int) -> Shapes:
    """Arrays of a version for F features and K costs.

    Features stop at ``low`` and ``high``, the range over which the scale was fitted.
    """
    return {
        "errors.low": (features,),
        "errors.high": (features,),
        "errors.weights": (costs, features),
        "errors.novelty": (costs,),
        "errors.quantiles": (costs, QUANTILES),
    }


class ErrorModel:
    """Laws of the errors of K costs, from a version's arrays."""

    def __init__(self, version: str, arrays: Arrays, features: int, costs: int, shared: float) -> None:
        """Takes arrays, and what devices have in common, see ``ErrorLaw.shared``.

        Raises:
            DamagedArtifact: they are not those of ``error_shapes``.
        """
        shapes = error_shapes(features, costs)
        check_arrays(version, arrays, shapes)
        self._low, self._high, self._weights, self._novelty, self._quantiles = (
            arrays[name].astype(np.float64) for name in shapes
        )
        self._shared = shared

    def law(self, features: Floats, novelty: Floats) -> ErrorLaw:
        """The law of D devices with these features and novelties; [D, F] and [D]."""
        inside = np.clip(features, self._low, self._high)
        return ErrorLaw(scales(inside, novelty, self._weights, self._novelty), self._quantiles, self._shared)

    def above(self, features: Floats) -> Floats:
        """How far features lie above the range over which the scale was fitted, 0 within it; [D, F] -> [D, F]."""
        return np.maximum(features - self._high, 0.0)


def scales(features: Floats, novelty: Floats, weights: Floats, by_novelty: Floats) -> Floats:
    """Scales of the errors of K costs; [D, F], [D], [K, F] and [K], not negative -> [D, K].

    They never shrink as novelty grows, and grow as fast as it does beyond 1.
    """
    known = np.minimum(novelty, 1.0)[:, None] * by_novelty
    return np.asarray(np.exp(features @ weights.T + known) * np.maximum(novelty, 1.0)[:, None])


class ComputeErrors:
    """Laws of the errors of a device's forward, backward and total compute."""

    def __init__(self, version: str, arrays: Arrays, novelty: _NoveltyOfTables) -> None:
        """Takes arrays, and what tells the novelty of tables; raises DamagedArtifact for other arrays."""
        self._model = ErrorModel(version, arrays, len(COMPUTE_ERROR_FEATURES), costs=3, shared=COMPUTE_SHARED)
        self._novelty = novelty

    def law(self, costs: Floats, held: Sequence[Sequence[Table]], batch_size: int, optimizer: Optimizer) -> ErrorLaw:
        """As ``ComputeCostModel.errors``.

        A device of more tables, or of more compute, than any that was measured is as much newer as that is octaves.
        """
        features = compute_error_features(costs, held, batch_size, optimizer)
        beyond = self._model.above(features)[:, _AMOUNTS].max(axis=1)
        return self._model.law(features, device_novelty(self._novelty, held, batch_size, optimizer) + beyond)


def device_novelty(
    novelty: _NoveltyOfTables, held: Sequence[Sequence[Table]], batch_size: int, optimizer: Optimizer
) -> Floats:
    """Novelty of D devices: the mean over a device's tables, each counting by the bytes it moves; [D], 0 if empty."""
    tables = [table for device in held for table in device]
    owner = np.repeat(np.arange(len(held)), [len(device) for device in held])
    moved = np.array([moved_bytes(table, batch_size) for table in tables], dtype=np.float64)
    weighted = np.bincount(owner, moved * novelty.of(tables, batch_size, optimizer), minlength=len(held))
    total = np.bincount(owner, moved, minlength=len(held))
    return np.divide(weighted, total, out=np.zeros(len(held)), where=total > 0)


def compute_error_features(
    costs: Floats, held: Sequence[Sequence[Table]], batch_size: int, optimizer: Optimizer
) -> Floats:
    """What the error of D devices' compute depends on, ``COMPUTE_ERROR_FEATURES``; [D, F].

    Args:
        costs: predicted forward and backward compute; [D, 2].
        held: what each device holds.
        batch_size: the global batch.
        optimizer: the fused optimizer.
    """
    chosen = [float(optimizer is told) for told in _TOLD_OPTIMIZERS]
    rows = [[np.log2(batch_size), *_mean_logs(tables), *chosen] for tables in held]
    sizes = [np.log2(max(len(tables), 1)) for tables in held]
    return np.column_stack([np.log2(np.maximum(costs.sum(axis=1), _SMALL)), sizes, np.array(rows, dtype=np.float64)])


def _mean_logs(tables: Sequence[Table]) -> list[float]:
    """Mean log2 of the dims and of the pooling factors, and the share of tables that are not fp32."""
    if not tables:
        return [0.0, 0.0, 0.0]
    values = [
        (table.embedding_dim, 1.0 + table.pooling_factor, 1.0 if table.data_type is DataType.FP32 else 2.0)
        for table in tables
    ]
    return [float(mean) for mean in np.log2(values).mean(axis=0)]


def moved_bytes(table: Table, batch_size: int) -> float:
    """Bytes of a table's rows and pooled output in a batch."""
    return float(table.lookups(batch_size)) * table.row_bytes + 4.0 * batch_size * table.output_width


class ExchangeErrors:
    """Laws of the errors of a device's forward transfer and backward exchange."""

    def __init__(self, version: str, arrays: Arrays) -> None:
        """Takes arrays; raises DamagedArtifact for others."""
        self._model = ErrorModel(version, arrays, len(EXCHANGE_ERROR_FEATURES), costs=2, shared=EXCHANGE_SHARED)

    def law(self, costs: Floats, widths: Floats, batch_size: int, octaves_beyond: Floats) -> ErrorLaw:
        """As ``CommunicationCostModel.errors``.

        Args:
            costs: predicted forward transfer and backward exchange; [D, 2].
            widths: pooled output columns of each device; [D].
            batch_size: the global batch.
            octaves_beyond: how far each is from what was measured, 0 where it is not: its novelty is 1 more; [D].
        """
        return self._model.law(exchange_error_features(costs, widths, batch_size), 1.0 + octaves_beyond)


def exchange_error_features(costs: Floats, widths: Floats, batch_size: int) -> Floats:
    """What the error of D devices' exchanges depends on, ``EXCHANGE_ERROR_FEATURES``; [D, 2] and [D] -> [D, F]."""
    devices = len(widths)
    share = np.maximum(widths, 1.0) * devices / np.maximum(widths.sum(), 1.0)
    whole = np.tile(np.log2([devices, batch_size]), (devices, 1))
    unevenness = np.full(devices, np.log2(share.max()))
    return np.column_stack([np.log2(np.maximum(costs, _SMALL)), whole, np.log2(share), unevenness])
