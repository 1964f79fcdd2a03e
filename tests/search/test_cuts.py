"""Legal cuts, and finer ones where the needed pieces do not pack."""

from hypothesis import given, settings

from service.domain.deadline import Deadline
from service.domain.plan import Constraints, Problem
from service.domain.tables import Optimizer, Table
from service.domain.topology import Topology
from service.search.cuts import can_be_cut, cuts_that_pack, even_widths, items_of, needed_counts, widths_of
from service.search.packing import pack
from service.search.rules import Rules
from tests.examples import examples
from tests.search import oracle
from tests.search.strategies import problems

GIB = 1 << 30
ROWS = 2 * 1024 * 1024  # One GiB at 128 columns.


def _problem(gibibytes: list[float], limits: list[float], **constraints: object) -> Problem:
    tables = tuple(Table(f"t{i}", int(size * ROWS), 128, 1.0) for i, size in enumerate(gibibytes))
    topology = Topology("fake", tuple(int(limit * GIB) for limit in limits))
    return Problem(tables, topology, 512, Optimizer.SGD, Constraints(count_buffers=False, **constraints))  # type: ignore[arg-type]


def test_wider_slices_come_first() -> None:
    assert even_widths(260, 2, 4) == (132, 128)
    assert even_widths(1280, 3, 4) == (428, 428, 424)


@settings(max_examples=examples(200), deadline=None)
@given(problem=problems(max_tables=3))
def test_a_table_can_be_cut_exactly_where_allowed_widths_add_up_to_it(problem: Problem) -> None:
    for table in problem.tables:
        expected = oracle.can_be_cut(problem.constraints, table.embedding_dim)
        assert can_be_cut(problem.constraints, table.embedding_dim) == expected


def test_three_tables_fit_on_two_devices_once_one_is_halved() -> None:
    assert cuts_that_pack(_problem([3, 3, 3], [5, 5]), Deadline()) == [(64, 64), (128,), (128,)]


def test_a_table_that_only_the_largest_device_takes_whole_is_cut_where_another_takes_that() -> None:
    assert cuts_that_pack(_problem([50, 50], [80, 40, 40]), Deadline()) == [(64, 64), (128,)]


def test_a_table_that_was_cut_in_vain_is_whole_again() -> None:
    # Halving the second table, the largest piece by then, does not help; a third slice of the first does.
    assert cuts_that_pack(_problem([9, 6.5, 4], [10, 10]), Deadline()) == [(44, 44, 40), (128,), (128,)]


@settings(max_examples=examples(150), deadline=None)
@given(problem=problems(max_tables=6))
def test_cuts_are_the_needed_ones_or_finer_and_pack(problem: Problem) -> None:
    rules = Rules.of(problem)
    needed = widths_of(problem, needed_counts(problem, rules))
    cuts = cuts_that_pack(problem, Deadline())
    if (
        all(needed)
        and pack(items_of(problem, rules, needed).sizes, problem.topology.memory_bytes, Deadline()).assignment
    ):
        assert cuts == needed
    if cuts is None:
        return
    assert pack(items_of(problem, rules, cuts).sizes, problem.topology.memory_bytes, Deadline()).assignment is not None
    for table, widths, fewest in zip(problem.tables, cuts, needed, strict=True):
        assert sum(widths) == table.embedding_dim
        assert len(widths) >= len(fewest)
        if len(widths) > 1:
            assert not any(width % problem.constraints.column_multiple for width in widths)
            assert problem.constraints.min_shard_dim <= min(widths)
            assert max(widths) <= problem.constraints.max_shard_dim


def test_no_cuts_are_claimed_where_the_finest_do_not_pack() -> None:
    assert cuts_that_pack(_problem([3] * 5, [3.8] * 4, min_shard_dim=64), Deadline()) is None


def test_a_passed_deadline_ends_the_cutting() -> None:
    assert cuts_that_pack(_problem([3, 3, 3], [5, 5]), Deadline(at=0.0, clock=lambda: 1.0)) is None
