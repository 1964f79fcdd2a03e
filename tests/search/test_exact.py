"""The integer program against trying everything."""

import subprocess
import sys
import time
from dataclasses import replace

import pytest
from hypothesis import given, settings

from service.domain.deadline import Deadline
from service.domain.plan import Constraints, Problem
from service.domain.tables import Optimizer, Table
from service.domain.topology import Topology
from service.search.exact import columns_that_fit
from service.search.rules import Rules
from tests.examples import examples
from tests.search import feasibility_oracle as oracle
from tests.search.strategies import bound_problems

GIB = 1 << 30


@settings(max_examples=examples(150), deadline=None)
@given(problem=bound_problems())
def test_columns_are_found_exactly_where_there_are_any(problem: Problem) -> None:
    outcome = columns_that_fit(problem, Rules.of(problem), Deadline())
    assert outcome.proven
    assert (outcome.columns is not None) == oracle.fits(problem)
    if outcome.columns is not None:
        oracle.assert_is_a_plan(problem, [tuple(row) for row in outcome.columns.tolist()])


def _unpackable(tables: int, devices: int) -> Problem:
    """Tables of 6 GiB that devices of less than 9 GiB hold one of, or one and nothing of another, cut in halves."""
    specs = tuple(Table(f"t{i}", 25_165_824 + 997 * i, 64, 1.0) for i in range(tables))
    constraints = Constraints(min_shard_dim=32, count_buffers=False)
    return Problem(specs, Topology("fake", (89 * GIB // 10,) * devices), 64, Optimizer.SGD, constraints)


def test_one_table_too_many_is_proven_though_each_may_be_halved() -> None:
    problem = _unpackable(9, 8)
    outcome = columns_that_fit(problem, Rules.of(problem), Deadline())
    assert (outcome.columns, outcome.proven) == (None, True)


def test_the_same_columns_are_found_again() -> None:
    problem = replace(_unpackable(8, 8), constraints=Constraints(count_buffers=False, max_shard_dim=16))
    first, second = (columns_that_fit(problem, Rules.of(problem), Deadline()).columns for _ in range(2))
    assert first is not None
    assert second is not None
    assert (first == second).all()


def test_bytes_that_leave_no_room_to_round_are_exact() -> None:
    tables = (Table("a", 2**40 - 1, 64, 0.0), Table("b", 2**40 - 3, 64, 0.0))
    constraints = Constraints(column_multiple=32, count_buffers=False)
    need = (2**40 - 1) * 256 + (2**40 - 3) * 256
    problem = Problem(tables, Topology("fake", (need // 2, need // 2)), 1, Optimizer.SGD, constraints)
    outcome = columns_that_fit(problem, Rules.of(problem), Deadline())
    assert outcome.columns is not None
    assert outcome.columns.tolist() == [[32, 32], [32, 32]]
    less = replace(problem, topology=Topology("fake", (need // 2, need // 2 - 1)))
    outcome = columns_that_fit(less, Rules.of(less), Deadline())
    assert (outcome.columns, outcome.proven) == (None, True)


@pytest.mark.parametrize("work", [0.0, 0.001])
def test_too_little_work_is_no_proof(work: float) -> None:
    problem = _unpackable(17, 16)
    outcome = columns_that_fit(problem, Rules.of(problem), Deadline(), work)
    assert (outcome.columns, outcome.proven, outcome.cut_short) == (None, False, False)


def test_no_time_and_too_large_a_program_are_no_proof() -> None:
    problem = _unpackable(9, 8)
    late = columns_that_fit(problem, Rules.of(problem), Deadline(at=0.0, clock=lambda: 0.0))
    assert (late.columns, late.proven, late.cut_short) == (None, False, True)
    large = _unpackable(101, 200)
    outcome = columns_that_fit(large, Rules.of(large), Deadline())
    assert (outcome.columns, outcome.proven, outcome.cut_short) == (None, False, False)


def test_the_deadline_ends_the_solver() -> None:
    problem = _unpackable(17, 16)
    began = time.monotonic()
    outcome = columns_that_fit(problem, Rules.of(problem), Deadline.after(1.5))
    assert (outcome.columns, outcome.proven, outcome.cut_short) == (None, False, True)
    assert time.monotonic() - began < 2.5


def test_planning_does_not_load_the_solver_before_it_is_needed() -> None:
    told = "import sys, service.usecases.make_plan; print('ortools' in sys.modules, 'pandas' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
