"""Quick proofs, and every refusal's remedies, against trying everything."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.deadline import Deadline
from service.domain.errors import Infeasible
from service.domain.plan import Constraints, Problem
from service.domain.tables import Optimizer, Table
from service.domain.topology import Topology
from service.search.feasibility import pieces_that_fit
from service.search.fitting import fitting
from service.search.proofs import check_feasible
from tests.search import feasibility_oracle as oracle
from tests.search.applying import applied
from tests.search.strategies import TABLE_WISE, bound_problems

MIB = 1 << 20


@settings(max_examples=300, deadline=None)
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


@settings(max_examples=200, deadline=None)
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
