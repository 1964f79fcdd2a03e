"""Mandatory cuts and tables that fit nowhere."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.deadline import Deadline
from service.domain.errors import Infeasible, InvalidRequest
from service.domain.plan import Constraints, Problem, ShardingType
from service.domain.tables import Optimizer, Table
from service.domain.topology import Topology
from service.search.cuts import even_widths, needed_slices
from service.search.precut import precut
from service.search.proofs import check_feasible
from tests.search.posed import GIB, posed
from tests.search.strategies import COLUMN_WISE


def _widths(problem: Problem) -> list[int]:
    return [piece.width for piece in precut(problem, Deadline())]


@given(
    units=st.integers(1, 200),
    multiple=st.sampled_from([4, 8, 12]),
    narrowest=st.integers(1, 64),
    widest=st.integers(64, 512),
    types=st.sampled_from([COLUMN_WISE, frozenset(ShardingType)]),
)
def test_cuts_tile_the_table_in_legal_even_widths(
    units: int, multiple: int, narrowest: int, widest: int, types: frozenset[ShardingType]
) -> None:
    dim = 4 * units
    problem = posed(
        Table("t", 1000, dim, 1.0),
        sharding_types=types,
        column_multiple=multiple,
        min_shard_dim=narrowest,
        max_shard_dim=widest,
    )
    try:
        check_feasible(problem, Deadline())
    except Infeasible as error:
        assert dim > widest
        assert error.data["proven"]
        return
    widths = _widths(problem)
    assert sum(widths) == dim
    assert widths == sorted(widths, reverse=True)
    assert max(widths) <= widest
    if len(widths) > 1:
        assert max(widths) - min(widths) <= multiple
        assert min(widths) >= narrowest
        assert not any(width % multiple for width in widths)
    if types == COLUMN_WISE and dim % multiple == 0 and dim >= 2 * multiple * -(-narrowest // multiple):
        assert len(widths) > 1 or (dim // multiple // 2 + 1) * multiple > widest


def test_a_table_stays_whole_without_a_reason_to_cut_it() -> None:
    assert _widths(posed(Table("a", 10, 1024, 1.0), Table("b", 10, 4, 1.0))) == [1024, 4]


def test_only_column_wise_cuts_each_table_in_two_and_leaves_what_is_too_narrow() -> None:
    problem = posed(Table("a", 10, 260, 1.0), Table("b", 10, 4, 1.0), sharding_types=COLUMN_WISE)
    assert _widths(problem) == [132, 128, 4]


def test_a_table_too_large_for_any_device_is_cut_into_the_fewest_slices_that_fit() -> None:
    table = Table("a", 4 * 1024 * 1024, 160, 1.0)  # 2.5 GiB
    problem = posed(table, limits=(GIB // 2, GIB, GIB, GIB))
    assert _widths(problem) == [56, 52, 52]


def test_state_that_repeats_with_each_slice_counts() -> None:
    rows = 32 * 1024 * 1024
    plain = posed(Table("a", rows, 16, 0.0), limits=(GIB,) * 4, count_buffers=False)
    stateful = posed(
        Table("a", rows, 16, 0.0), limits=(GIB,) * 4, count_buffers=False, optimizer=Optimizer.ROWWISE_ADAGRAD
    )
    assert _widths(plain) == [8, 8]
    assert _widths(stateful) == [4, 4, 4, 4]


def test_a_request_that_comes_to_too_many_shards_is_refused_at_once() -> None:
    tables = tuple(Table(f"t{i}", 100, 65_536, 1.0) for i in range(500))
    constraints = Constraints(sharding_types=frozenset({ShardingType.COLUMN_WISE}), max_shard_dim=4)
    problem = Problem(tables, Topology("fake", (1 << 50,) * 1024), 512, Optimizer.SGD, constraints)
    with pytest.raises(InvalidRequest) as caught:
        precut(problem, Deadline())
    (fault,) = caught.value.faults
    assert (fault.pointer, fault.table) == ("/tables/0/embedding_dim", "t0")
    assert "16384 shards" in fault.message


def test_the_fewest_slices_that_fit_are_found_for_very_wide_tables() -> None:
    table = Table("t", 1_000, 65_536, 1.0)
    loose = Problem((table,), Topology("fake", (1,)), 64, Optimizer.SGD, Constraints(max_shard_dim=65_536))
    for count in (1, 2, 3, 100, 16_384):
        widest = even_widths(65_536, count, 4)[0]
        limit = loose.memory_of(table.sliced(widest)).total
        problem = replace(loose, topology=Topology("fake", (limit,)))
        assert even_widths(65_536, needed_slices(problem, table, limit), 4)[0] == widest
