"""Families of placement tasks: what policies train and are judged on, drawn from a pool of tables.

The papers draw theirs alike: DreamShard (NeurIPS 2022) 20 to 100 tables of dim 16 for 4 or 8 devices, AutoShard
(KDD 2022) 80 tables of dims 16 and 32 for 8, from disjoint halves of one pool. Here widths, precisions and memory can
vary too, as requests do.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from service.domain.deadline import NEVER
from service.domain.measurements import Split, table_half
from service.domain.plan import Algorithm, Constraints, Problem
from service.domain.tables import DIM_MULTIPLE, DataType, Optimizer, Table
from service.domain.topology import Topology
from service.search.greedy import WEIGHTS
from service.search.packing import pack

MIXED_DIMS = tuple(DIM_MULTIPLE * round(2.0 ** (step / 10)) for step in range(51))
"""Multiples of 4 from 4 to 128 that follow a log-uniform law: narrow ones are there several times."""

_TRIES = 200
"""Draws of a problem's tables until they fit in memory and none is too heavy."""

_lookups = WEIGHTS[Algorithm.LOOKUP_GREEDY]


@dataclass(frozen=True, slots=True)
class TaskFamily:
    """Problems that are alike. What has several values is drawn for each problem (dims for each table), all alike.

    Attributes:
        name: what reports and manifests call it.
        tables: the fewest and the most tables.
        devices: numbers of devices.
        dims: widths of tables; one that is there several times is drawn so much more often. None for the pool's own.
        data_types: precisions, one for all tables of a problem.
        optimizers: fused optimizers.
        batch_sizes: global batch sizes.
        tightness: memory of all devices together, relative to what the tables need. None for ample memory: each
            device has room for all tables.
        widest_share: the most lookups times dim of a table, relative to a device's fair share of all tables'; None for
            any. At 1 no table alone makes a device the slowest, as far as lookups tell.
        count_buffers: whether a step's buffers count as memory.
    """

    name: str
    tables: tuple[int, int]
    devices: tuple[int, ...]
    dims: tuple[int, ...]
    data_types: tuple[DataType, ...] = (DataType.FP32, DataType.FP16)
    optimizers: tuple[Optimizer, ...] = (Optimizer.SGD,)
    batch_sizes: tuple[int, ...] = (65_536,)
    tightness: float | None = None
    widest_share: float | None = None
    count_buffers: bool = True


_SIZES, _MANY, _DEVICES = (10, 80), (30, 80), (2, 4, 8)

SHIPPED = (
    TaskFamily("mixed", _SIZES, _DEVICES, MIXED_DIMS),
    TaskFamily("mixed-even", _MANY, _DEVICES, MIXED_DIMS, widest_share=1.0),
    TaskFamily("mixed-tight", _SIZES, _DEVICES, MIXED_DIMS, tightness=1.1),
    TaskFamily("mixed-tight-weights", _SIZES, _DEVICES, MIXED_DIMS, tightness=1.3, count_buffers=False),
    TaskFamily("narrow", _SIZES, _DEVICES, (16, 32), count_buffers=False),
    TaskFamily("narrow-even", _MANY, _DEVICES, (16, 32), widest_share=1.0),
    TaskFamily("dreamshard-20", (20, 20), (4,), (16,), (DataType.FP16,), count_buffers=False),
    TaskFamily("autoshard-80", (80, 80), (8,), (16, 32), (DataType.FP32,), count_buffers=False),
)
"""What shipped policies train on, the same number of problems of each: what shipped cost models were measured for, the
papers' own families last.

One batch size and one optimizer: features of tables tell of neither, so that costs of what looks alike would differ
several times. Policies serve all of them, because what balances devices at one hardly differs from what does at others.
"""

FAMILIES = {family.name: family for family in (*SHIPPED, TaskFamily("as-given", _SIZES, _DEVICES, ()))}
"""By name; of ``as-given``, tables have the widths that the pool says."""


def pool_half(pool: Sequence[Table], half: Split) -> tuple[Table, ...]:
    """The tables of a pool that are in its train or its test half, in order; see ``table_half``."""
    return tuple(table for table in pool if table_half(table) is half)


