"""Predicted beside measured: plans that were carried out, and how far the predictions can be trusted."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from scipy.stats import kendalltau

from service.domain.costs import DeviceCost, max_total


@dataclass(frozen=True, slots=True)
class DeviceComparison:
    """One device of a plan.

    Attributes:
        predicted: cost by the models.
        measured: cost when carried out.
        compute_spread: interquartile range of the measured compute over the repeats, relative to its median.
    """

    predicted: DeviceCost
    measured: DeviceCost
    compute_spread: float


@dataclass(frozen=True, slots=True)
class PlanComparison:
    """One plan.

    Attributes:
        name: what the caller calls it.
        devices: D entries.
        slowest_compute_spread: interquartile range of the slowest device's compute, relative to its median.
        assumptions: what the prediction had to assume, one sentence each.
    """

    name: str
    devices: tuple[DeviceComparison, ...]
    slowest_compute_spread: float
    assumptions: tuple[str, ...]

    @property
    def predicted_ms(self) -> float:
        """Predicted cost, the largest total over the devices."""
        return max_total(tuple(device.predicted for device in self.devices))

    @property
    def measured_ms(self) -> float:
        """Measured cost, the largest total over the devices."""
        return max_total(tuple(device.measured for device in self.devices))


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors of predictions, as fractions of what was measured.

    Attributes:
        count: predictions.
        mape: mean absolute percentage error.
        bias: mean error; below 0 where predictions are too low.
    """

    count: int
    mape: float
    bias: float


@dataclass(frozen=True, slots=True)
class Ordering:
    """How far the predicted order of two plans or more is the measured one.

    Attributes:
        by_prediction: names, cheapest first; plans that cost the same in the order given.
        by_measurement: names, cheapest first.
        kendall_tau: rank correlation (tau-b); None where all are predicted, or measured, to cost the same.
        pairs: pairs of plans of which the prediction says that one is cheaper.
        pairs_ordered_the_same: those of them in which it is.
        best_picked: whether the plan predicted to be the cheapest is.
        regret_ms: what the plan predicted to be the cheapest costs more than the cheapest, measured, milliseconds.
    """

    by_prediction: tuple[str, ...]
    by_measurement: tuple[str, ...]
    kendall_tau: float | None
    pairs: int
    pairs_ordered_the_same: int
    best_picked: bool
    regret_ms: float


@dataclass(frozen=True, slots=True)
class Summary:
    """What carrying plans out says about their predictions.

    Attributes:
        compute: errors of each device's forward and backward compute, devices without tables left out.
        device_total: errors of each device's total.
        plan: errors of each plan's cost.
        order: None for a single plan.
    """

    compute: Errors
    device_total: Errors
    plan: Errors
    order: Ordering | None


def compute_ms(cost: DeviceCost) -> float:
    """Forward and backward compute together, milliseconds."""
    return cost.forward_compute + cost.backward_compute


def errors(predicted: Sequence[float], measured: Sequence[float]) -> Errors:
    """Errors of N predictions, N > 0; what was measured is positive."""
    relative = np.array(predicted) / np.array(measured) - 1.0
    return Errors(len(relative), float(np.abs(relative).mean()), float(relative.mean()))


def ordering(names: Sequence[str], predicted: Sequence[float], measured: Sequence[float]) -> Ordering:
    """Compares two orders of N plans, N > 1, by their costs."""
    plans = range(len(names))
    told_apart = [(a, b) for a, b in combinations(plans, 2) if predicted[a] != predicted[b]]
    same = sum((predicted[a] - predicted[b]) * (measured[a] - measured[b]) > 0 for a, b in told_apart)
    by_prediction = sorted(plans, key=lambda i: predicted[i])
    by_measurement = sorted(plans, key=lambda i: measured[i])
    tau = _tau(predicted, measured)
    regret = measured[by_prediction[0]] - min(measured)
    return Ordering(
        by_prediction=tuple(names[i] for i in by_prediction),
        by_measurement=tuple(names[i] for i in by_measurement),
        kendall_tau=tau,
        pairs=len(told_apart),
        pairs_ordered_the_same=same,
        best_picked=regret == 0,
        regret_ms=regret,
    )


def summary_of(plans: Sequence[PlanComparison]) -> Summary:
    """Errors over all devices of all plans, and how their orders compare."""
    devices = [device for plan in plans for device in plan.devices]
    computes = [(compute_ms(device.predicted), compute_ms(device.measured)) for device in devices]
    totals = [(device.predicted.total, device.measured.total) for device in devices]
    costs = [(plan.predicted_ms, plan.measured_ms) for plan in plans]
    order = ordering([plan.name for plan in plans], *zip(*costs, strict=True)) if len(plans) > 1 else None
    return Summary(_errors_of(computes), _errors_of(totals), _errors_of(costs), order)


def spread(times: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> float:
    """Interquartile range relative to the median, over R repeats; [R], 0 where nothing was run."""
    low, median, high = np.percentile(times, [25, 50, 75])
    return float((high - low) / median) if median else 0.0


def _errors_of(pairs: Sequence[tuple[float, float]]) -> Errors:
    run = [pair for pair in pairs if pair[1] > 0]
    return errors([predicted for predicted, _ in run], [measured for _, measured in run])


def _tau(predicted: Sequence[float], measured: Sequence[float]) -> float | None:
    tau = float(kendalltau(predicted, measured).statistic)
    return None if math.isnan(tau) else tau
