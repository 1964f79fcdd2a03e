"""Rows cut to memory: the largest cap by hand-computed sizes, and ids that repeat as before."""

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from service.domain.errors import MeasurementRefused
from service.domain.plan import Problem
from service.domain.reuse import reuse_profile
from service.domain.tables import Optimizer, Table
from service.domain.topology import Topology
from service.profiling.pools import generated_pool
from service.profiling.rows_cap import capped, least_rows, needed_memory, rows_cap
from service.usecases.validate import problem_faults
from tests.examples import examples

POOL = generated_pool(60)


def problem(*tables: Table) -> Problem:
    return Problem(tables, Topology("fake", (2**40,)), 256, Optimizer.SGD)


SMALL = problem(Table("a", 5_000, 16, 3.0), Table("b", 300, 64, 1.5))


def test_the_cap_is_the_most_rows_that_fit_where_the_largest_device_counts() -> None:
    # 16 columns of fp32 are 64 bytes a row; without lookups every table may be cut to a single row.
    tables = Table("a", 1_000, 16, 0.0), Table("b", 400, 16, 0.0), Table("c", 100, 16, 0.0)
    devices = [[tables[0], tables[2]], [tables[1]]]
    case = problem(*tables)
    buffers = needed_memory(devices, 256, Optimizer.SGD, shared=True) - 1_100 * 64
    assert rows_cap(case, devices, buffers + 1_100 * 64, shared=True) is None
    cut = rows_cap(case, devices, buffers + 700 * 64 + 63, shared=True)
    assert cut is not None
    assert (cut.cap, dict(cut.tables)) == (600, {"a": 1_000})
    assert [table.num_embeddings for table in capped(case, cut).tables] == [600, 400, 100]
    assert "a were cut to 600" in cut.sentence()
    assert "are of the cut tables" in cut.sentence()
    apart = rows_cap(case, devices, buffers + 700 * 64, shared=False)
    assert apart is not None
    assert (apart.cap, dict(apart.tables)) == (300, {"a": 1_000, "b": 400})


def test_shared_memory_holds_the_most_weights_and_the_most_state_of_whatever_devices() -> None:
    # Rowwise state is 4 bytes a row: the narrow table has more of it, the wide one more weights.
    narrow, wide = Table("narrow", 1_000, 4, 0.0), Table("wide", 100, 64, 0.0)
    devices = [[narrow], [wide]]
    sgd = needed_memory(devices, 256, Optimizer.SGD, shared=True)
    assert needed_memory(devices, 256, Optimizer.ROWWISE_ADAGRAD, shared=True) - sgd == 4_000
    assert sgd - needed_memory([[narrow], [replace(wide, num_embeddings=0)]], 256, Optimizer.SGD, shared=True) == 9_600


def test_what_does_not_fit_with_the_fewest_rows_is_refused_with_the_numbers() -> None:
    with pytest.raises(MeasurementRefused, match="however few rows") as refused:
        rows_cap(SMALL, [list(SMALL.tables)], 1_000, shared=True)
    fewest = [replace(table, num_embeddings=least_rows(table, 256)) for table in SMALL.tables]
    needed = needed_memory([fewest], 256, Optimizer.SGD, shared=True)
    assert refused.value.data == {"needed_bytes": needed, "limit_bytes": 1_000}


@settings(max_examples=examples(60), deadline=None)
@given(
    chosen=st.lists(st.sampled_from(POOL), min_size=1, max_size=4, unique_by=lambda table: table.name),
    told=st.lists(st.sampled_from(["all", "histogram", "distinct", "nothing"]), min_size=4, max_size=4),
    batch_size=st.sampled_from([64, 8_192, 65_536, 131_072]),
    share=st.floats(0.0, 1.0),
)
def test_cut_tables_are_sound_and_their_ids_repeat_as_before(
    chosen: list[Table], told: list[str], batch_size: int, share: float
) -> None:
    tables = tuple(_telling(table, what, batch_size) for table, what in zip(chosen, told, strict=False))
    whole = replace(problem(*tables), global_batch_size=batch_size)
    assume(not problem_faults(whole))
    fewest = [[replace(table, num_embeddings=least_rows(table, batch_size)) for table in tables]]
    least, most = (needed_memory(d, batch_size, Optimizer.SGD, shared=True) for d in (fewest, [tables]))
    cap = rows_cap(whole, [tables], int(least + share * (most - least)), shared=True)
    cut = capped(whole, cap)
    assert problem_faults(cut) == []
    assert needed_memory([cut.tables], batch_size, Optimizer.SGD, shared=True) <= least + share * (most - least)
    for before, after in zip(tables, cut.tables, strict=True):
        assert (before.num_embeddings > after.num_embeddings) == (cap is not None and before.name in cap.tables)
        was, now = reuse_profile(before, batch_size), reuse_profile(after, batch_size)
        assert now.lookups == was.lookups
        assert now.distinct == pytest.approx(was.distinct)
        if after.reuse_histogram or after == before:
            assert now.fractions == pytest.approx(was.fractions)


def test_a_table_without_a_histogram_keeps_the_one_that_it_was_taken_to_have() -> None:
    whole = replace(problem(Table("a", 40_000_000, 16, 3.0)), global_batch_size=8_192)
    limit = needed_memory([whole.tables], 8_192, Optimizer.SGD, shared=True) // 500
    cap = rows_cap(whole, [whole.tables], limit, shared=True)
    assert cap is not None
    (cut,) = capped(whole, cap).tables
    assert cut.num_embeddings < 40_000_000 // 400
    before, after = reuse_profile(whole.tables[0], 8_192), reuse_profile(cut, 8_192)
    assert before.fractions[0] > 0.8
    assert after.fractions == pytest.approx(before.fractions)
    assert after.distinct == pytest.approx(before.distinct)


def test_told_distinct_ids_that_no_zipf_law_has_are_kept_without_a_histogram() -> None:
    # As many distinct ids as lookups, where even evenly popular rows would repeat.
    whole = replace(problem(Table("a", 40_000, 16, 1.0, distinct_rows=8_192.0)), global_batch_size=8_192)
    cap = rows_cap(whole, [whole.tables], needed_memory([whole.tables], 8_192, Optimizer.SGD, True) // 2, shared=True)
    cut = capped(whole, cap)
    assert problem_faults(cut) == []
    assert cut.tables[0].num_embeddings < 40_000
    assert (cut.tables[0].distinct_rows, cut.tables[0].reuse_histogram) == (8_192.0, None)


def _telling(table: Table, what: str, batch_size: int) -> Table:
    """The table with its distinct rows, its histogram, both or neither told."""
    if what == "distinct":
        silent = replace(table, distinct_rows=None, reuse_histogram=None)
        return replace(silent, distinct_rows=reuse_profile(silent, batch_size).distinct or None)
    return replace(
        table,
        distinct_rows=table.distinct_rows if what == "all" else None,
        reuse_histogram=table.reuse_histogram if what in ("all", "histogram") else None,
    )
