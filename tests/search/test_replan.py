"""From a running plan: within the bytes that may move, valid, and no dearer than staying where that fits."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.deadline import Deadline
from service.domain.errors import Infeasible
from service.domain.moves import held_before, moved_bytes, moves
from service.domain.plan import (
    Constraints,
    Problem,
    Running,
    Shard,
    memory_on_devices,
    tables_on_devices,
    tiling_faults,
)
from service.domain.tables import Optimizer, Table
from service.domain.topology import Topology
from service.search.algorithms import SEARCHES
from service.search.holdings import Holdings
from service.search.layout import shards_of
from service.search.moved import Moved
from service.search.neuroshard import neuroshard
from service.search.precut import precut
from service.search.proofs import check_feasible
from service.search.replan import relabelled, replan
from service.search.simulator import simulate
from service.search.workspace import Workspace
from tests.examples import examples
from tests.fakes import fake_models
from tests.search.strategies import problems

GIB = 1 << 30


def space_of(problem: Problem) -> Workspace:
    check_feasible(problem, Deadline())
    return Workspace.of(problem, precut(problem, Deadline()), fake_models())


def running_plan(problem: Problem, algorithm: str = "size_greedy", limit: int | None = None) -> tuple[Running, int]:
    found = next(search for name, search in SEARCHES.items() if name == algorithm)(space_of(problem), 0, Deadline())
    shards = shards_of(found.workspace, found.placement)
    cost = int(simulate(found.workspace, found.placement[None]).plan[0])
    return Running(problem.tables, shards, limit), cost


def replanned(problem: Problem, running: Running, algorithm: str = "neuroshard") -> tuple[tuple[Shard, ...], int, int]:
    """Shards, cost in ticks, and bytes that move."""
    search = next(search for name, search in SEARCHES.items() if name == algorithm)
    found = replan(space_of(problem), search, running, 0, Deadline())
    shards = shards_of(found.workspace, found.placement, held_before(problem, running))
    cost = int(simulate(found.workspace, found.placement[None]).plan[0])
    return shards, cost, moved_bytes(moves(problem, running, shards))


@settings(max_examples=examples(40), deadline=None)
@given(problem=problems(max_tables=6), share=st.sampled_from([0.0, 0.1, 0.5, 1.0]))
def test_moves_no_more_than_it_may_and_is_no_dearer_than_staying(problem: Problem, share: float) -> None:
    limit = int(share * sum(table.weight_bytes for table in problem.tables))
    try:
        running, before = running_plan(problem, limit=limit)
    except Infeasible:
        return
    shards, cost, moved = replanned(problem, running)
    assert moved <= limit
    assert cost <= before
    assert not tiling_faults(problem.tables, problem.topology.device_count, shards)
    for memory, most in zip(
        memory_on_devices(problem, tables_on_devices(problem, shards)), problem.topology.memory_bytes, strict=True
    ):
        assert memory.total <= most


def _problem(devices: int = 4, **constraints: object) -> Problem:
    tables = tuple(Table(f"t{i}", 20_000 * (i + 1), 64, 1.0 + (7 * i) % 10) for i in range(12))
    limits = Constraints(**constraints)  # type: ignore[arg-type]
    return Problem(tables, Topology("fake", (GIB,) * devices), 8192, Optimizer.ADAGRAD, limits)


def test_nothing_moves_where_nothing_may() -> None:
    running, cost = running_plan(_problem(), limit=0)
    shards, same, moved = replanned(_problem(), running)
    assert sorted(shards) == sorted(running.shards)
    assert (same, moved) == (cost, 0)


def test_more_bytes_never_make_a_dearer_plan_and_some_make_a_cheaper_one() -> None:
    total = sum(table.weight_bytes for table in _problem().tables)
    costs = []
    for limit in (0, total // 10, total // 2, 2 * total):
        running, _ = running_plan(_problem(), limit=limit)
        costs.append(replanned(_problem(), running)[1])
    assert costs == sorted(costs, reverse=True)
    assert costs[1] < costs[0]


def test_without_a_limit_it_is_no_dearer_than_a_plan_from_nothing() -> None:
    running, _ = running_plan(_problem())
    _, fresh = running_plan(_problem(), "auto")
    assert replanned(_problem(), running, "auto")[1] <= fresh


def test_devices_that_are_alike_are_named_so_that_little_moves() -> None:
    problem = replace(_problem(), topology=Topology("fake", (GIB, GIB, GIB, 2 * GIB)))
    found = neuroshard(space_of(problem), Deadline())
    holdings = Holdings.of(found.workspace, found.placement)
    turn = {0: 1, 1: 2, 2: 0, 3: 3}
    shards = shards_of(found.workspace, found.placement)
    running = Running(problem.tables, tuple(replace(shard, device=turn[shard.device]) for shard in shards))
    moved = Moved(holdings.catalogue, running)
    assert moved.of(holdings) > 0
    assert moved.of(relabelled(holdings, moved)) == 0


def test_columns_of_a_device_that_is_gone_move_and_new_tables_cost_nothing() -> None:
    free, _ = running_plan(_problem())
    total = sum(t.weight_bytes * 2 for t in _problem().tables)
    running = replace(free, max_moved_bytes=total // 2)
    fewer = _problem(devices=3)
    new = replace(fewer, tables=(*fewer.tables, Table("new", 50_000, 32, 4.0)))
    shards, _, moved = replanned(new, running)
    assert not tiling_faults(new.tables, 3, shards)
    gone = sum(
        next(t for t in new.tables if t.name == s.table).sliced(s.width).weight_bytes
        for s in running.shards
        if s.device == 3
    )
    assert 2 * gone <= moved <= total // 2


def test_forced_moves_above_the_limit_are_a_proof() -> None:
    running, _ = running_plan(_problem(), limit=1000)
    with pytest.raises(Infeasible) as caught:
        replanned(_problem(devices=3), running)
    gone = {shard.table for shard in running.shards if shard.device == 3}
    assert caught.value.data["reason"] == "max_moved_bytes"
    assert caught.value.data["proven"]
    assert set(caught.value.data["tables"]) == gone
    enough = caught.value.data["remedies"][0].split()[3]
    assert replanned(_problem(devices=3), replace(running, max_moved_bytes=int(enough)))[2] <= int(enough)


def test_a_pin_moves_a_table_and_separate_tables_part() -> None:
    running, _ = running_plan(_problem())
    where = {shard.table: shard.device for shard in running.shards}
    target = (where["t0"] + 1) % 4
    together = next(name for name in where if name != "t0" and where[name] == where["t5"] and name != "t5")
    asked = _problem(pin={"t0": (target,)}, separate=(("t5", together),), colocate=(("t1", "t2"),))
    shards, _, _ = replanned(asked, running)
    on = {name: {s.device for s in shards if s.table == name} for name in where}
    assert on["t0"] == {target}
    assert not on["t5"] & on[together]
    assert on["t1"] == on["t2"]
