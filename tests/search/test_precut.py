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
from tests.search.strategies import COLUMN_WISE, TABLE_WISE

GIB = 1 << 30


def _problem(
    *tables: Table,
    limits: tuple[int, ...] = (GIB, GIB),
    optimizer: Optimizer = Optimizer.SGD,
    **constraints: object,
) -> Problem:
    return Problem(tables, Topology("fake", limits), 64, optimizer, Constraints(**constraints))  # type: ignore[arg-type]


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
    problem = _problem(
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
    assert _widths(_problem(Table("a", 10, 1024, 1.0), Table("b", 10, 4, 1.0))) == [1024, 4]


def test_only_column_wise_cuts_each_table_in_two_and_leaves_what_is_too_narrow() -> None:
    problem = _problem(Table("a", 10, 260, 1.0), Table("b", 10, 4, 1.0), sharding_types=COLUMN_WISE)
    assert _widths(problem) == [132, 128, 4]


def test_a_table_too_large_for_any_device_is_cut_into_the_fewest_slices_that_fit() -> None:
    table = Table("a", 4 * 1024 * 1024, 160, 1.0)  # 2.5 GiB
    problem = _problem(table, limits=(GIB // 2, GIB, GIB, GIB))
    assert _widths(problem) == [56, 52, 52]


def test_state_that_repeats_with_each_slice_counts() -> None:
    rows = 32 * 1024 * 1024
    plain = _problem(Table("a", rows, 16, 0.0), limits=(GIB,) * 4, count_buffers=False)
    stateful = _problem(
        Table("a", rows, 16, 0.0), limits=(GIB,) * 4, count_buffers=False, optimizer=Optimizer.ROWWISE_ADAGRAD
    )
    assert _widths(plain) == [8, 8]
    assert _widths(stateful) == [4, 4, 4, 4]


def test_an_uncut_table_that_fits_no_device_names_the_split_and_the_memory_that_would_help() -> None:
    problem = _problem(Table("t0", 8 * 1024 * 1024, 64, 0.0), sharding_types=TABLE_WISE, count_buffers=False)
    with pytest.raises(Infeasible) as caught:
        check_feasible(problem, Deadline())
    data = caught.value.data
    assert data["reason"] == "table_exceeds_device"
    assert data["proven"]
    assert data["shortfall_bytes"] == GIB
    assert data["tables"] == ["t0"]
    assert data["remedies"][0] == "allow column_wise: t0 fits as 2 slices of 32 columns"
    assert f"({2 * GIB} bytes)" in data["remedies"][1]


def test_a_split_is_not_promised_where_its_slices_do_not_pack() -> None:
    half = 8 * 1024 * 1024
    tables = (Table("t0", half * 3 // 2, 64, 0.0), Table("t1", half // 2, 40, 0.0), Table("t2", half // 2, 40, 0.0))
    problem = _problem(*tables, limits=(2 * GIB, GIB // 2), sharding_types=TABLE_WISE, count_buffers=False)
    with pytest.raises(Infeasible) as caught:
        check_feasible(problem, Deadline())
    assert not any("column_wise" in remedy for remedy in caught.value.data["remedies"])


def test_every_table_that_fits_nowhere_is_named() -> None:
    tables = [Table(name, 8 * 1024 * 1024, 64, 0.0) for name in ("a", "b")]
    problem = _problem(*tables, Table("c", 10, 64, 0.0), limits=(GIB,) * 6, sharding_types=TABLE_WISE)
    with pytest.raises(Infeasible) as caught:
        check_feasible(problem, Deadline())
    assert caught.value.data["tables"] == ["a", "b"]


def test_a_table_whose_narrowest_slices_fit_no_device_is_proven_infeasible() -> None:
    table = Table("t0", 512 * 1024 * 1024, 8, 0.0)
    problem = _problem(table, limits=(GIB,) * 16, min_shard_dim=4, count_buffers=False)
    with pytest.raises(Infeasible) as caught:
        check_feasible(problem, Deadline())
    data = caught.value.data
    assert (data["reason"], data["proven"], data["shortfall_bytes"]) == ("table_exceeds_device", True, 7 * GIB)


def test_a_table_wider_than_a_shard_may_be_needs_cuts_that_are_allowed() -> None:
    problem = _problem(Table("t0", 10, 1280, 0.0), sharding_types=TABLE_WISE)
    with pytest.raises(Infeasible) as caught:
        check_feasible(problem, Deadline())
    data = caught.value.data
    assert data["shortfall_bytes"] == 0
    assert data["remedies"] == ["allow column_wise: t0 fits as 2 slices of 640 columns", "a max_shard_dim of 1280"]


def _refused(problem: Problem) -> Infeasible:
    with pytest.raises(Infeasible) as caught:
        check_feasible(problem, Deadline())
    return caught.value


def test_a_table_too_large_and_too_wide_is_told_both() -> None:
    rows, need = 8_322_482, 3_328_992_800  # 3.1 GiB at 100 columns, which 8 does not divide
    problem = _problem(
        Table("t0", rows, 100, 0.0),
        limits=(2 * GIB, 2 * GIB),
        column_multiple=8,
        max_shard_dim=64,
        count_buffers=False,
    )
    error = _refused(problem)
    assert error.data["remedies"] == [
        "a column_multiple of 4: t0 fits as 2 slices of 52 or 48 columns",
        f"a max_shard_dim of 100 and at least 3.1 GiB ({need} bytes) of memory on a device, "
        f"{need - 2 * GIB} bytes more",
    ]
    assert "uncut needs 3.1 GiB" in error.detail
    assert "100 columns wide" in error.detail
    roomy = replace(problem, topology=Topology("fake", (need, 2 * GIB)))
    assert _refused(roomy).data["remedies"][-1] == "a max_shard_dim of 100"
    assert _widths(replace(roomy, constraints=replace(problem.constraints, max_shard_dim=100))) == [100]
    assert _widths(replace(problem, constraints=replace(problem.constraints, column_multiple=4))) == [52, 48]


def test_the_remedy_covers_the_largest_and_the_widest_of_several_tables() -> None:
    large, wide = Table("large", 8 * 1024 * 1024, 64, 0.0), Table("wide", 10, 1280, 0.0)  # 2 GiB and 50 KiB
    error = _refused(_problem(large, wide, limits=(GIB,) * 3, sharding_types=TABLE_WISE, count_buffers=False))
    assert error.data["tables"] == ["large", "wide"]
    assert error.data["remedies"] == [
        "allow column_wise: large fits as 2 slices of 32 columns, wide fits as 2 slices of 640 columns",
        f"a max_shard_dim of 1280 and at least 2.0 GiB ({2 * GIB} bytes) of memory on a device, {GIB} bytes more",
    ]


def test_a_split_that_needs_another_multiple_is_told_with_it() -> None:
    problem = _problem(
        Table("t0", 8 * 1024 * 1024, 60, 0.0), sharding_types=TABLE_WISE, column_multiple=8, count_buffers=False
    )
    assert _refused(problem).data["remedies"][0] == (
        "allow column_wise and a column_multiple of 4: t0 fits as 2 slices of 32 or 28 columns"
    )


def test_one_large_device_is_not_offered_to_two_large_tables() -> None:
    tables = [Table(name, 8 * 1024 * 1024, 64, 0.0) for name in ("a", "b")]
    error = _refused(_problem(*tables, limits=(GIB,) * 4, sharding_types=TABLE_WISE, count_buffers=False))
    assert error.data["remedies"] == [f"at least 2.0 GiB ({2 * GIB} bytes) of memory on each device"]


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
