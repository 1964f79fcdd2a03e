"""Predicted or measured costs of a device, in milliseconds."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeviceCost:
    """Cost of one training step's embedding part on one device, milliseconds.

    Attributes:
        forward_compute: lookups and pooling.
        backward_compute: gradients with the fused optimizer.
        forward_wait: from this device's start of the forward all-to-all to the slowest device's.
        forward_transfer: all-to-all of pooled vectors once all have started.
        backward_comm: all-to-all of gradients.
    """

    forward_compute: float
    backward_compute: float
    forward_wait: float
    forward_transfer: float
    backward_comm: float

    @property
    def total(self) -> float:
        """Sum of all parts."""
        # Rounded far below what can be measured, so that a sum of short decimals is one.
        parts = (self.forward_compute, self.backward_compute, self.forward_wait, self.forward_transfer)
        return round(math.fsum((*parts, self.backward_comm)), 6)


Interval = tuple[float, float]
"""Low and high end of a 90% interval, milliseconds."""


@dataclass(frozen=True, slots=True)
class DeviceCostInterval:
    """The interval of each part of a ``DeviceCost`` and of their total; it holds what is predicted."""

    forward_compute: Interval
    backward_compute: Interval
    forward_wait: Interval
    forward_transfer: Interval
    backward_comm: Interval
    total: Interval


def max_total(costs: "tuple[DeviceCost, ...]") -> float:
    """Cost of a plan: the largest total over its devices, milliseconds; 0.0 without devices."""
    return max((cost.total for cost in costs), default=0.0)
