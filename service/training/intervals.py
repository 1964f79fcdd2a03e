"""Fits what a trained model tells of novelty and errors, and checks whether its intervals hold."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from service.cost_models.arrays import Arrays
from service.cost_models.communication import MeasuredExchanges, octaves_beyond
from service.cost_models.error_model import (
    COMPUTE_ERROR_FEATURES,
    compute_error_features,
    device_novelty,
    exchange_error_features,
    moved_bytes,
)
from service.cost_models.measured_domain import MeasuredDomain
from service.cost_models.novelty import Novelty
from service.domain.error_law import ErrorLaw
from service.domain.measurements import ComputeMeasurement
from service.domain.ports import CommunicationCostModel, ComputeCostModel
from service.domain.tables import DataType, Optimizer, Table
from service.training.communication_dataset import Exchanges
from service.training.compute_predictions import measured_costs
from service.training.error_fit import fit_errors
from service.training.novelty_fit import fit_novelty

Values = NDArray[np.float64]
Flags = NDArray[np.bool_]
Positions = NDArray[np.intp]


def fit_compute_intervals(
    predicted: Values,
    train: Sequence[ComputeMeasurement],
    held_out: Sequence[ComputeMeasurement],
    known: MeasuredDomain,
) -> Arrays:
    """Arrays of ``NOVELTY_SHAPES`` and ``error_shapes`` for a compute model.

    Args:
        predicted: its forward and backward compute of the held-out combinations; [N, 2].
        train: combinations that it was trained on.
        held_out: N combinations of other tables.
        known: what was measured.
    """
    arrays = dict(fit_novelty(train, held_out))
    novelty = Novelty("new", arrays, known)
    told, found = with_total(predicted), with_total(measured_costs(held_out))
    features, novelties = np.empty((len(held_out), len(COMPUTE_ERROR_FEATURES))), np.empty(len(held_out))
    for rows, held, batch_size, optimizer in _by_batch_and_optimizer(held_out):
        features[rows] = compute_error_features(predicted[rows], held, batch_size, optimizer)
        novelties[rows] = device_novelty(novelty, held, batch_size, optimizer)
    ratios = np.log(found / told)
    used = np.ones(ratios.shape, dtype=np.bool_)
    return arrays | dict(fit_errors(ratios, used, features, novelties, _by_heaviest_table(held_out)))


def fit_exchange_intervals(held_out: Sequence[tuple[Exchanges, Values]], known: MeasuredExchanges) -> Arrays:
    """Arrays of ``error_shapes`` for a communication model.

    Args:
        held_out: groups of exchanges, each with what a model that was not trained on them predicts, [N, D, 2].
        known: what was measured.
    """
    each = [
        (
            costs,
            told,
            timed,
            exchange_error_features(told, widths, batch_size),
            octaves_beyond(known, widths, batch_size),
        )
        for group, prices in held_out
        for costs, told, timed, widths, batch_size in zip(
            group.costs, prices, group.timed, group.widths, _batch_sizes(group), strict=True
        )
    ]
    costs, told, timed, features, beyond = (np.concatenate(values) for values in zip(*each, strict=True))
    exchange = np.repeat(np.arange(len(each)), [len(rows[0]) for rows in each])
    return fit_errors(np.log(costs / told), timed, features, 1.0 + beyond, exchange)


def compute_covered(
    model: ComputeCostModel, rows: Sequence[ComputeMeasurement], predicted: Values, measured: Values
) -> Flags:
    """Whether a model's 90% intervals hold what was measured in N combinations; [N, 3].

    Args:
        model: one with errors.
        rows: the combinations.
        predicted: forward, backward and total compute; [N, 3].
        measured: the same; [N, 3].
    """
    covered = np.empty(measured.shape, dtype=np.bool_)
    for at, held, batch_size, optimizer in _by_batch_and_optimizer(rows):
        law = model.errors(predicted[at, :2], held, batch_size, optimizer)
        covered[at] = _within(law, predicted[at], measured[at])
    return covered


def exchange_covered(model: CommunicationCostModel, group: Exchanges, predicted: Values) -> Flags:
    """Whether a model's 90% intervals hold what was measured of N exchanges of D devices; [N, D, 2] -> [N, D, 2]."""
    rows = zip(predicted, group.costs, group.widths, _batch_sizes(group), strict=True)
    return np.array([_within(model.errors(told, w, batch), told, found) for told, found, w, batch in rows])


def with_total(costs: Values) -> Values:
    """Costs with their total beside them, at ``COMPUTE_TOTAL``; [N, 2] -> [N, 3]."""
    return np.column_stack([costs, costs.sum(axis=1)])


def _within(law: ErrorLaw, predicted: Values, measured: Values) -> Flags:
    """Whether measured costs are within the intervals of a law; [D, K] each."""
    ends = [law.interval(predicted[:, cost], cost) for cost in range(predicted.shape[1])]
    return np.stack([(low <= measured[:, k]) & (measured[:, k] <= high) for k, (low, high) in enumerate(ends)], axis=1)


def _batch_sizes(group: Exchanges) -> list[int]:
    return [int(size) for size in group.batch_sizes[:, 0]]


def _by_batch_and_optimizer(
    rows: Sequence[ComputeMeasurement],
) -> Iterator[tuple[Positions, list[tuple[Table, ...]], int, Optimizer]]:
    """Positions of the rows that share a batch size and an optimizer, and the tables of each."""
    groups: dict[tuple[int, Optimizer], list[int]] = defaultdict(list)
    for position, row in enumerate(rows):
        groups[row.batch_size, row.optimizer].append(position)
    for (batch_size, optimizer), positions in groups.items():
        yield np.array(positions), [rows[i].tables for i in positions], batch_size, optimizer


def _by_heaviest_table(rows: Sequence[ComputeMeasurement]) -> Positions:
    """A number for each row, the same where the table that moves the most bytes is, at any width and precision; [N].

    All rows that share some table hang together: they are most of the campaign. What a combination costs, and so its
    error, is mostly its heaviest table's.
    """
    numbers: dict[Table, int] = {}
    heaviest = [max(row.tables, key=lambda table: moved_bytes(table, row.batch_size)) for row in rows]
    keys = [replace(table.nameless().sliced(0), data_type=DataType.FP32) for table in heaviest]
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys])
