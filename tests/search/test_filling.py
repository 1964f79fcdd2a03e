"""Devices filled column by column."""

from hypothesis import given, settings

from service.domain.deadline import Deadline
from service.domain.plan import Constraints, Problem
from service.domain.tables import Optimizer, Table
from service.domain.topology import Topology
from service.search.filling import filled
from service.search.rules import Rules
from tests.examples import examples
from tests.search import feasibility_oracle as oracle
from tests.search.strategies import bound_problems

MIB = 1 << 20


@settings(max_examples=examples(200), deadline=None)
@given(problem=bound_problems())
def test_what_is_filled_is_a_plan(problem: Problem) -> None:
    columns = filled(problem, Rules.of(problem), Deadline())
    if columns is not None:
        oracle.assert_is_a_plan(problem, [tuple(row) for row in columns.tolist()])


def test_the_last_columns_fill_the_gaps() -> None:
    tables = tuple(Table(f"t{i}", MIB, dim, 0.0) for i, dim in enumerate((40, 40, 40, 28)))
    limits = (52 * 4 * MIB, 48 * 4 * MIB, 48 * 4 * MIB)  # Exactly all columns.
    problem = Problem(tables, Topology("fake", limits), 1, Optimizer.SGD, Constraints(count_buffers=False))
    columns = filled(problem, Rules.of(problem), Deadline())
    assert columns is not None
    assert columns.sum(axis=0).tolist() == [52, 48, 48]
    assert (columns > 0).sum(axis=1).tolist() == [1, 1, 1, 3]


def test_a_passed_deadline_ends_the_filling() -> None:
    problem = Problem((Table("t", 10, 8, 0.0),), Topology("fake", (MIB,)), 1, Optimizer.SGD)
    assert filled(problem, Rules.of(problem), Deadline(at=0.0, clock=lambda: 1.0)) is None
