"""Plans under pin, colocate and separate, of all algorithms, against trying everything."""

from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.deadline import Deadline
from service.domain.errors import Infeasible
from service.domain.plan import Algorithm, Problem, tiling_faults
from service.search.algorithms import SEARCHES
from service.usecases.make_plan import make_plan
from tests.examples import examples
from tests.fakes import fake_models
from tests.search import feasibility_oracle as oracle
from tests.search.strategies import bound_problems


@settings(max_examples=examples(150), deadline=None)
@given(problem=bound_problems(), algorithm=st.sampled_from(list(SEARCHES)))
def test_a_plan_keeps_all_rules_and_is_found_exactly_where_there_is_one(problem: Problem, algorithm: Algorithm) -> None:
    try:
        plan = make_plan(problem, fake_models(), algorithm, 0, Deadline())
    except Infeasible as refused:
        assert refused.data["proven"]
        assert not oracle.fits(problem)
        return
    assert tiling_faults(problem.tables, problem.topology.device_count, plan.shards) == []
    names = [table.name for table in problem.tables]
    rows = [[0] * problem.topology.device_count for _ in names]
    for shard in plan.shards:
        rows[names.index(shard.table)][shard.device] += shard.width
    oracle.assert_is_a_plan(problem, [tuple(row) for row in rows])
    assert all(report.memory.total <= report.memory_limit_bytes for report in plan.devices)
