"""Complete packing against trying everything."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.deadline import Deadline
from service.domain.plan import Problem
from service.domain.tables import Optimizer, Table
from service.domain.topology import Topology
from service.search.packing import Items, missing_everywhere, pack
from service.search.rules import Rules
from tests.examples import examples
from tests.search import oracle

GIB = 1 << 30


def _no_rules(units: int, devices: int) -> Rules:
    tables = tuple(Table(f"t{i}", 1, 4, 0.0) for i in range(units))
    return Rules.of(Problem(tables, Topology("fake", (1,) * devices), 1, Optimizer.SGD))


def _assert_fits(sizes: list[int], limits: list[int], assignment: tuple[int, ...]) -> None:
    room = list(limits)
    for size, chosen in zip(sizes, assignment, strict=True):
        room[chosen] -= size
    assert min(room) >= 0


@settings(max_examples=examples(300), deadline=None)
@given(sizes=st.lists(st.integers(1, 12), max_size=7), limits=st.lists(st.integers(1, 22), min_size=1, max_size=3))
def test_finds_an_assignment_exactly_where_there_is_one(sizes: list[int], limits: list[int]) -> None:
    packing = pack(sizes, limits, Deadline())
    assert packing.proven
    assert (packing.assignment is not None) == oracle.packs(sizes, limits)
    if packing.assignment is not None:
        _assert_fits(sizes, limits, packing.assignment)


@given(sizes=st.lists(st.integers(1, 12), max_size=12), limits=st.lists(st.integers(1, 22), min_size=1, max_size=4))
def test_the_memory_said_to_be_enough_is_enough(sizes: list[int], limits: list[int]) -> None:
    missing = missing_everywhere(Items(sizes, range(len(sizes))), limits, _no_rules(len(sizes), len(limits)))
    assert missing is not None
    raised = [limit + missing for limit in limits]
    packing = pack(sizes, raised, Deadline())
    assert packing.assignment is not None
    _assert_fits(sizes, raised, packing.assignment)


def test_finds_the_two_and_three_tables_that_balancing_heuristics_miss() -> None:
    sizes = [size * GIB for size in (5, 5, 4, 3, 3)]
    assignment = pack(sizes, [int(10.05 * GIB)] * 2, Deadline()).assignment
    assert assignment is not None
    assert assignment[0] == assignment[1]
    assert len({assignment[i] for i in (2, 3, 4)}) == 1
    assert assignment[0] != assignment[2]


def test_proves_quickly_that_one_item_too_many_does_not_fit() -> None:
    packing = pack([6] * 17, [10] * 16, Deadline(), node_budget=2_000)
    assert packing.assignment is None
    assert packing.proven


def test_states_that_failed_once_are_not_searched_again() -> None:
    sizes = [11, 15, 7, 7, 9, 15, 11, 9, 7, 12, 15, 8, 12, 9, 9, 9, 15, 9, 12, 15, 9, 11, 12, 11]
    packing = pack(sizes, [37] * 7, Deadline(), node_budget=20_000)
    assert packing == type(packing)(None, proven=True)


@settings(max_examples=examples(200), deadline=None)
@given(data=st.data(), limits=st.lists(st.integers(5, 40), min_size=1, max_size=6))
def test_bins_that_can_be_filled_exactly_are_never_proven_too_small(data: st.DataObject, limits: list[int]) -> None:
    sizes: list[int] = []
    for limit in limits:
        cuts = data.draw(st.sets(st.integers(1, limit - 1), max_size=4))
        edges = [0, *sorted(cuts), limit]
        sizes += [stop - start for start, stop in pairwise(edges)]
    packing = pack(data.draw(st.permutations(sizes)), limits, Deadline(), node_budget=20_000)
    assert packing.assignment is not None or not packing.proven


def test_thousands_of_items_pack_without_deep_recursion() -> None:
    sizes = [1 + i % 7 for i in range(4000)]
    limit = -(-sum(sizes) // 64)
    packing = pack(sizes, [limit] * 64, Deadline())
    assert packing.assignment is not None
    _assert_fits(sizes, [limit] * 64, packing.assignment)


def test_a_hard_case_ends_at_the_node_budget_and_claims_nothing() -> None:
    sizes = [2 * (1000 + (i * i * 7919) % 977) for i in range(40)]
    limit = sum(sizes) // 8 + 1 - sum(sizes) // 8 % 2  # Odd sums are out of reach of even sizes.
    packing = pack(sizes, [limit] * 8, Deadline(), node_budget=500)
    assert packing == type(packing)(None, proven=False)


def test_a_passed_deadline_ends_the_search_and_claims_nothing() -> None:
    sizes = [2 * (1000 + (i * i * 7919) % 977) for i in range(40)]
    limit = sum(sizes) // 8 + 1 - sum(sizes) // 8 % 2
    packing = pack(sizes, [limit] * 8, Deadline(at=0.0, clock=lambda: 1.0))
    assert packing == type(packing)(None, proven=False)