def draw_problems(family: TaskFamily, pool: Sequence[Table], hardware: str, count: int, seed: int) -> list[Problem]:
    """Problems of a family; the first ones are the same for any number of them.

    No table of a pool is twice in a problem unless the pool has too few. In tight memory whole tables fit: what the
    devices hold is drawn again where no placement of them was found.

    Args:
        family: what the problems are like.
        pool: where tables are from; their precisions play no part, nor their dims where the family has its own.
        hardware: of the devices.
        count: how many problems.
        seed: of all that is drawn.

    Raises:
        ValueError: the pool is empty, or some problem was not found in ``_TRIES`` draws; says what to change.
    """
    if not pool:
        raise ValueError(f"{family.name}: there are no tables to draw from: give more")
    return [_problem(family, pool, hardware, np.random.default_rng([seed, n])) for n in range(count)]


def _problem(family: TaskFamily, pool: Sequence[Table], hardware: str, rng: np.random.Generator) -> Problem:
    size = int(rng.integers(family.tables[0], family.tables[1] + 1))
    devices, batch_size = int(rng.choice(family.devices)), int(rng.choice(family.batch_sizes))
    data_type = family.data_types[int(rng.integers(len(family.data_types)))]
    optimizer = family.optimizers[int(rng.integers(len(family.optimizers)))]
    constraints = Constraints(count_buffers=family.count_buffers)
    empty = Problem((), Topology(hardware, (0,) * devices), batch_size, optimizer, constraints)
    for _ in range(_TRIES):
        drawn = _shuffled(pool, rng)
        tables = [_wide(next(drawn), family.dims, rng) for _ in range(size)]
        if family.widest_share and not _lightened(tables, drawn, family.dims, family.widest_share / devices, rng):
            continue
        named = tuple(replace(t, name=f"{t.name}_{n}", data_type=data_type) for n, t in enumerate(tables))
        needs = [empty.memory_of(table).total for table in named]
        limit = sum(needs)
        if family.tightness is not None:
            limit = max(*needs, -(-int(family.tightness * sum(needs)) // devices))
        if family.tightness is None or pack(needs, (limit,) * devices, NEVER).assignment is not None:
            return replace(empty, tables=named, topology=Topology(hardware, (limit,) * devices))
    raise ValueError(
        f"{family.name}: no {size} tables were found for {devices} devices of tightness {family.tightness} and "
        f"widest_share {family.widest_share}: raise these, or the number of tables"
    )


def _wide(table: Table, dims: Sequence[int], rng: np.random.Generator) -> Table:
    """A table at one of these widths or, where there are none, at its own."""
    if dims:
        return table.sliced(int(rng.choice(dims)))
    if table.embedding_dim % DIM_MULTIPLE:
        raise ValueError(f"table {table.name} is {table.embedding_dim} columns wide: not a multiple of {DIM_MULTIPLE}")
    return table


def _shuffled(pool: Sequence[Table], rng: np.random.Generator) -> Iterator[Table]:
    """The tables of a pool in random order, over and over."""
    while True:
        for i in rng.permutation(len(pool)):
            yield pool[i]


def _lightened(
    tables: list[Table], drawn: Iterator[Table], dims: Sequence[int], most: float, rng: np.random.Generator
) -> bool:
    """Narrows the table of the most lookups times dim, or changes it where it is as narrow as any, until none is above.

    Args:
        tables: changed in place.
        drawn: other tables.
        dims: widths that there are.
        most: part of all tables' lookups times dim that one may have.
        rng: draws the widths of other tables.

    Returns:
        Whether none is above; no more tables are changed than there are, or only those without lookups would be left.
    """
    changes = 0
    while changes <= len(tables):
        weights = [_lookups(table) for table in tables]
        heaviest = int(np.argmax(weights))
        if weights[heaviest] <= most * sum(weights):
            return True
        narrower = [dim for dim in dims if dim < tables[heaviest].embedding_dim]
        if narrower:
            tables[heaviest] = tables[heaviest].sliced(max(narrower))
        else:
            tables[heaviest] = next(drawn).sliced(int(rng.choice(dims)))
            changes += 1
    return False
