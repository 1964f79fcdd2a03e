"""Measurements beside what a version predicts for them, with what they are sliced by."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.cost_models.communication import exchanged_bytes
from service.domain.measurements import CommunicationMeasurement, ComputeMeasurement
from service.domain.ports import BACKWARD, COMPUTE_TOTAL, FORWARD, CommunicationCostModel, ComputeCostModel
from service.training import communication_evaluation
from service.training.communication_dataset import Exchanges, exchange_groups
from service.training.compute_predictions import measured_costs, predicted_costs
from service.training.intervals import compute_covered, exchange_covered, with_total
from service.training.slices import Attribute, Flags, Judged, Values

_UNEVENNESS = (1.1, 1.25, 1.5, 2.0, 3.0)
_SKEWS_MS = (1.0, 10.0, 40.0)
_MIB = 2**20


def _doubling(low: int, high: int) -> tuple[float, ...]:
    """Powers of two from 2**low to 2**high."""
    return tuple(2.0**power for power in range(low, high + 1))


_TABLES, _DIMS, _POOLING, _BATCHES = _doubling(1, 6), _doubling(3, 10), _doubling(0, 7), _doubling(6, 17)
_SIZES = _doubling(-4, 8)[::2]


def judged_combinations(model: ComputeCostModel, rows: Sequence[ComputeMeasurement]) -> dict[str, Judged]:
    """The total, forward and backward compute of N combinations, N > 0; a row is a combination.

    They are sliced by the number of tables, the narrowest and the mean dim, the batch size, the mean pooling factor,
    the precisions among the tables and the optimizer.
    """
    told, found = with_total(predicted_costs(model, rows)), with_total(measured_costs(rows))
    covered, attributes = compute_covered(model, rows, told, found), _of_combinations(rows)
    return {
        name: Judged(told[:, cost], found[:, cost], covered[:, cost], attributes)
        for name, cost in (("total", COMPUTE_TOTAL), ("forward", FORWARD), ("backward", BACKWARD))
    }


def judged_exchanges(model: CommunicationCostModel, rows: Sequence[CommunicationMeasurement]) -> dict[str, Judged]:
    """The forward transfer and backward exchange of N exchanges, N > 0; a row is a device of an exchange.

    Devices that had nothing to wait for are no rows, see ``Exchanges.timed``. They are sliced by the number of
    devices, the batch size, the skew of the starts, the unevenness (the widest device's columns over the mean) and the
    device's MiB.
    """
    groups = exchange_groups(rows)
    predicted = [communication_evaluation.predict(model, group) for group in groups]
    covered = [exchange_covered(model, *pair) for pair in zip(groups, predicted, strict=True)]
    return {
        name: _judged(groups, predicted, covered, cost) for cost, name in enumerate(("forward_transfer", "backward"))
    }


def _of_combinations(rows: Sequence[ComputeMeasurement]) -> dict[str, Attribute]:
    dims = [[table.embedding_dim for table in row.tables] for row in rows]
    pooling = [np.mean([table.pooling_factor for table in row.tables]) for row in rows]
    precisions = [" and ".join(sorted({table.data_type.value for table in row.tables})) for row in rows]
    return {
        "tables": Attribute(np.array([len(row.tables) for row in rows]), _TABLES),
        "narrowest dim": Attribute(np.array([min(held) for held in dims]), _DIMS),
        "mean dim": Attribute(np.array([np.mean(held) for held in dims]), _DIMS),
        "batch size": Attribute(np.array([row.batch_size for row in rows]), _BATCHES),
        "mean pooling factor": Attribute(np.array(pooling), _POOLING),
        "precision": Attribute(np.array(precisions)),
        "optimizer": Attribute(np.array([row.optimizer.value for row in rows])),
    }


def _judged(groups: Sequence[Exchanges], predicted: Sequence[Values], covered: Sequence[Flags], cost: int) -> Judged:
    """All timed devices of all groups; cost is a position in the last axis of their costs."""
    timed = [group.timed[..., cost] for group in groups]

    def joined(values: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """One array of values that are each of a group, [N, D] or [N, 1]."""
        return np.concatenate([np.broadcast_to(v, t.shape)[t] for v, t in zip(values, timed, strict=True)])

    attributes = {
        "devices": Attribute(joined([np.array([[group.devices]]) for group in groups])),
        "batch size": Attribute(joined([group.batch_sizes for group in groups]), _BATCHES),
        "skew of the starts, ms": Attribute(
            joined([group.nominal_wait_ms.max(axis=1, keepdims=True) for group in groups]), _SKEWS_MS
        ),
        "unevenness": Attribute(joined([_unevenness(group.widths) for group in groups]), _UNEVENNESS),
        "MiB of the device": Attribute(
            joined([exchanged_bytes(group.widths, group.batch_sizes) / _MIB for group in groups]), _SIZES
        ),
    }
    told, found, within = (
        joined([values[..., cost] for values in each])
        for each in (predicted, [group.costs for group in groups], covered)
    )
    return Judged(told, found, within, attributes)


def _unevenness(widths: Values) -> Values:
    """Columns of the device with the most over the mean of all, 0 where there are none; [N, D] -> [N, 1]."""
    mean = widths.mean(axis=1, keepdims=True)
    return np.asarray(widths.max(axis=1, keepdims=True) / np.maximum(mean, np.finfo(np.float64).tiny))
