"""Combinations of tables that a device might hold, drawn at random."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from service.domain.tables import DataType, Optimizer, Table
from service.profiling.compute_bench import needed_bytes

DIMS = {4: 0.08, 8: 0.12, 16: 0.16, 32: 0.18, 64: 0.18, 128: 0.14, 256: 0.08, 512: 0.04, 1_024: 0.02}
"""Dims and how often each is drawn: those that NeuroShard augments its pool with, and wider ones."""

BATCH_SIZES = {64: 0.04, 128: 0.04, 256: 0.05, 512: 0.07, 1_024: 0.10, 2_048: 0.10, 4_096: 0.12, 8_192: 0.14,
               16_384: 0.12, 32_768: 0.10, 65_536: 0.08, 131_072: 0.04}  # fmt: skip
"""Batch sizes and how often each is drawn; the largest take the longest and tell the least per minute."""

MAX_TABLES = 15

MOST_WORK_BYTES = 1e9
"""Most work of one step, see ``work_bytes``."""

UNUSUAL_SHARE = 0.2
"""Part of the widths and of the batch sizes that are none of those above."""

LOOKUP_BYTES = 128
"""What a lookup counts in ``work_bytes`` besides its row."""

_REDRAWS = 20


@dataclass(frozen=True, slots=True)
class Combination:
    """Tables of one device, and the batch and the optimizer that they are measured with."""

    tables: tuple[Table, ...]
    batch_size: int
    optimizer: Optimizer


def drawn_combination(
    rng: np.random.Generator, pool: Sequence[Table], optimizer: Optimizer, data_type: DataType, memory_bytes: int
) -> Combination:
    """Up to ``MAX_TABLES`` tables of a pool, within memory and work, and a batch size; none where none fits."""
    batch_size = drawn_batch_size(rng)
    wanted = int(rng.integers(1, MAX_TABLES + 1))
    tables = drawn_tables(rng, pool, wanted, data_type, batch_size, optimizer, memory_bytes, MOST_WORK_BYTES)
    return Combination(tables, batch_size, optimizer)


def random_combination(
    rng: np.random.Generator,
    pool: Sequence[Table],
    optimizers: Sequence[Optimizer],
    data_types: Sequence[DataType],
    memory_bytes: int,
) -> Combination:
    """A combination of a pool's tables with any of these optimizers and precisions; no tables where none fits."""
    optimizer = optimizers[int(rng.integers(len(optimizers)))]
    data_type = data_types[int(rng.integers(len(data_types)))]
    return drawn_combination(rng, pool, optimizer, data_type, memory_bytes)


def drawn_tables(
    rng: np.random.Generator,
    pool: Sequence[Table],
    wanted: int,
    data_type: DataType,
    batch_size: int,
    optimizer: Optimizer,
    memory_bytes: float,
    most_work_bytes: float,
) -> tuple[Table, ...]:
    """``wanted`` tables of a pool, each with a random dim; fewer where memory or the work of a step is used up."""
    tables: list[Table] = []
    left, work = memory_bytes, most_work_bytes
    for _ in range(wanted):
        for _ in range(_REDRAWS):
            table = replace(pool[int(rng.integers(len(pool)))].sliced(_width(rng)), data_type=data_type)
            need, moved = needed_bytes([table], batch_size, optimizer), work_bytes([table], batch_size)
            if need <= left and moved <= work:
                tables.append(table)
                left, work = left - need, work - moved
                break
    return tuple(tables)


def work_bytes(tables: Sequence[Table], batch_size: int) -> float:
    """About what a step moves: combinations above ``MOST_WORK_BYTES`` take many seconds and tell little more."""
    return sum(table.lookups(batch_size) * (LOOKUP_BYTES + 4.0 * table.embedding_dim) for table in tables)


def drawn_batch_size(rng: np.random.Generator) -> int:
    """A batch size as ``BATCH_SIZES`` has them; a fifth of them are others between the smallest and the largest."""
    sizes, weights = zip(*BATCH_SIZES.items(), strict=True)
    drawn = int(rng.choice(sizes, p=weights))
    if rng.uniform() >= UNUSUAL_SHARE:
        return drawn
    return round(float(2 ** rng.uniform(np.log2(min(sizes)), np.log2(max(sizes)))))


def _width(rng: np.random.Generator) -> int:
    dims, weights = zip(*DIMS.items(), strict=True)
    drawn = int(rng.choice(dims, p=weights))
    if rng.uniform() >= UNUSUAL_SHARE:
        return drawn
    return 4 * round(float(2 ** rng.uniform(0.0, np.log2(max(dims) // 4))))
