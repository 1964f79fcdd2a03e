"""Faults of a problem, all at once and each with its pointer."""

from dataclasses import replace

import pytest

from service.domain.plan import Constraints, Problem
from service.domain.tables import Optimizer, ReuseHistogram, Table
from service.domain.topology import Topology
from service.usecases.validate import problem_faults

SOUND = Table("t", 1000, 64, 2.0)
ONCE = (1.0, *([0.0] * 16))
NONE = (0.0,) * 17


def _problem(*tables: Table, limits: tuple[int, ...] = (1 << 30,), **constraints: object) -> Problem:
    return Problem(tables, Topology("fake", limits), 1024, Optimizer.SGD, Constraints(**constraints))  # type: ignore[arg-type]


def _pointers(problem: Problem) -> list[str]:
    return [fault.pointer for fault in problem_faults(problem)]


def test_a_sound_problem_has_no_faults() -> None:
    histogram = ReuseHistogram(1024, ONCE)
    idle = Table("idle", 10, 4, 0.0, distinct_rows=0, reuse_histogram=ReuseHistogram(1024, NONE))
    rare = Table("rare", 10, 4, 1e-9, reuse_histogram=ReuseHistogram(1024, NONE))
    full = replace(SOUND, name="full", distinct_rows=1000.0)
    once = replace(SOUND, name="once", num_embeddings=10_000, distinct_rows=2048.0, reuse_histogram=histogram)
    assert problem_faults(_problem(full, once, idle, rare)) == []


def test_no_tables_and_no_devices_are_faults() -> None:
    assert _pointers(_problem(limits=())) == ["/tables", "/devices"]


def test_a_device_without_memory_is_a_fault() -> None:
    assert _pointers(_problem(SOUND, limits=(1, 0, 1))) == ["/devices/memory_bytes/1"]


def test_every_duplicate_is_named() -> None:
    names = ["x", "y", "x", "z", "z"]
    faults = problem_faults(_problem(*(replace(SOUND, name=name) for name in names)))
    assert [(fault.pointer, fault.table) for fault in faults] == [
        ("/tables/0/name", "x"),
        ("/tables/2/name", "x"),
        ("/tables/3/name", "z"),
        ("/tables/4/name", "z"),
    ]


def test_every_dim_that_is_no_multiple_of_four_is_named() -> None:
    tables = [replace(SOUND, name=f"t{dim}", embedding_dim=dim) for dim in (1, 4, 10, 130)]
    faults = problem_faults(_problem(*tables))
    assert [(fault.pointer, fault.table) for fault in faults] == [
        ("/tables/0/embedding_dim", "t1"),
        ("/tables/2/embedding_dim", "t10"),
        ("/tables/3/embedding_dim", "t130"),
    ]


@pytest.mark.parametrize(
    ("pooling", "fractions"),
    [(2.0, NONE), (0.0, ONCE), (2.0, (0.5, *([0.0] * 16))), (2.0, (1.0,)), (2.0, (2.0, -1.0, *([0.0] * 15)))],
)
def test_histograms_that_contradict_the_lookups_or_themselves_are_faults(
    pooling: float, fractions: tuple[float, ...]
) -> None:
    table = replace(SOUND, pooling_factor=pooling, reuse_histogram=ReuseHistogram(1024, fractions))
    assert _pointers(_problem(SOUND, replace(table, name="u"))) == ["/tables/1/reuse_histogram/fractions"]


def test_lookups_of_no_distinct_row_are_a_fault() -> None:
    assert _pointers(_problem(replace(SOUND, distinct_rows=0.0))) == ["/tables/0/distinct_rows"]


def test_more_distinct_rows_than_rows_or_lookups_are_faults() -> None:
    rows = replace(SOUND, distinct_rows=1001.0)
    lookups = replace(SOUND, name="u", num_embeddings=10_000, distinct_rows=2049.0)
    other_batch = replace(lookups, name="v", distinct_rows=4096.0, reuse_histogram=ReuseHistogram(2048, ONCE))
    assert _pointers(_problem(rows, lookups, other_batch)) == ["/tables/0/distinct_rows", "/tables/1/distinct_rows"]


@pytest.mark.parametrize("multiple", [0, 2, 6])
def test_column_multiples_must_suit_the_operator(multiple: int) -> None:
    assert _pointers(_problem(SOUND, column_multiple=multiple)) == ["/constraints/column_multiple"]


def test_bounds_that_exclude_each_other_are_a_fault() -> None:
    assert _pointers(_problem(SOUND, min_shard_dim=64, max_shard_dim=32)) == ["/constraints/min_shard_dim"]


def test_some_way_of_sharding_must_be_allowed() -> None:
    assert _pointers(_problem(SOUND, sharding_types=frozenset())) == ["/constraints/sharding_types"]
