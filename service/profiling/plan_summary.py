"""Predicted beside measured: plans that were carried out, and how far the predictions can be trusted."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from service.domain.costs import DeviceCost, Interval, max_total

SURE_SHARE = 0.9
"""Two plans are told apart where the same one costs less in at least this share of the repeats, compared repeat by
repeat: by chance that happens to two equal plans once in 256 times of 9 repeats."""

LEAST_REPEATS = 5
"""Fewer repeats tell no plans apart: even 5 agree by chance once in 16 times."""

Repeats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class DeviceComparison:
    """One device of a plan.

    Attributes:
        predicted: cost by the models.
        measured: cost when carried out, each part the median over the repeats.
        measured_total_ms: median of the repeats' totals. Medians taken apart need not add up to it.
        compute_spread: interquartile range of the measured compute over the repeats, relative to its median.
    """

    predicted: DeviceCost
    measured: DeviceCost
    measured_total_ms: float
    compute_spread: float


@dataclass(frozen=True, slots=True)
class PlanComparison:
    """One plan.

    Attributes:
        name: what the caller calls it.
        devices: D entries.
        cost_repeats_ms: measured cost in each repeat, the largest total over the devices in it; R entries.
        slowest_compute_repeats_ms: the largest forward and backward compute over the devices in each repeat.
        fits: whether every device holds no more than it may, with all rows.
        assumptions: what the prediction had to assume, one sentence each.
        predicted_interval_ms: 90% interval of the predicted cost.
    """

    name: str
    devices: tuple[DeviceComparison, ...]
    cost_repeats_ms: tuple[float, ...]
    slowest_compute_repeats_ms: tuple[float, ...]
    fits: bool
    assumptions: tuple[str, ...]
    predicted_interval_ms: Interval

    @property
    def predicted_ms(self) -> float:
        """Predicted cost, the largest total over the devices."""
        return max_total(tuple(device.predicted for device in self.devices))

    @property
    def measured_ms(self) -> float:
        """Measured cost, the median over the repeats."""
        return float(np.median(self.cost_repeats_ms))

    @property
    def cost_spread(self) -> float:
        """Interquartile range of the measured cost over the repeats, relative to its median."""
        return spread(self.cost_repeats_ms)


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
        by_measurement: names, the least median cost first.
        pairs: pairs of plans that both the prediction and the repeats (``SURE_SHARE``) tell apart.
        pairs_ordered_the_same: those of them that both order alike.
        pairs_within_noise: pairs that the repeats do not tell apart.
        pairs_predicted_alike: pairs that the repeats tell apart and that are predicted to cost the same.
        best_picked: whether no plan that is predicted to be the cheapest is told apart from the one measured so.
        regret_ms: what such a plan that is told apart costs more, milliseconds, the most where there are several; 0
            where the best was picked.
    """

    by_prediction: tuple[str, ...]
    by_measurement: tuple[str, ...]
    pairs: int
    pairs_ordered_the_same: int
    pairs_within_noise: int
    pairs_predicted_alike: int
    best_picked: bool
    regret_ms: float


@dataclass(frozen=True, slots=True)
class Summary:
    """What carrying plans out says about their predictions.

    Attributes:
        compute: errors of each device's forward and backward compute, devices without tables left out.
        device_total: errors of each device's total.
        plan: errors of each plan's cost.
        order: of the plans that fit; None where fewer than two do.
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


def costs_less(one: Repeats, other: Repeats) -> bool:
    """Whether the repeats [R] of two plans say that the first costs less, compared repeat by repeat."""
    return len(one) >= LEAST_REPEATS and float(np.mean(one < other)) >= SURE_SHARE


def ordering(names: Sequence[str], predicted: Sequence[float], measured: Repeats) -> Ordering:
    """Compares two orders of N plans, N > 1.

    Args:
        names: of the plans.
        predicted: cost of each.
        measured: cost of each in every repeat, [N, R]; what is in one column was measured at about the same time.
    """
    plans = range(len(names))
    middle = np.median(measured, axis=1)
    pairs = list(combinations(plans, 2))
    apart = [(a, b) for a, b in pairs if costs_less(measured[a], measured[b]) or costs_less(measured[b], measured[a])]
    ordered = [(a, b) for a, b in apart if predicted[a] != predicted[b]]
    best = int(middle.argmin())
    picked = [plan for plan in plans if predicted[plan] == min(predicted)]
    regrets = [float(middle[plan] - middle[best]) for plan in picked if costs_less(measured[best], measured[plan])]
    return Ordering(
        by_prediction=tuple(names[plan] for plan in sorted(plans, key=lambda plan: predicted[plan])),
        by_measurement=tuple(names[plan] for plan in sorted(plans, key=lambda plan: float(middle[plan]))),
        pairs=len(ordered),
        pairs_ordered_the_same=sum(
            costs_less(measured[a], measured[b]) == (predicted[a] < predicted[b]) for a, b in ordered
        ),
        pairs_within_noise=len(pairs) - len(apart),
        pairs_predicted_alike=len(apart) - len(ordered),
        best_picked=not regrets,
        regret_ms=max(regrets, default=0.0),
    )


def summary_of(plans: Sequence[PlanComparison]) -> Summary:
    """Errors over all devices of all plans, and how the orders of those that fit compare."""
    devices = [device for plan in plans for device in plan.devices]
    computes = [(compute_ms(device.predicted), compute_ms(device.measured)) for device in devices]
    totals = [(device.predicted.total, device.measured_total_ms) for device in devices]
    costs = [(plan.predicted_ms, plan.measured_ms) for plan in plans]
    return Summary(_errors_of(computes), _errors_of(totals), _errors_of(costs), _order_of(plans))


def spread(times: Repeats | Sequence[float]) -> float:
    """Interquartile range relative to the median, over R repeats; [R], 0 where nothing was run."""
    low, median, high = np.percentile(times, [25, 50, 75])
    return float((high - low) / median) if median else 0.0


def _order_of(plans: Sequence[PlanComparison]) -> Ordering | None:
    fitting = [plan for plan in plans if plan.fits]
    if len(fitting) < 2:
        return None
    measured = np.array([plan.cost_repeats_ms for plan in fitting])
    return ordering([plan.name for plan in fitting], [plan.predicted_ms for plan in fitting], measured)


def _errors_of(pairs: Sequence[tuple[float, float]]) -> Errors:
    run = [pair for pair in pairs if pair[1] > 0]
    return errors([predicted for predicted, _ in run], [measured for _, measured in run])
