"""What every search algorithm needs, computed once for a problem and the slices to be placed."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.domain.deadline import Deadline
from service.domain.errors import NoPlanInTime
from service.domain.plan import Problem, ShardingType, Slice
from service.domain.ports import ComputeCostModel, CostModels, Embeddings
from service.domain.tables import Optimizer, Table

Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]

TICKS_PER_MS = 10_000
"""Predicted costs are rounded to whole ticks of 0.1 microseconds before anything compares them. Matrix products
differ in the last bits between processors and batch shapes; on this grid, which is far below what can be measured,
replicas nearly always see equal costs as equal and choose the same plan. Two costs on either side of a rounding edge
can still differ by a tick. From there on costs are integers, exact in any order."""

_ENCODED_BETWEEN_CLOCKS = 256
_NEVER = Deadline()


def ticks(milliseconds: NDArray[np.float64]) -> Integers:
    """Costs in milliseconds as whole ticks; same shape."""
    return np.rint(np.asarray(milliseconds, dtype=np.float64) * TICKS_PER_MS).astype(np.int64)


class TableEncoder:
    """Encodes tables for one batch size and optimizer; tables that differ only in name are encoded once."""

    def __init__(self, compute: ComputeCostModel, batch_size: int, optimizer: Optimizer) -> None:
        self._compute = compute
        self._batch_size = batch_size
        self._optimizer = optimizer
        self._known: dict[Table, Embeddings] = {}

    def encode(self, tables: Sequence[Table]) -> Embeddings:
        """Embeddings of T tables; [T, H]."""
        keys = [table.nameless() for table in tables]
        missing = list(dict.fromkeys(key for key in keys if key not in self._known))
        if missing:
            encoded = self._compute.encode(missing, self._batch_size, self._optimizer)
            self._known.update(zip(missing, encoded, strict=True))
        return np.stack([self._known[key] for key in keys])


@dataclass(frozen=True, slots=True, eq=False)
class Workspace:
    """S slices that tile a problem's tables, and what is known of each; D devices, embeddings of size H.

    Attributes:
        problem: what is planned.
        models: what prices it.
        encoder: encodes merged slices, which are wider than those placed.
        slices: sorted by table and column.
        tables: each slice as a table of its width.
        columns: columns of each slice; [S].
        embeddings: [S, H].
        memory_bytes: memory of each slice alone; [S]. Slices that are merged later need no more than their sum.
        output_widths: pooled output columns of each slice; [S].
        single_costs: predicted compute of each slice alone on a device, forward and backward, ticks; [S].
        limits: memory of each device, bytes; [D].
        widest_merged: widest shard, in columns, that a slice may become part of; [S].
        joints: positions of slices that continue the table of the slice before.
    """

    problem: Problem
    models: CostModels
    encoder: TableEncoder
    slices: tuple[Slice, ...]
    tables: tuple[Table, ...]
    columns: Integers
    embeddings: Embeddings
    memory_bytes: Integers
    output_widths: Integers
    single_costs: Integers
    limits: Integers
    widest_merged: Integers
    joints: tuple[int, ...]

    @classmethod
    def of(
        cls, problem: Problem, slices: Iterable[Slice], models: CostModels, deadline: Deadline = _NEVER
    ) -> "Workspace":
        """Computes everything that the slices' placement does not change.

        Raises:
            NoPlanInTime: the deadline passed before all slices were encoded.
        """
        ordered = tuple(sorted(slices))
        tables = tuple(problem.tables[piece.table].sliced(piece.width) for piece in ordered)
        encoder = TableEncoder(models.compute, problem.global_batch_size, problem.optimizer)
        embeddings = _encoded(encoder, tables, deadline)
        return cls(
            problem=problem,
            models=models,
            encoder=encoder,
            slices=ordered,
            tables=tables,
            columns=_integers(table.embedding_dim for table in tables),
            embeddings=embeddings,
            memory_bytes=_integers(problem.memory_of(table).total for table in tables),
            output_widths=_integers(table.output_width for table in tables),
            single_costs=ticks(models.compute.head(embeddings)).sum(axis=-1),
            limits=_integers(problem.topology.memory_bytes),
            widest_merged=_integers(_widest_merged(problem, problem.tables[piece.table]) for piece in ordered),
            joints=tuple(i for i in range(1, len(ordered)) if ordered[i].table == ordered[i - 1].table),
        )

    @property
    def device_count(self) -> int:
        """Number of devices, D."""
        return len(self.limits)


def no_plan_in_time() -> NoPlanInTime:
    """The error for a deadline that passed before any plan was found."""
    return NoPlanInTime("the time limit passed before any plan was found; a plan may still exist")


def _encoded(encoder: TableEncoder, tables: Sequence[Table], deadline: Deadline) -> Embeddings:
    chunks = []
    for first in range(0, len(tables), _ENCODED_BETWEEN_CLOCKS):
        if deadline.passed():
            raise no_plan_in_time()
        chunks.append(encoder.encode(tables[first : first + _ENCODED_BETWEEN_CLOCKS]))
    return np.concatenate(chunks)


def _integers(values: Iterable[int]) -> Integers:
    return np.fromiter(values, dtype=np.int64)


def _widest_merged(problem: Problem, table: Table) -> int:
    constraints = problem.constraints
    if ShardingType.TABLE_WISE in constraints.sharding_types:
        return constraints.max_shard_dim
    return min(constraints.max_shard_dim, table.embedding_dim - 1)
