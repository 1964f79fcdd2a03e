"""A plan's intervals: what is predicted is inside, and errors go through a step as costs do."""

from collections.abc import Sequence
from dataclasses import fields, replace
from time import perf_counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.costs import DeviceCost, DeviceCostInterval, max_total
from service.domain.deadline import Deadline
from service.domain.errors import Infeasible
from service.domain.plan import Algorithm, Problem
from service.domain.ports import CostModels, ErrorLaw, Floats
from service.domain.tables import Optimizer, Table
from service.domain.topology import Topology
from service.usecases.intervals import PlanIntervals, plan_intervals
from service.usecases.make_plan import make_plan
from tests.cost_models.small_model import small_communication, small_model
from tests.fakes import FakeCommunication, FakeCompute, fake_models
from tests.search.strategies import problems

PARTS = [field.name for field in fields(DeviceCostInterval)]


class Sure(FakeCompute):
    """Its compute is what it says, or off by the factor ``error`` either way, all devices alike or each by itself."""

    def __init__(self, error: float = 1.0, shared: float = 0.0) -> None:
        super().__init__()
        self._error, self._shared = np.log(error), shared

    def errors(self, costs: Floats, held: Sequence[Sequence[Table]], batch_size: int, optimizer: Optimizer) -> ErrorLaw:
        ends = np.repeat([-1.0, 1.0], 50)
        return ErrorLaw(np.full((len(costs), 3), self._error), np.tile(ends, (3, 1)), self._shared)


class SureExchanges(FakeCommunication):
    """Its exchanges are what it says."""

    def errors(self, costs: Floats, widths: Floats, batch_size: int) -> ErrorLaw:
        return ErrorLaw(np.zeros(costs.shape), np.zeros((2, 10)), 0.0)


def intervals_of(costs: Sequence[DeviceCost], models: CostModels) -> PlanIntervals:
    problem = Problem((Table("t", 1000, 64, 1.0),), Topology("fake", (2**30,) * len(costs)), 1024, Optimizer.SGD)
    return plan_intervals(problem, models, [[Table("t", 1000, 64, 1.0)]] * len(costs), costs)


def stepped(compute: Sequence[float], transfer: float = 2.0) -> list[DeviceCost]:
    """Devices with this forward compute, half as much backward, and exchanges of 1 ms and ``transfer``."""
    latest = 1.5 * max(compute) + 1.0
    return [DeviceCost(c, c / 2, latest - 1.5 * c - 1.0, transfer, 1.0) for c in compute]


@settings(max_examples=60, deadline=None)
@given(problem=problems(max_tables=8), real=st.booleans())
def test_what_is_predicted_is_inside_and_the_same_plan_has_the_same_intervals(problem: Problem, real: bool) -> None:
    models = CostModels(small_model(), small_communication()) if real else fake_models()
    try:
        plan = make_plan(problem, models, Algorithm.SIZE_GREEDY, 0, Deadline())
    except Infeasible:
        return
    for report in plan.devices:
        for part in PARTS:
            low, high = getattr(report.interval, part)
            assert 0 <= low <= getattr(report.cost, part) <= high
    low, high = plan.max_cost_interval_ms
    assert low <= plan.max_cost_ms <= high
    assert max(report.interval.total[0] for report in plan.devices) <= low + 1e-3
    assert make_plan(problem, models, Algorithm.SIZE_GREEDY, 0, Deadline()) == plan


def test_without_errors_every_interval_is_the_prediction() -> None:
    costs = stepped([3.0, 2.0, 0.5])
    found = intervals_of(costs, CostModels(Sure(), SureExchanges()))
    for cost, interval in zip(costs, found.devices, strict=True):
        for part in PARTS:
            assert getattr(interval, part) == pytest.approx((getattr(cost, part),) * 2)
    assert found.max_cost_ms == pytest.approx((max_total(tuple(costs)),) * 2)


def test_an_error_of_the_slowest_device_moves_all_and_one_of_a_device_that_waits_moves_nothing() -> None:
    found = intervals_of(stepped([10.0, 1.0]), CostModels(Sure(1.25), SureExchanges()))
    slowest, waits = found.devices
    # 15 ms of compute 4/5 or 5/4 as long, and 3 ms of exchanges.
    assert slowest.total == waits.total == found.max_cost_ms == pytest.approx((15.0, 21.75))
    assert slowest.forward_compute == pytest.approx((8.0, 12.5))
    assert slowest.forward_wait == pytest.approx((0.0, 0.0))
    assert waits.forward_wait == pytest.approx((12.0 - 1.875, 18.75 - 1.2))
    assert waits.backward_compute == pytest.approx((0.4, 0.625))


def test_many_alike_devices_are_slowed_by_the_unluckiest_of_them() -> None:
    few, many = (
        intervals_of(stepped([10.0] * count), CostModels(Sure(1.25), SureExchanges())).max_cost_ms for count in (2, 256)
    )
    # Of 256 devices that err by themselves one is sure to be late, so that nothing lies below the prediction.
    assert few == pytest.approx((15.0, 21.75))
    assert many == pytest.approx((18.0, 21.75))


def test_devices_that_err_alike_are_as_sure_as_one() -> None:
    models = CostModels(Sure(1.25, shared=1.0), SureExchanges())
    one, many = (intervals_of(stepped([10.0] * count), models) for count in (2, 256))
    assert one.max_cost_ms == many.max_cost_ms == pytest.approx((15.0, 21.75))
    assert many.devices[7].forward_wait == (0.0, 0.0)


def test_one_device_exchanges_nothing() -> None:
    (device,) = intervals_of([DeviceCost(4.0, 4.0, 0.0, 0.0, 0.0)], CostModels(Sure(1.25), FakeCommunication())).devices
    assert device.total == pytest.approx((6.4, 10.0))
    assert device.forward_wait == device.forward_transfer == device.backward_comm == (0.0, 0.0)


@settings(max_examples=40, deadline=None)
@given(octaves=st.integers(1, 6), devices=st.integers(1, 4))
def test_tables_that_are_less_alike_have_wider_intervals(octaves: int, devices: int) -> None:
    models = CostModels(small_model(), small_communication())
    tables = tuple(Table(f"t{i}", 100_000, 64, 2.0) for i in range(2 * devices))
    known = Problem(tables, Topology("cpu-x", (2**40,) * devices), 8192, Optimizer.SGD)
    unseen = replace(known, tables=tuple(replace(t, num_features=2**octaves) for t in tables))
    ends = [make_plan(problem, models, Algorithm.DIM_GREEDY, 0, Deadline()).devices[0] for problem in (known, unseen)]
    ratios = [report.interval.backward_compute[1] / report.interval.backward_compute[0] for report in ends]
    novelty = [float(models.compute.novelty(p.tables, 8192, Optimizer.SGD)[0]) for p in (known, unseen)]
    if novelty[1] > max(1.0, novelty[0]):
        assert ratios[1] > ratios[0]


def test_intervals_of_256_devices_take_milliseconds() -> None:
    costs, models = stepped(np.linspace(1, 30, 256).tolist()), fake_models()
    intervals_of(costs, models)
    took = []
    for _ in range(5):
        began = perf_counter()
        intervals_of(costs, models)
        took.append(perf_counter() - began)
    assert min(took) < 0.25
