"""Families of tasks: drawn alike for a seed, within what a family says, from halves of a pool that share no table."""

from dataclasses import replace

import pytest

from service.domain.deadline import Deadline
from service.domain.measurements import Split, table_half, table_part
from service.domain.plan import Problem
from service.domain.tables import DataType, Optimizer, PoolingMode
from service.profiling.pools import generated_pool
from service.search.greedy import WEIGHTS, greedy_placement
from service.search.precut import precut
from service.search.workspace import Workspace
from service.training.task_families import FAMILIES, MIXED_DIMS, SHIPPED, TaskFamily, draw_problems, pool_half
from service.usecases.validate import problem_faults
from tests.fakes import fake_models

POOL = generated_pool(400)
EVEN = TaskFamily("even", (30, 40), (8,), MIXED_DIMS, widest_share=1.0)
TIGHT = TaskFamily("tight", (10, 30), (4,), MIXED_DIMS, tightness=1.05, count_buffers=False)


def drawn(family: TaskFamily, count: int = 12, seed: int = 0) -> list[Problem]:
    return draw_problems(family, POOL, "fake", count, seed)


def space(problem: Problem) -> Workspace:
    return Workspace.of(problem, precut(problem, Deadline()), fake_models())


def test_halves_share_no_table_and_what_cost_models_are_judged_on_is_in_the_test_half() -> None:
    pool = generated_pool()
    train, test = pool_half(pool, Split.TRAIN), pool_half(pool, Split.TEST)
    assert sorted(table.name for table in (*train, *test)) == sorted(table.name for table in pool)
    assert 0.47 < len(train) / len(pool) < 0.53
    assert {table_part(table) for table in train} == {Split.TRAIN}
    assert {table_part(table) for table in test} == set(Split)
    for table in pool[:50]:
        other = replace(table.sliced(64), name="x", data_type=DataType.FP16, pooling_mode=PoolingMode.MEAN)
        assert table_half(other) is table_half(table)


@pytest.mark.parametrize("family", SHIPPED, ids=lambda family: family.name)
def test_problems_are_valid_and_within_their_family(family: TaskFamily) -> None:
    problems = drawn(family)
    for problem in problems:
        assert not problem_faults(problem)
        assert family.tables[0] <= len(problem.tables) <= family.tables[1]
        assert problem.topology.device_count in family.devices
        assert {table.embedding_dim for table in problem.tables} <= set(family.dims)
        assert len({table.data_type for table in problem.tables}) == 1
        assert problem.constraints.count_buffers is family.count_buffers
        assert len(space(problem).pieces) == len(problem.tables)
    assert {problem.global_batch_size for problem in problems} == set(family.batch_sizes)
    assert {problem.optimizer for problem in problems} == set(family.optimizers)
    assert {problem.topology.device_count for problem in problems} == set(family.devices)


def test_optimizers_and_batch_sizes_vary_where_a_family_has_several() -> None:
    several = replace(SHIPPED[0], optimizers=(Optimizer.SGD, Optimizer.ADAGRAD), batch_sizes=(512, 8_192))
    problems = drawn(several)
    assert {problem.optimizer for problem in problems} == set(several.optimizers)
    assert {problem.global_batch_size for problem in problems} == set(several.batch_sizes)


def test_the_first_problems_are_the_same_for_any_number_and_seeds_differ() -> None:
    assert drawn(SHIPPED[0], 2) == drawn(SHIPPED[0], 5)[:2]
    assert drawn(SHIPPED[0], 2) != drawn(SHIPPED[0], 2, seed=1)
    assert len({problem.tables for problem in drawn(SHIPPED[0], 5)}) == 5


def test_tables_come_once_unless_the_pool_has_too_few_and_names_are_distinct() -> None:
    family = TaskFamily("all", (30, 30), (2,), (16,), (DataType.FP32,), (Optimizer.SGD,), (512,))
    for size, times in ((30, 1), (10, 3)):
        (problem,) = draw_problems(family, POOL[:size], "fake", 1, 0)
        configurations = [replace(table, name="") for table in problem.tables]
        assert {configurations.count(each) for each in configurations} == {times}
        assert len({table.name for table in problem.tables}) == 30


def test_no_table_is_above_a_devices_fair_share_where_that_is_asked_for() -> None:
    def heaviest(problem: Problem) -> float:
        weights = [table.embedding_dim * table.pooling_factor for table in problem.tables]
        return max(weights) / sum(weights) * problem.topology.device_count

    assert max(map(heaviest, drawn(EVEN))) <= 1.0
    assert max(map(heaviest, drawn(replace(EVEN, widest_share=None)))) > 1.0
    for problem in drawn(replace(EVEN, dims=(16, 32), tables=(20, 20)), 50):
        assert 0.0 < heaviest(problem) <= 1.0
    with pytest.raises(ValueError, match=r"even: no 4 tables were found for 8 devices .* widest_share 1\.0: raise"):
        drawn(replace(EVEN, tables=(4, 4)), 1)


def test_tight_memory_holds_whole_tables_and_is_a_dead_end_for_some_heuristics() -> None:
    dead = 0
    for problem in drawn(TIGHT, 20):
        needs = [problem.memory_of(table).total for table in problem.tables]
        (limit,) = set(problem.topology.memory_bytes)
        assert limit == pytest.approx(max(*needs, 1.05 * sum(needs) / 4), abs=1)
        workspace = space(problem)
        placements = [greedy_placement(workspace, weight) for weight in WEIGHTS.values()]
        dead += any(placement is None for placement in placements)
    assert dead > 0


def test_ample_memory_holds_all_tables_on_one_device() -> None:
    for problem in drawn(SHIPPED[0], 5):
        assert min(problem.topology.memory_bytes) >= sum(problem.memory_of(table).total for table in problem.tables)


def test_what_cannot_fit_is_refused_with_what_to_change() -> None:
    hopeless = replace(TIGHT, tables=(40, 40), dims=(16,), tightness=0.5)
    with pytest.raises(ValueError, match=r"tight: no 40 tables were found for 4 devices of tightness 0\.5"):
        drawn(hopeless, 1)


def test_an_empty_pool_is_refused() -> None:
    with pytest.raises(ValueError, match="mixed: there are no tables to draw from: give more"):
        draw_problems(SHIPPED[0], (), "fake", 1, 0)


def test_shipped_families_are_told_apart_by_name() -> None:
    assert len({family.name for family in SHIPPED}) == len(SHIPPED)
    assert (min(MIXED_DIMS), max(MIXED_DIMS)) == (4, 128)
    assert not any(dim % 4 for dim in MIXED_DIMS)


def test_tables_as_given_keep_their_widths_which_must_be_ones_that_the_operator_has() -> None:
    pool = [replace(table, embedding_dim=4 * (1 + i % 7)) for i, table in enumerate(generated_pool(200))]
    (problem,) = draw_problems(FAMILIES["as-given"], pool, "cpu-fbgemm", 1, seed=3)
    widths = {table.name: table.embedding_dim for table in pool}
    assert {table.embedding_dim for table in problem.tables} == {4 * k for k in range(1, 8)}
    assert all(widths[table.name.rpartition("_")[0]] == table.embedding_dim for table in problem.tables)
    odd = [replace(table, embedding_dim=10) for table in pool]
    with pytest.raises(ValueError, match="is 10 columns wide: not a multiple of 4"):
        draw_problems(FAMILIES["as-given"], odd, "cpu-fbgemm", 1, seed=3)
