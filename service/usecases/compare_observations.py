"""Measured costs of a plan beside those that were predicted."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from service.domain.costs import Interval
from service.domain.observations import Observation

PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "forward_compute": ("forward_compute",),
    "backward_compute": ("backward_compute",),
    "forward_comm": ("forward_wait", "forward_transfer"),
    "backward_comm": ("backward_comm",),
    "total": ("total",),
}
"""What a launcher measures, and the predicted costs that it is the sum of."""


@dataclass(frozen=True, slots=True)
class ComparedCost:
    """One measured cost of a rank.

    Attributes:
        predicted_ms: when the plan was made.
        measured_ms: the mean of the observed steps.
        interval_ms: 90% interval told with the prediction; None of plans that earlier releases stored without. That of
            a sum goes from the sum of the low ends to that of the high ends.
    """

    predicted_ms: float
    measured_ms: float
    interval_ms: Interval | None

    @property
    def ratio(self) -> float | None:
        """Measured over predicted; None where nothing was predicted."""
        return self.measured_ms / self.predicted_ms if self.predicted_ms > 0 else None

    @property
    def within(self) -> bool | None:
        """Whether what was measured is in the interval; None where there is none."""
        if self.interval_ms is None:
            return None
        low, high = self.interval_ms
        return low <= self.measured_ms <= high


def compared(answer: Mapping[str, Any], observation: Observation) -> dict[str, ComparedCost]:
    """Each part that was measured beside what was predicted, by the part's name (see ``PARTS``).

    Args:
        answer: what was answered, of whatever release; it has the observation's rank among its devices.
        observation: what was measured.
    """
    device = answer["devices"][observation.rank]
    costs, intervals = device["cost_ms"], device.get("cost_interval_ms")
    found = {}
    for name, parts in PARTS.items():
        measured_ms = getattr(observation, f"{name}_ms")
        if measured_ms is not None:
            predicted_ms = round(sum(costs[part] for part in parts), 6)
            found[name] = ComparedCost(predicted_ms, measured_ms, _interval(intervals, parts))
    return found


def _interval(intervals: Mapping[str, Any] | None, parts: tuple[str, ...]) -> Interval | None:
    if intervals is None:
        return None
    low, high = (round(sum(intervals[part][end] for part in parts), 6) for end in (0, 1))
    return low, high
