"""What constraints come to: units, devices that may take them, and units that must be apart."""

import numpy as np

from service.domain.deadline import Deadline
from service.domain.plan import Constraints, Problem
from service.domain.tables import Optimizer, Table
from service.domain.topology import Topology
from service.search.packing import Items, missing_everywhere, pack_by_rules
from service.search.rules import Presence, Rules


def _rules(tables: str, devices: int, **constraints: object) -> Rules:
    specs = tuple(Table(name, 1, 4, 0.0) for name in tables)
    return Rules.of(
        Problem(specs, Topology("fake", (1,) * devices), 1, Optimizer.SGD, Constraints(**constraints))  # type: ignore[arg-type]
    )


def test_groups_that_share_a_table_are_one_unit_and_meet_all_of_its_pins() -> None:
    rules = _rules("abcde", 4, colocate=(("e", "b"), ("a", "b")), pin={"a": (0, 1, 2), "e": (1, 2, 3), "c": (3,)})
    assert rules.units == ((0, 1, 4), (2,), (3,))
    assert rules.unit_of == (0, 0, 1, 2, 0)
    assert rules.allowed.tolist() == [[False, True, True, False], [False, False, False, True], [True] * 4]
    assert rules.bind


def test_whole_groups_are_apart_from_what_one_of_their_tables_is_apart_from() -> None:
    rules = _rules("abcd", 2, colocate=(("a", "b"),), separate=(("b", "c"), ("c", "d")))
    assert np.argwhere(rules.apart).tolist() == [[0, 1], [1, 0], [1, 2], [2, 1]]
    assert rules.cliques == ((0, 1), (1, 2))


def test_the_order_of_names_and_of_colocated_groups_changes_nothing() -> None:
    chain = (("d", "c"), ("b", "x", "a"), ("c", "b"))
    expected = _rules("abcdef", 3, colocate=chain, separate=(("a", "e", "f"),))
    found = _rules("abcdef", 3, colocate=tuple(group[::-1] for group in chain[::-1]), separate=(("f", "e", "a"),))
    assert expected.units == found.units == ((0, 1, 2, 3), (4,), (5,))
    assert expected.cliques == found.cliques == ((0, 1, 2),)


def test_names_that_no_table_has_bind_nothing() -> None:
    assert not _rules("ab", 2, pin={"x": (0,)}, colocate=(("a", "x"),), separate=(("x", "b"),)).bind


def test_presence_bars_what_must_be_apart_and_nothing_else_row_by_row() -> None:
    rules = _rules("abcde", 3, pin={"d": (0, 2)}, separate=(("a", "b"), ("b", "c"), ("c", "d")))
    present, rng = Presence(rules, 4), np.random.default_rng(0)
    here: list[list[set[int]]] = [[set() for _ in range(3)] for _ in range(4)]
    for _ in range(30):
        rows = np.flatnonzero(rng.random(4) < 0.7)
        units, devices = rng.integers(5, size=len(rows)), rng.integers(3, size=len(rows))
        legal = present.legal(rows, units)
        for row, unit, flags in zip(rows, units, legal, strict=True):
            met = [any(rules.apart[unit, other] for other in there) for there in here[row]]
            assert flags.tolist() == [bool(rules.allowed[unit, d]) and not met[d] for d in range(3)]
        present.put(rows, devices, units)
        for row, unit, device in zip(rows, units, devices, strict=True):
            here[row][device].add(int(unit))


def test_items_are_packed_by_the_rules() -> None:
    rules = _rules("abc", 3, pin={"a": (1, 2)}, separate=(("a", "b"), ("b", "c")))
    packing = pack_by_rules(Items([5, 4, 4], [0, 1, 2]), [9, 9, 4], rules, Deadline())
    assert packing.assignment is not None
    assert packing.assignment[0] in {1, 2}
    assert packing.assignment[1] not in {packing.assignment[0], packing.assignment[2]}
    late = pack_by_rules(Items([5, 4, 4], [0, 1, 2]), [9, 9, 4], rules, Deadline(at=0.0, clock=lambda: 1.0))
    assert (late.assignment, late.proven) == (None, False)
    tight = Items([5, 4, 4], [0, 1, 2])
    assert missing_everywhere(tight, [3, 3, 3], rules) == 2
    failed = pack_by_rules(tight, [3, 3, 3], rules, Deadline())
    assert (failed.assignment, failed.proven) == (None, False)
    assert missing_everywhere(Items([1, 1, 1], [0, 1, 2]), [9], _rules("abc", 1, separate=(("a", "b"),))) is None
