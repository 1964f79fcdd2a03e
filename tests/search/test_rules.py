"""What constraints come to: units, devices that may take them, and units that must be apart."""

import time

import numpy as np

from service.domain.deadline import Deadline
from service.domain.plan import Constraints, Problem
from service.domain.tables import Optimizer, Table
from service.domain.topology import Topology
from service.search.packing import Items, missing_everywhere, pack_by_rules
from service.search.rules import Rules


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


def test_names_that_no_table_has_bind_nothing() -> None:
    assert not _rules("ab", 2, pin={"x": (0,)}, colocate=(("a", "x"),), separate=(("x", "b"),)).bind


def test_rules_on_thousands_of_tables_take_little_time() -> None:
    names = [f"t{i}" for i in range(4_000)]
    specs = tuple(Table(name, 1, 4, 0.0) for name in names)
    backwards = tuple(zip(names[1:], names[:-1], strict=True))[::-1]
    constraints = Constraints(pin=dict.fromkeys(names, (1,)), colocate=backwards)
    began = time.process_time()
    rules = Rules.of(Problem(specs, Topology("fake", (1, 1)), 1, Optimizer.SGD, constraints))
    assert time.process_time() - began < 0.5
    assert rules.units == (tuple(range(4_000)),)
    assert rules.allowed.tolist() == [[False, True]]


def test_items_are_packed_by_the_rules() -> None:
    rules = _rules("abc", 3, pin={"a": (1, 2)}, separate=(("a", "b"), ("b", "c")))
    packing = pack_by_rules(Items([5, 4, 4], [0, 1, 2]), [9, 9, 4], rules, Deadline())
    assert packing.assignment is not None
    assert packing.assignment[0] in {1, 2}
    assert packing.assignment[1] not in {packing.assignment[0], packing.assignment[2]}
    tight = Items([5, 4, 4], [0, 1, 2])
    assert missing_everywhere(tight, [3, 3, 3], rules) == 2
    failed = pack_by_rules(tight, [3, 3, 3], rules, Deadline())
    assert (failed.assignment, failed.proven) == (None, False)
    assert missing_everywhere(Items([1, 1, 1], [0, 1, 2]), [9], _rules("abc", 1, separate=(("a", "b"),))) is None
