"""Quick proofs, and every refusal's remedies, against trying everything."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.deadline import Deadline
from service.domain.errors import Infeasible
from service.domain.plan import Algorithm, Constraints, Problem
from service.domain.tables import Optimizer, Table
from service.domain.topology import Topology
from service.search.feasibility import pieces_that_fit
from service.search.precut import precut
from service.search.proofs import check_feasible
from service.usecases.make_plan import make_plan
from tests.examples import examples
from tests.fakes import fake_models
from tests.search import feasibility_oracle as oracle
from tests.search.applying import applied
from tests.search.posed import GIB, posed
from tests.search.strategies import TABLE_WISE, bound_problems, problems


def _refused(problem: Problem) -> Infeasible:
    with pytest.raises(Infeasible) as caught:
        check_feasible(problem, Deadline())
    return caught.value


def _widths(problem: Problem) -> list[int]:
    return [piece.width for piece in precut(problem, Deadline())]


@settings(max_examples=examples(300), deadline=None)
@given(problem=bound_problems())
def test_what_is_refused_has_no_plan_and_each_remedy_gives_it_one(problem: Problem) -> None:
    try:
        check_feasible(problem, Deadline())
        pieces = pieces_that_fit(problem, Deadline())
    except Infeasible as refused:
        assert refused.data["proven"]
        assert not oracle.fits(problem)
        for remedy in refused.data["remedies"]:
            changed = applied(problem, remedy)
            check_feasible(changed, Deadline())
            assert oracle.fits(changed), remedy
        return
    oracle.assert_is_a_plan(problem, oracle.rows_of(problem, pieces.slices, pieces.devices))


@settings(max_examples=examples(200), deadline=None)
@given(problem=bound_problems(), tightness=st.sampled_from([0.99, 0.7, 0.2]))
def test_the_shortfall_of_all_memory_is_exact(problem: Problem, tightness: float) -> None:
    least = sum(oracle.least_bytes(problem, table) for table in problem.tables if _may_be_placed(problem, table))
    if not all(_may_be_placed(problem, table) for table in problem.tables):
        return
    devices = problem.topology.device_count
    held = max(1, int(least * tightness / devices))
    short = replace(problem, constraints=replace(problem.constraints, separate=()))
    short = replace(short, topology=Topology("fake", (held,) * devices))
    with pytest.raises(Infeasible) as caught:
        check_feasible(short, Deadline())
    assert caught.value.data["reason"] == "total_memory"
    assert caught.value.data["shortfall_bytes"] == least - held * devices


def _may_be_placed(problem: Problem, table: Table) -> bool:
    return bool(oracle.allowed_widths(problem.constraints, table.embedding_dim))


def test_total_memory_says_the_exact_shortfall_and_what_would_be_needed() -> None:
    tables = tuple(Table(f"t{i}", 62_914_560, 128, 1.0) for i in range(3))
    problem = Problem(tables, Topology("fake", (32 * GIB,) * 2), 512, Optimizer.SGD, Constraints(count_buffers=False))
    with pytest.raises(Infeasible) as e:
        check_feasible(problem, Deadline())
    assert e.value.detail == f"tables need 90.0 GiB, devices hold 64.0 GiB: short of 26.0 GiB ({26 * GIB} bytes)"
    assert e.value.data["reason"] == "total_memory"
    assert e.value.data["proven"]
    assert e.value.data["shortfall_bytes"] == 26 * GIB
    # Two tables of 30 GiB must share a device: half of all, 45 GiB each, would not do.
    assert e.value.data["remedies"] == [
        f"60.0 GiB ({60 * GIB} bytes) of memory on each of the 2 devices are enough",
        f"3 devices of 32.0 GiB ({32 * GIB} bytes) are enough",
    ]


@settings(max_examples=examples(80), deadline=None)
@given(problem=problems(max_tables=6), tightness=st.sampled_from([0.9, 0.5, 0.1, 0.01]))
def test_what_is_said_to_be_enough_where_memory_is_short_is_enough(problem: Problem, tightness: float) -> None:
    need = sum(problem.memory_of(table).total for table in problem.tables)
    devices = problem.topology.device_count
    short = replace(problem, topology=Topology("fake", (max(1, int(need * tightness / devices)),) * devices))
    with pytest.raises(Infeasible) as caught:
        make_plan(short, fake_models(), Algorithm.SIZE_GREEDY, 0, Deadline())
    if caught.value.data["reason"] != "total_memory":
        return
    for remedy in caught.value.data["remedies"]:
        changed = applied(short, remedy)
        assert make_plan(changed, fake_models(), Algorithm.SIZE_GREEDY, 0, Deadline()).shards


def test_no_number_of_devices_is_named_that_no_request_may_have() -> None:
    problem = Problem((Table("t", 10**9, 4, 1.0),), Topology("fake", (1,)), 512, Optimizer.SGD)
    with pytest.raises(Infeasible) as caught:
        check_feasible(problem, Deadline())
    assert not any("devices of" in remedy for remedy in caught.value.data["remedies"])


def test_buffers_and_optimizer_state_count_towards_the_shortfall() -> None:
    table = Table("t", 1000, 64, 2.0)
    problem = Problem((table,), Topology("fake", (1000 * 64 * 4,)), 128, Optimizer.ADAM)
    with pytest.raises(Infeasible) as caught:
        check_feasible(problem, Deadline())
    state, pooled, indices = 1000 * 64 * 8, 2 * 128 * 64 * 4, (256 + 128 + 1) * 8
    assert caught.value.data["shortfall_bytes"] == state + pooled + indices


def test_memory_that_is_exactly_enough_is_enough() -> None:
    table = Table("t", 1000, 64, 2.0)
    loose = Problem((table, replace(table, name="u")), Topology("fake", (1 << 40,)), 128, Optimizer.ADAGRAD)
    need = 2 * loose.memory_of(table).total
    check_feasible(replace(loose, topology=Topology("fake", (need,))), Deadline())
    with pytest.raises(Infeasible) as caught:
        check_feasible(replace(loose, topology=Topology("fake", (need - 1,))), Deadline())
    assert caught.value.data["shortfall_bytes"] == 1


def test_an_uncut_table_that_fits_no_device_names_the_split_and_the_memory_that_would_help() -> None:
    problem = posed(Table("t0", 8 * 1024 * 1024, 64, 0.0), sharding_types=TABLE_WISE, count_buffers=False)
    data = _refused(problem).data
    assert data["reason"] == "table_exceeds_device"
    assert data["proven"]
    assert data["shortfall_bytes"] == GIB
    assert data["tables"] == ["t0"]
    assert data["remedies"][0] == "allow column_wise: t0 fits as 2 slices of 32 columns"
    assert f"({2 * GIB} bytes)" in data["remedies"][1]


def test_a_split_is_not_promised_where_its_slices_do_not_pack() -> None:
    half = 8 * 1024 * 1024
    tables = (Table("t0", half * 3 // 2, 64, 0.0), Table("t1", half // 2, 40, 0.0), Table("t2", half // 2, 40, 0.0))
    problem = posed(*tables, limits=(2 * GIB, GIB // 2), sharding_types=TABLE_WISE, count_buffers=False)
    assert not any("column_wise" in remedy for remedy in _refused(problem).data["remedies"])


def test_every_table_that_fits_nowhere_is_named() -> None:
    tables = [Table(name, 8 * 1024 * 1024, 64, 0.0) for name in ("a", "b")]
    problem = posed(*tables, Table("c", 10, 64, 0.0), limits=(GIB,) * 6, sharding_types=TABLE_WISE)
    assert _refused(problem).data["tables"] == ["a", "b"]


def test_a_table_whose_narrowest_slices_fit_no_device_is_proven_infeasible() -> None:
    table = Table("t0", 512 * 1024 * 1024, 8, 0.0)
    problem = posed(table, limits=(GIB,) * 16, min_shard_dim=4, count_buffers=False)
    data = _refused(problem).data
    assert (data["reason"], data["proven"], data["shortfall_bytes"]) == ("table_exceeds_device", True, 7 * GIB)


def test_a_table_wider_than_a_shard_may_be_needs_cuts_that_are_allowed() -> None:
    problem = posed(Table("t0", 10, 1280, 0.0), sharding_types=TABLE_WISE)
    data = _refused(problem).data
    assert data["shortfall_bytes"] == 0
    assert data["remedies"] == ["allow column_wise: t0 fits as 2 slices of 640 columns", "a max_shard_dim of 1280"]


def test_a_table_too_large_and_too_wide_is_told_both() -> None:
    rows, need = 8_322_482, 3_328_992_800  # 3.1 GiB at 100 columns, which 8 does not divide
    problem = posed(
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
    error = _refused(posed(large, wide, limits=(GIB,) * 3, sharding_types=TABLE_WISE, count_buffers=False))
    assert error.data["tables"] == ["large", "wide"]
    assert error.data["remedies"] == [
        "allow column_wise: large fits as 2 slices of 32 columns, wide fits as 2 slices of 640 columns",
        f"a max_shard_dim of 1280 and at least 2.0 GiB ({2 * GIB} bytes) of memory on a device, {GIB} bytes more",
    ]


def test_a_split_that_needs_another_multiple_is_told_with_it() -> None:
    problem = posed(
        Table("t0", 8 * 1024 * 1024, 60, 0.0), sharding_types=TABLE_WISE, column_multiple=8, count_buffers=False
    )
    assert _refused(problem).data["remedies"][0] == (
        "allow column_wise and a column_multiple of 4: t0 fits as 2 slices of 32 or 28 columns"
    )


def test_one_large_device_is_not_offered_to_two_large_tables() -> None:
    tables = [Table(name, 8 * 1024 * 1024, 64, 0.0) for name in ("a", "b")]
    error = _refused(posed(*tables, limits=(GIB,) * 4, sharding_types=TABLE_WISE, count_buffers=False))
    assert error.data["remedies"][1:] == [f"at least 2.0 GiB ({2 * GIB} bytes) of memory on each device"]


def _gibibytes(*sizes: float) -> tuple[Table, ...]:
    """Tables of 64 columns, which many GiB large each, named a, b and so on."""
    return tuple(Table(name, int(size * GIB) // 256, 64, 0.0) for name, size in zip("abcdefgh", sizes, strict=False))


def test_a_table_that_fits_only_where_it_is_not_pinned_to() -> None:
    error = _refused(
        posed(
            *_gibibytes(3, 1),
            limits=(2 * GIB, 4 * GIB),
            sharding_types=TABLE_WISE,
            count_buffers=False,
            pin={"a": (0,)},
        )
    )
    assert (error.data["reason"], error.data["shortfall_bytes"]) == ("pinned", GIB)
    assert (error.data["tables"], error.data["devices"]) == (["a"], [0])
    assert "table 'a' is pinned to device 0" in error.detail
    assert error.data["remedies"] == [
        f"1.0 GiB ({GIB} bytes) more memory on each device are enough",
        "without the pin of a",
    ]


def test_pins_that_only_together_ask_too_much_of_their_devices() -> None:
    # Each pin alone can be met, and each two of them: all three need 6.5 of the 6 GiB on devices 0 to 2.
    pin = {"a": (0, 1), "b": (1, 2), "c": (0, 2)}
    error = _refused(
        posed(*_gibibytes(2, 2, 2.5, 1), limits=(2 * GIB,) * 6, count_buffers=False, pin=pin),
    )
    assert (error.data["reason"], error.data["shortfall_bytes"]) == ("pinned", GIB // 2)
    assert (error.data["tables"], error.data["devices"]) == (["a", "b", "c"], [0, 1, 2])
    assert "tables a, b, c are pinned to devices 0, 1, 2, which hold 6.0 GiB, and need 6.5 GiB" in error.detail
    assert "without the pin of a, b, c" in error.data["remedies"]


@pytest.mark.parametrize(
    ("devices", "said"),
    [
        ((1,), "table a is pinned to device 1, which holds 2.0 GiB, and needs 6.5 GiB"),
        ((0, 1), "table a is pinned to devices 0, 1, which hold 4.0 GiB, and needs 6.5 GiB"),
    ],
)
def test_a_pinned_table_whose_slices_fit_one_by_one(devices: tuple[int, ...], said: str) -> None:
    pinned = posed(*_gibibytes(6.5), limits=(2 * GIB,) * 6, count_buffers=False, pin={"a": devices})
    assert said in _refused(pinned).detail


def test_tables_that_must_be_on_one_device_and_fit_none() -> None:
    groups = (("a", "b"), ("b", "c"))
    error = _refused(posed(*_gibibytes(1, 1, 0.5), limits=(2 * GIB,) * 4, count_buffers=False, colocate=groups))
    assert (error.data["reason"], error.data["shortfall_bytes"]) == ("colocate", GIB // 2)
    assert error.data["tables"] == ["a", "b", "c"]
    assert error.data["remedies"] == [
        f"0.5 GiB ({GIB // 2} bytes) more memory on each device are enough",
        "without colocate [a, b], [b, c]",
    ]


def test_more_tables_apart_than_devices_though_no_group_names_them_all() -> None:
    groups = (("a", "b"), ("b", "c"), ("a", "c"))
    error = _refused(posed(*_gibibytes(0.1, 0.1, 0.1), count_buffers=False, separate=groups))
    assert (error.data["reason"], error.data["tables"]) == ("separate", ["a", "b", "c"])
    assert "there are 2 devices" in error.detail
    assert error.data["remedies"] == [
        f"3 devices of 1.0 GiB ({GIB} bytes) are enough",
        "without separate [a, b], [b, c], [a, c]",
    ]


def test_tables_apart_that_pins_leave_too_few_devices() -> None:
    pin = {"a": (0, 1), "b": (0, 1), "c": (0, 1)}
    error = _refused(
        posed(
            *_gibibytes(0.1, 0.1, 0.1, 0.1),
            limits=(GIB,) * 4,
            count_buffers=False,
            separate=(("a", "b", "c", "d"),),
            pin=pin,
        )
    )
    assert (error.data["reason"], error.data["tables"], error.data["devices"]) == ("separate", ["a", "b", "c"], [0, 1])


def test_tables_apart_that_pins_leave_one_device() -> None:
    pin, apart = {"a": (1,), "b": (1,)}, (("a", "b"),)
    error = _refused(posed(*_gibibytes(0.1, 0.1), limits=(GIB,) * 2, count_buffers=False, separate=apart, pin=pin))
    assert "tables a, b must all be on different devices, and there is 1 device that they may be on" in error.detail


def test_no_shortfall_is_said_for_slices_that_would_merge_on_larger_devices() -> None:
    # Row-wise state is a GiB for each slice of 16 GiB: two on a device of 20 need two.
    table = Table("a", GIB // 4, 64, 0.0)
    problem = posed(table, limits=(65 * GIB - 1,), optimizer=Optimizer.ROWWISE_ADAGRAD, count_buffers=False)
    assert _refused(problem).data["shortfall_bytes"] == 1
