"""Pricing placements that a caller brings."""

import pytest

from service.domain.errors import InvalidRequest
from service.domain.plan import Constraints, Problem, Shard, ShardingType
from service.domain.tables import Optimizer, Table
from service.domain.topology import Topology
from service.usecases.estimate import estimate
from tests.fakes import fake_models

TABLES = (Table("a", 1000, 64, 2.0), Table("b", 5000, 32, 1.0))


def _problem(limit: int = 1 << 30) -> Problem:
    return Problem(TABLES, Topology("fake", (limit, limit)), 1024, Optimizer.SGD)


def test_touching_shards_on_one_device_are_priced_as_one() -> None:
    whole = estimate(_problem(), fake_models(), [Shard("a", 0, 64, 0), Shard("b", 0, 32, 1)])
    halves = [Shard("b", 0, 32, 1), Shard("a", 32, 64, 0), Shard("a", 0, 32, 0)]
    assert estimate(_problem(), fake_models(), halves) == whole
    assert whole.shards == (Shard("a", 0, 64, 0), Shard("b", 0, 32, 1))


def test_shards_on_two_devices_are_priced_apart() -> None:
    whole = estimate(_problem(), fake_models(), [Shard("a", 0, 64, 0), Shard("b", 0, 32, 1)])
    apart = [Shard("a", 0, 32, 0), Shard("a", 32, 64, 1), Shard("b", 0, 32, 1)]
    assert estimate(_problem(), fake_models(), apart).devices != whole.devices


def test_shards_that_are_no_placement_are_refused() -> None:
    shards = [Shard("a", 0, 32, 0), Shard("c", 0, 4, 0), Shard("b", 0, 32, 7)]
    with pytest.raises(InvalidRequest) as caught:
        estimate(_problem(), fake_models(), shards)
    assert [fault.pointer for fault in caught.value.faults] == ["/shards/1/table", "/shards/2/device"]
    with pytest.raises(InvalidRequest, match="columns 32 to 64 are on no device"):
        estimate(_problem(), fake_models(), [Shard("a", 0, 32, 0), Shard("b", 0, 32, 0)])


def test_an_overfull_device_is_priced_and_named() -> None:
    shards = [Shard("a", 0, 64, 1), Shard("b", 0, 32, 1)]
    tight, loose = estimate(_problem(1000), fake_models(), shards), estimate(_problem(), fake_models(), shards)
    assert tight.max_cost_ms == loose.max_cost_ms
    excess = tight.devices[1].memory.total - 1000
    named = [sentence for sentence in tight.assumptions if "does not fit" in sentence]
    assert len(named) == 1
    assert named[0].startswith("device 1 ")
    assert f"{excess} more than its limit" in named[0]
    assert not any("does not fit" in sentence for sentence in loose.assumptions)


def test_only_a_whole_table_is_said_to_be_whole() -> None:
    only_cuts = Constraints(frozenset({ShardingType.COLUMN_WISE}), column_multiple=64)
    problem = Problem(TABLES, Topology("fake", (1 << 30, 1 << 30)), 1024, Optimizer.SGD, only_cuts)
    halves = [Shard("a", 0, 32, 0), Shard("a", 32, 64, 1), Shard("b", 0, 32, 1)]
    named = [sentence for sentence in estimate(problem, fake_models(), halves).assumptions if "whole" in sentence]
    assert named == ["table_wise is not allowed, but no cut of b is: each is placed whole"]


def test_broken_constraints_are_named() -> None:
    asked = Constraints(pin={"a": (1,)}, colocate=(("a", "b"),))
    problem = Problem(TABLES, Topology("fake", (1 << 30, 1 << 30)), 1024, Optimizer.SGD, asked)
    apart = [Shard("a", 0, 64, 0), Shard("b", 0, 32, 1)]
    named = [sentence for sentence in estimate(problem, fake_models(), apart).assumptions if "breaks" in sentence]
    assert named == [
        "a is pinned to devices [1], but is on [0]: this placement breaks the pin",
        "a, b are to be on one device together, but are on several: this placement breaks colocate",
    ]
    together = [Shard("a", 0, 64, 1), Shard("b", 0, 32, 1)]
    assert not any("breaks" in sentence for sentence in estimate(problem, fake_models(), together).assumptions)
    kept_apart = Problem(TABLES, problem.topology, 1024, Optimizer.SGD, Constraints(separate=(("a", "b"),)))
    named = [sentence for sentence in estimate(kept_apart, fake_models(), together).assumptions if "breaks" in sentence]
    assert named == ["a, b are to be kept apart, but some share a device: this placement breaks separate"]
