"""Faults of a problem, all at once and each with its pointer."""

import re
import time
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


NAMED = tuple(replace(SOUND, name=name) for name in ("a", "b", "c", "d", "x/~y"))
FOUR = (1 << 30,) * 4


def _constrained(**constraints: object) -> list[tuple[str, str | None]]:
    faults = problem_faults(_problem(*NAMED, limits=FOUR, **constraints))
    for fault in faults:
        # What is wrong, and what would be right.
        assert re.search(r": (give|name|pin|take) ", fault.message), fault.message
    return [(fault.pointer, fault.table) for fault in faults]


def test_constraints_that_can_be_met_are_sound() -> None:
    pin = {"a": (0, 1), "b": (1, 2), "c": (3, 3), "x/~y": (2,)}
    assert _constrained(pin=pin, colocate=(("a", "b"), ("c", "d")), separate=(("a", "c"), ("b", "x/~y"))) == []


def test_pins_of_no_table_to_no_device_or_to_one_that_is_not_there_are_faults() -> None:
    pin = {"a": (0, 4, 1, -1), "nobody/~": (0,), "b": (), "x/~y": (9,)}
    assert _constrained(pin=pin) == [
        ("/constraints/pin/a/1", "a"),
        ("/constraints/pin/nobody~1~0", "nobody/~"),
        ("/constraints/pin/b", "b"),
        ("/constraints/pin/x~1~0y/0", "x/~y"),
    ]
    message = problem_faults(_problem(*NAMED, limits=FOUR, pin=pin))[0].message
    assert "4, -1" in message
    assert "0 to 3" in message


@pytest.mark.parametrize("field", ["colocate", "separate"])
def test_groups_name_two_different_tables_at_least(field: str) -> None:
    groups = (("a", "b"), ("c",), (), ("d", "d", "nobody"), ("a", "a"))
    assert _constrained(**{field: groups}) == [
        (f"/constraints/{field}/1", "c"),
        (f"/constraints/{field}/2", None),
        (f"/constraints/{field}/3/1", "d"),
        (f"/constraints/{field}/3/2", "nobody"),
        (f"/constraints/{field}/4/1", "a"),
        (f"/constraints/{field}/4", "a"),
    ]


def test_tables_that_are_to_be_together_and_apart_are_a_fault_also_through_chains() -> None:
    direct = _constrained(colocate=(("a", "b"),), separate=(("c", "b", "a"),))
    assert direct == [("/constraints/separate/0/2", "a")]
    chained = _constrained(colocate=(("a", "b"), ("d", "c"), ("c", "b")), separate=(("b", "x/~y"), ("a", "d")))
    assert chained == [("/constraints/separate/1/1", "d")]


def test_pins_of_tables_together_must_have_a_device_in_common() -> None:
    assert _constrained(pin={"a": (0, 1), "b": (1, 2)}, colocate=(("a", "b"),)) == []
    apart = {"a": (0, 1), "b": (1, 2), "x/~y": (0, 2), "c": (3,)}
    assert _constrained(pin=apart) == []
    chain = (("a", "b"), ("d", "x/~y"), ("d", "b"))
    assert _constrained(pin=apart, colocate=chain) == [("/constraints/pin/x~1~0y", "x/~y")]
    message = problem_faults(_problem(*NAMED, limits=FOUR, pin=apart, colocate=chain))[0].message
    assert "'x/~y' is to be together with table 'a'" in message
    assert "some of 1," in message


@pytest.mark.parametrize("pin", [{"a": (7,), "b": (0,)}, {"a": (), "b": (0,)}])
def test_pins_that_are_at_fault_by_themselves_are_said_once(pin: dict[str, tuple[int, ...]]) -> None:
    assert [table for _, table in _constrained(pin=pin, colocate=(("a", "b"),))] == ["a"]


def test_many_groups_are_checked_in_no_time() -> None:
    count = 5_000
    tables = tuple(replace(SOUND, name=f"t{i}") for i in range(count))
    chain = tuple((f"t{i}", f"t{i + 1}") for i in range(count - 1))
    began = time.process_time()
    faults = problem_faults(_problem(*tables, colocate=chain, separate=((f"t{count - 1}", "t0"),)))
    assert [fault.pointer for fault in faults] == ["/constraints/separate/0/1"]
    assert time.process_time() - began < 2.0
