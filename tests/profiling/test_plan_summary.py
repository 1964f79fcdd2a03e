"""Predicted beside measured, summarised by hand-computed values."""

import numpy as np
import pytest
from numpy.typing import NDArray

from service.domain.costs import DeviceCost
from service.profiling.plan_summary import (
    LEAST_REPEATS,
    DeviceComparison,
    PlanComparison,
    errors,
    ordering,
    spread,
    summary_of,
)


def test_errors_are_relative_to_what_was_measured() -> None:
    found = errors([11.0, 9.0, 15.0], [10.0, 10.0, 10.0])
    assert found.count == 3
    assert found.mape == pytest.approx((0.1 + 0.1 + 0.5) / 3)
    assert found.bias == pytest.approx(0.5 / 3)


def test_spread_is_the_interquartile_range_over_the_median() -> None:
    assert spread(np.array([8.0, 9.0, 10.0, 11.0, 12.0])) == pytest.approx(0.2)
    assert spread(np.zeros(5)) == 0.0


def repeated(*costs: float, repeats: int = 9) -> NDArray[np.float64]:
    """Plans that cost these, with drift that hits all of them alike."""
    drift = np.linspace(0.0, 3.0, repeats)
    return np.array(costs)[:, None] + drift


def test_orders_are_compared_pair_by_pair() -> None:
    found = ordering(["x", "y", "z"], [1.0, 2.0, 3.0], repeated(5.0, 4.0, 6.0))
    assert found.by_prediction == ("x", "y", "z")
    assert found.by_measurement == ("y", "x", "z")
    assert (found.pairs, found.pairs_ordered_the_same) == (3, 2)
    assert (found.pairs_within_noise, found.pairs_predicted_alike) == (0, 0)
    assert not found.best_picked
    assert found.regret_ms == pytest.approx(1.0)


def test_plans_that_differ_by_less_than_the_noise_are_not_told_apart() -> None:
    costs = repeated(100.0, 99.7, 120.0)
    costs[0] += np.array([-5, 5, -5, 5, -5, 5, -5, 5, 5])
    found = ordering(["x", "y", "z"], [1.0, 2.0, 3.0], costs)
    assert found.by_measurement == ("y", "x", "z")
    assert (found.pairs, found.pairs_ordered_the_same, found.pairs_within_noise) == (2, 2, 1)
    assert (found.best_picked, found.regret_ms) == (True, 0.0)


def test_one_repeat_of_ten_may_contradict_the_others_and_two_may_not() -> None:
    costs = repeated(1.0, 2.0, repeats=10)
    costs[0, 0] += 5.0
    assert ordering(["x", "y"], [2.0, 1.0], costs).regret_ms == pytest.approx(np.diff(np.median(costs, axis=1))[0])
    costs[0, 1] += 5.0
    assert ordering(["x", "y"], [2.0, 1.0], costs).pairs_within_noise == 1


def test_few_repeats_tell_nothing_apart() -> None:
    enough, few = (repeated(1.0, 2.0, repeats=repeats) for repeats in (LEAST_REPEATS, LEAST_REPEATS - 1))
    assert ordering(["x", "y"], [1.0, 2.0], enough).pairs == 1
    assert ordering(["x", "y"], [1.0, 2.0], few).pairs_within_noise == 1


@pytest.mark.parametrize("names", [("x", "y", "z"), ("y", "x", "z")])
def test_plans_that_the_prediction_does_not_tell_apart_are_counted_apart_in_any_order(names: tuple[str, ...]) -> None:
    measured = {"x": 4.0, "y": 5.0, "z": 6.0}
    predicted = {"x": 1.0, "y": 1.0, "z": 3.0}
    found = ordering(names, [predicted[n] for n in names], repeated(*(measured[n] for n in names)))
    assert (found.pairs, found.pairs_ordered_the_same, found.pairs_predicted_alike) == (2, 2, 1)
    assert not found.best_picked
    assert found.regret_ms == pytest.approx(1.0)


def comparison(name: str, *devices: tuple[DeviceCost, DeviceCost], fits: bool = True) -> PlanComparison:
    """A plan whose repeats are all alike."""
    costs = (max(measured.total for _, measured in devices),) * 9
    compared = tuple(DeviceComparison(p, m, m.total, 0.0) for p, m in devices)
    return PlanComparison(name, compared, costs, costs, fits, (), (0.0, 1000.0))


def test_plans_that_do_not_fit_have_no_place_in_the_order() -> None:
    costs = [DeviceCost(ms, 0.0, 0.0, 0.0, 0.0) for ms in (1.0, 2.0, 3.0)]
    plans = [comparison(name, (cost, cost), fits=name != "y") for name, cost in zip("xyz", costs, strict=True)]
    order = summary_of(plans).order
    assert order is not None
    assert order.by_measurement == ("x", "z")
    assert summary_of(plans).plan.count == 3
    assert summary_of(plans[:2]).order is None


def test_the_summary_leaves_out_the_compute_of_empty_devices() -> None:
    empty = DeviceCost(0.0, 0.0, 3.0, 1.0, 0.0)
    plan = comparison("x", (DeviceCost(1.0, 2.0, 0.0, 1.0, 0.0), DeviceCost(2.0, 2.0, 0.0, 1.0, 0.0)), (empty, empty))
    found = summary_of([plan])
    assert (found.compute.count, found.device_total.count, found.plan.count) == (1, 2, 1)
    assert (found.compute.mape, found.compute.bias) == (0.25, -0.25)
    assert (found.device_total.mape, found.device_total.bias) == pytest.approx((0.1, -0.1))
    assert (found.plan.mape, found.plan.bias) == pytest.approx((0.2, -0.2))
    assert found.order is None
