"""The inputs that go wrong elsewhere, each with the outcome wanted of this planner."""

import json
from typing import Any

import pytest

from benchmarks.shared_data import SHARED
from service.domain.deadline import Deadline
from service.domain.errors import Infeasible, InvalidRequest
from service.domain.plan import Algorithm, Constraints, Problem, ShardingType
from service.domain.tables import DataType, Optimizer, Table
from service.domain.topology import Topology
from service.search.algorithms import SEARCHES
from service.usecases.make_plan import PlanResult, make_plan
from tests.fakes import fake_models

CASES = SHARED / "cases" / "planner_cases.json"

pytestmark = pytest.mark.skipif(not CASES.is_file(), reason="../shared/cases is not beside this checkout")


def _problem(case_id: str, count_buffers: bool = True) -> Problem:
    case: dict[str, Any] = next(case for case in json.loads(CASES.read_text()) if case["id"] == case_id)
    tables = tuple(
        Table(entry["name"], entry["rows"], entry["dim"], entry.get("pooling", 1.0), data_type=DataType(entry["dtype"]))
        for entry in case["tables"]
    )
    types = frozenset(ShardingType(name) for name in case.get("types", list(ShardingType)))
    return Problem(
        tables,
        Topology("fake", (case["hbm_bytes"],) * case["devices"]),
        case.get("batch", 512),
        Optimizer.SGD,
        Constraints(types, count_buffers=count_buffers),
    )


def _plan(problem: Problem, algorithm: Algorithm = Algorithm.NEUROSHARD) -> PlanResult:
    return make_plan(problem, fake_models(), algorithm, 0, Deadline())


def _refused(problem: Problem) -> Infeasible:
    with pytest.raises(Infeasible) as caught:
        _plan(problem)
    return caught.value


@pytest.mark.parametrize("algorithm", list(SEARCHES))
def test_five_tables_that_pack_only_one_way_are_planned(algorithm: Algorithm) -> None:
    plan = _plan(_problem("false_infeasible_binpack"), algorithm)
    held = [{shard.table for shard in plan.shards if shard.device == device} for device in (0, 1)]
    assert sorted(held, key=len) == [{"t0", "t1"}, {"t2", "t3", "t4"}]


def test_a_giant_reports_its_true_size() -> None:
    error = _refused(_problem("giant_2858_small", count_buffers=False))
    assert (error.data["reason"], error.data["proven"]) == ("total_memory", True)
    assert error.data["shortfall_bytes"] == 210_702_336_000 - 34_359_738_368
    assert error.data["tables"] == ["t0"]


def test_an_unsplit_table_that_is_too_big_is_told_the_split() -> None:
    error = _refused(_problem("tw_only_too_big"))
    assert (error.data["reason"], error.data["proven"]) == ("table_exceeds_device", True)
    assert error.data["tables"] == ["t0"]
    assert "allow column_wise: t0 fits as 2 slices of 32 columns" in error.data["remedies"]


def test_a_dim_of_260_is_cut_in_multiples_of_four() -> None:
    assert [shard.width for shard in _plan(_problem("dim260")).shards] == [132, 128]


def test_wide_tables_are_cut_even_on_one_device() -> None:
    plan = _plan(_problem("dim1280_3673"))
    assert [shard.width for shard in plan.shards] == [640] * 8


@pytest.mark.parametrize(
    ("case_id", "pointers"),
    [
        ("dims_not_mult4", [f"/tables/{i}/embedding_dim" for i in range(4)]),
        ("dup_names", ["/tables/0/name", "/tables/1/name"]),
        ("empty", ["/tables"]),
    ],
)
def test_contradictory_requests_name_every_fault(case_id: str, pointers: list[str]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        _plan(_problem(case_id))
    assert [fault.pointer for fault in caught.value.faults] == pointers


def test_nothing_spills_silently_out_of_device_memory() -> None:
    error = _refused(_problem("silent_uvm", count_buffers=False))
    assert error.data["reason"] == "total_memory"
    assert error.data["shortfall_bytes"] == 26 * 1024**3
    assert "tables need 90.0 GiB, devices hold 64.0 GiB: short of 26.0 GiB" in error.detail
