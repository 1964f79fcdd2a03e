"""The simulator against one scalar at a time."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.deadline import Deadline
from service.domain.errors import NoPlanInTime
from service.domain.plan import Constraints, Problem, Shard, ShardingType, Slice
from service.domain.ports import CostModels
from service.domain.tables import Optimizer, Table
from service.domain.topology import Topology
from service.search.layout import shards_of
from service.search.simulator import simulate
from service.search.workspace import Workspace
from tests.examples import examples
from tests.fakes import FakeCommunication, FakeCompute, fake_models
from tests.search import oracle
from tests.search.strategies import TABLE_WISE, problems


@settings(max_examples=examples(60), deadline=None)
@given(problem=problems(types=TABLE_WISE), seed=st.integers(0, 99))
def test_batched_costs_equal_those_of_a_scalar_loop(problem: Problem, seed: int) -> None:
    models = fake_models()
    space = Workspace.of(problem, oracle.whole(problem), models)
    generator = np.random.default_rng(seed)
    placements = generator.integers(problem.topology.device_count, size=(5, len(problem.tables)))
    costs = simulate(space, placements)
    for n, placement in enumerate(placements.tolist()):
        parts = oracle.device_parts(problem, models, placement)
        assert costs.forward_compute[n].tolist() == [part["forward"] for part in parts]
        assert costs.backward_compute[n].tolist() == [part["backward"] for part in parts]
        assert costs.forward_wait[n].tolist() == [part["wait"] for part in parts]
        assert costs.forward_transfer[n].tolist() == [part["transfer"] for part in parts]
        assert costs.backward_comm[n].tolist() == [part["backward_comm"] for part in parts]
        assert costs.plan[n] == max(part["total"] for part in parts)


def _problem(devices: int = 2, **constraints: object) -> Problem:
    tables = (Table("a", 1000, 64, 2.0), Table("b", 5000, 32, 1.0))
    limits = Constraints(**constraints)  # type: ignore[arg-type]
    return Problem(tables, Topology("fake", (1 << 30,) * devices), 1024, Optimizer.SGD, limits)


def test_one_device_exchanges_nothing() -> None:
    problem = _problem(devices=1)
    costs = simulate(Workspace.of(problem, oracle.whole(problem), fake_models()), np.array([[0, 0]]))
    assert costs.forward_transfer.tolist() == costs.backward_comm.tolist() == costs.forward_wait.tolist() == [[0]]
    assert costs.plan[0] > 0


def test_an_empty_device_waits_for_the_slowest_and_computes_nothing() -> None:
    problem = _problem()
    (busy, idle) = simulate(Workspace.of(problem, oracle.whole(problem), fake_models()), np.array([[0, 0]])).devices(0)
    assert idle.forward_compute == idle.backward_compute == 0.0
    assert busy.forward_wait == 0.0
    assert idle.forward_wait > 0.0


def test_touching_slices_on_one_device_are_one_shard_and_priced_as_one() -> None:
    problem, models = _problem(), fake_models()
    pieces = [Slice(0, 0, 32), Slice(0, 32, 64), Slice(1, 0, 32)]
    cut, whole = Workspace.of(problem, pieces, models), Workspace.of(problem, oracle.whole(problem), models)
    together, apart = np.array([1, 1, 0]), np.array([0, 1, 0])
    assert shards_of(cut, together) == (Shard("a", 0, 64, 1), Shard("b", 0, 32, 0))
    assert shards_of(cut, apart) == (Shard("a", 0, 32, 0), Shard("a", 32, 64, 1), Shard("b", 0, 32, 0))
    both = simulate(cut, np.stack([together, apart]))
    alone = simulate(whole, np.array([[1, 0]]))
    assert both.devices(0) == alone.devices(0)
    assert both.devices(1) != both.devices(0)


def test_slices_of_a_table_on_one_device_are_one_shard_also_where_they_did_not_touch() -> None:
    problem = _problem()
    pieces = [Slice(0, 0, 20), Slice(0, 20, 44), Slice(0, 44, 64), Slice(1, 0, 32)]
    space = Workspace.of(problem, pieces, fake_models())
    shards = shards_of(space, np.array([0, 1, 0, 0]))
    assert [(shard.start, shard.stop, shard.device) for shard in shards if shard.table == "a"] == [
        (0, 40, 0),
        (40, 64, 1),
    ]


def test_merging_stops_at_the_widest_shard_allowed() -> None:
    problem = _problem(max_shard_dim=48)
    pieces = [Slice(0, start, start + 16) for start in range(0, 64, 16)] + [Slice(1, 0, 32)]
    shards = shards_of(Workspace.of(problem, pieces, fake_models()), np.zeros(5, dtype=np.int64))
    assert [(shard.start, shard.stop) for shard in shards] == [(0, 32), (32, 64), (0, 32)]


def test_slices_do_not_merge_to_a_whole_table_where_that_is_not_allowed() -> None:
    problem = _problem(sharding_types=frozenset({ShardingType.COLUMN_WISE}))
    pieces = [Slice(0, 0, 32), Slice(0, 32, 64), Slice(1, 0, 32)]
    shards = shards_of(Workspace.of(problem, pieces, fake_models()), np.zeros(3, dtype=np.int64))
    assert [shard.width for shard in shards if shard.table == "a"] == [32, 32]


def test_tables_that_differ_only_in_name_are_encoded_once() -> None:
    compute = FakeCompute()
    tables = tuple(Table(f"t{i}", 1000 + i % 2, 64, 2.0) for i in range(10))
    problem = Problem(tables, Topology("fake", (1 << 30,)), 1024, Optimizer.SGD)
    models = CostModels(compute, FakeCommunication())
    space = Workspace.of(problem, oracle.whole(problem), models)
    assert [len(call) for call in compute.encoded] == [2]
    assert space.embeddings.shape[0] == 10


def test_a_deadline_ends_the_encoding_of_many_tables() -> None:
    compute, checks = FakeCompute(), itertools.count()
    tables = tuple(Table(f"t{i}", 1000 + i, 64, 2.0) for i in range(2000))
    problem = Problem(tables, Topology("fake", (1 << 30,)), 1024, Optimizer.SGD)
    models = CostModels(compute, FakeCommunication())
    with pytest.raises(NoPlanInTime):
        Workspace.of(problem, oracle.whole(problem), models, Deadline(at=2.0, clock=lambda: float(next(checks))))
    assert 0 < sum(map(len, compute.encoded)) < 1000
