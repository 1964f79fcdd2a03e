"""The integer program against trying everything."""


from hypothesis import given, settings

from service.domain.deadline import Deadline
from service.domain.plan import Problem
from service.search.exact import columns_that_fit
from service.search.rules import Rules
from tests.search import feasibility_oracle as oracle
from tests.search.strategies import bound_problems

GIB = 1 << 30


@settings(max_examples=150, deadline=None)
@given(problem=bound_problems())
def test_columns_are_found_exactly_where_there_are_any(problem: Problem) -> None:
    outcome = columns_that_fit(problem, Rules.of(problem), Deadline())
    assert outcome.proven
    assert (outcome.columns is not None) == oracle.fits(problem)
    if outcome.columns is not None:
        oracle.assert_is_a_plan(problem, [tuple(row) for row in outcome.columns.tolist()])
