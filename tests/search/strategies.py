"""Hypothesis strategies for small planning problems, with memory limits that often bind."""

from hypothesis import assume
from hypothesis import strategies as st

from service.domain.plan import Constraints, Problem, ShardingType
from service.domain.tables import DataType, Optimizer, Table
from service.domain.topology import Topology
from service.usecases.validate import problem_faults

TABLE_WISE = frozenset({ShardingType.TABLE_WISE})
COLUMN_WISE = frozenset({ShardingType.COLUMN_WISE})


@st.composite
def tables(draw: st.DrawFn, index: int) -> Table:
    return Table(
        name=f"t{index}",
        num_embeddings=draw(st.sampled_from([1, 100, 5_000, 40_000, 250_000])),
        embedding_dim=4 * draw(st.integers(1, 40)),
        pooling_factor=draw(st.sampled_from([0.0, 0.5, 1.0, 3.7, 20.0])),
        num_features=draw(st.integers(1, 2)),
        data_type=draw(st.sampled_from(list(DataType))),
    )


@st.composite
def problems(draw: st.DrawFn, max_tables: int = 8, types: frozenset[ShardingType] | None = None) -> Problem:
    count = draw(st.integers(1, max_tables))
    drawn = tuple(draw(tables(i)) for i in range(count))
    optimizer = draw(st.sampled_from(list(Optimizer)))
    constraints = Constraints(
        sharding_types=types or draw(st.sampled_from([TABLE_WISE, COLUMN_WISE, frozenset(ShardingType)])),
        column_multiple=draw(st.sampled_from([4, 8, 12])),
        min_shard_dim=draw(st.sampled_from([4, 4, 20, 40])),
        max_shard_dim=draw(st.sampled_from([1024, 1024, 64, 48])),
        count_buffers=draw(st.booleans()),
    )
    problem = Problem(drawn, Topology("fake", (1,)), 2048, optimizer, constraints)
    devices = draw(st.integers(1, 4))
    total = sum(problem.memory_of(table).total for table in drawn)
    slack = draw(st.sampled_from([1.0, 1.02, 1.1, 1.3, 2.0, 8.0]))
    skew = draw(st.sampled_from([1.0, 1.0, 1.5]))
    limit = int(total / devices * slack) + 1
    limits = (int(limit * skew), *([limit] * (devices - 1)))
    return Problem(drawn, Topology("fake", limits), 2048, optimizer, constraints)


@st.composite
def bound_problems(draw: st.DrawFn, max_tables: int = 4) -> Problem:
    """Problems small enough to try everything, with pins, colocation, separation and memory that often binds."""
    count, devices = draw(st.integers(1, max_tables)), draw(st.integers(1, 3))
    drawn = tuple(_narrow(draw, i) for i in range(count))
    names = [table.name for table in drawn]
    multiple = draw(st.sampled_from([4, 4, 8]))
    constraints = Constraints(
        sharding_types=draw(st.sampled_from([TABLE_WISE, COLUMN_WISE, frozenset(ShardingType)])),
        column_multiple=multiple,
        min_shard_dim=draw(st.sampled_from([4, 4, 8])),
        max_shard_dim=draw(st.sampled_from([1024, 12, 8])),
        count_buffers=draw(st.booleans()),
        pin=draw(st.dictionaries(st.sampled_from(names), _device_sets(devices), max_size=2)),
        colocate=draw(_groups(names)),
        separate=draw(_groups(names)),
    )
    optimizer = draw(st.sampled_from(list(Optimizer)))
    problem = Problem(drawn, Topology("fake", (1,)), 16, optimizer, constraints)
    total = sum(problem.memory_of(table).total for table in drawn)
    slack = draw(st.sampled_from([0.6, 1.0, 1.05, 1.2, 1.5, 3.0]))
    skew = draw(st.sampled_from([1.0, 1.0, 1.5]))
    limit = int(total / devices * slack) + 1
    limits = (*([limit] * (devices - 1)), int(limit * skew))
    bound = Problem(drawn, Topology("fake", limits), 16, optimizer, constraints)
    assume(not problem_faults(bound))
    return bound


def _narrow(draw: st.DrawFn, index: int) -> Table:
    rows, pooling = draw(st.sampled_from([1, 10, 50, 300])), draw(st.sampled_from([0.0, 1.0, 5.0]))
    return Table(
        f"t{index}", rows, 4 * draw(st.integers(1, 5)), pooling, data_type=draw(st.sampled_from(list(DataType)))
    )


def _device_sets(devices: int) -> st.SearchStrategy[tuple[int, ...]]:
    return st.sets(st.integers(0, devices - 1), min_size=1).map(lambda chosen: tuple(sorted(chosen)))


def _groups(names: list[str]) -> st.SearchStrategy[tuple[tuple[str, ...], ...]]:
    if len(names) == 1:
        return st.just(())
    group = st.lists(st.sampled_from(names), min_size=2, max_size=3, unique=True).map(tuple)
    return st.lists(group, max_size=2).map(tuple)
