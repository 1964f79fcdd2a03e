"""Hypothesis strategies for small planning problems, with memory limits that often bind."""

from hypothesis import strategies as st

from service.domain.plan import Constraints, Problem, ShardingType
from service.domain.tables import DataType, Optimizer, Table
from service.domain.topology import Topology

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
