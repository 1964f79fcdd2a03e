"""Measured exchanges as arrays to train on, one group for each number of devices."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor

import numpy as np
from numpy.typing import NDArray

from service.cost_models.communication import (
    LEAST_MS,
    MeasuredExchanges,
    exchange_features,
    exchange_quantities,
    exchanged_bytes,
    physical_part,
    waited_share,
)
from service.domain.measurements import CommunicationMeasurement, Split
from service.domain.plan import content_hash
from service.domain.ports import FORWARD

Values = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Exchanges:
    """N exchanges between D devices.

    Attributes:
        widths: pooled output columns of each device; [N, D].
        batch_sizes: global batch; [N, 1].
        nominal_wait_ms: each device's wait for the last one to start its forward exchange, as the delays that it was
            given have it; [N, D].
        wait_ms: that wait as measured; [N, D].
        costs: forward transfer and backward exchange of each device, milliseconds, at least ``LEAST_MS``;
            [N, D, 2].
    """

    widths: Values
    batch_sizes: Values
    nominal_wait_ms: Values
    wait_ms: Values
    costs: Values

    def features(self, base: Values) -> Values:
        """``exchange_features`` of the forward and the backward exchange, [N, D, 2, F]; base as in ``physical_part``.

        The wait is the nominal one, as it is when a plan is priced; the backward exchange has none.
        """
        physical = physical_part(self.widths, self.batch_sizes, base)[..., FORWARD]
        waits = waited_share(self.nominal_wait_ms, physical), np.zeros_like(self.widths)
        return np.stack([exchange_features(self.widths, waited, self.batch_sizes) for waited in waits], axis=2)

    @property
    def quantities(self) -> Values:
        """``exchange_quantities``; [N, D, Q]."""
        return exchange_quantities(self.widths, self.batch_sizes)

    @property
    def timed(self) -> Flags:
        """Which costs are above ``LEAST_MS``; the others are of devices that had nothing to wait for; [N, D, 2]."""
        return self.costs > LEAST_MS

    @property
    def devices(self) -> int:
        """Number of devices, D."""
        return int(self.widths.shape[1])

    def __len__(self) -> int:
        return len(self.widths)


def exchange_groups(measurements: Sequence[CommunicationMeasurement]) -> list[Exchanges]:
    """A group for each number of devices, ascending."""
    by_ranks: dict[int, list[CommunicationMeasurement]] = defaultdict(list)
    for measurement in measurements:
        by_ranks[len(measurement.widths)].append(measurement)
    return [_group(rows) for _, rows in sorted(by_ranks.items())]


def measured_exchanges(measurements: Sequence[CommunicationMeasurement], least_in_part: int) -> MeasuredExchanges:
    """What the train part of measurements covers, which is not empty.

    A number of devices counts that has ``least_in_part`` in every part of the split.
    """
    rows = Counter((len(m.widths), m.split) for m in measurements)
    ranks = {devices for devices, _ in rows if min(rows[devices, split] for split in Split) >= least_in_part}
    shared = {len(m.widths) for m in measurements if m.environment.get("oversubscribed") == "true"}
    measurements = [m for m in measurements if m.split is Split.TRAIN]
    batch_sizes = [m.batch_size for m in measurements]
    skews = [max(m.start_delays_ms) - min(m.start_delays_ms) for m in measurements]
    sizes = np.concatenate([exchanged_bytes(np.array(m.widths, dtype=np.float64), m.batch_size) for m in measurements])
    return MeasuredExchanges(
        ranks=tuple(sorted(ranks)),
        oversubscribed=tuple(sorted(ranks & shared)),
        batch_sizes=(min(batch_sizes), max(batch_sizes)),
        device_bytes=(floor(sizes.min()), ceil(sizes.max())),
        skew_ms=(min(skews), max(skews)),
    )


def exchanges_fingerprint(measurements: Sequence[CommunicationMeasurement]) -> str:
    """Hash of what was measured and of the results, whatever the order; 32 hex digits."""
    rows = sorted(
        f"{m.widths} {m.batch_size} {m.start_delays_ms} {m.forward_wait_ms} {m.forward_transfer_ms} {m.backward_ms}"
        for m in measurements
    )
    return content_hash({"rows": rows})


def _group(rows: Sequence[CommunicationMeasurement]) -> Exchanges:
    costs = [(m.forward_transfer_ms, m.backward_ms) for m in rows]
    delays = np.array([m.start_delays_ms for m in rows], dtype=np.float64)
    return Exchanges(
        widths=np.array([m.widths for m in rows], dtype=np.float64),
        batch_sizes=np.array([[m.batch_size] for m in rows], dtype=np.float64),
        nominal_wait_ms=delays.max(axis=1, keepdims=True) - delays,
        wait_ms=np.array([m.forward_wait_ms for m in rows], dtype=np.float64),
        costs=np.maximum(np.moveaxis(np.array(costs, dtype=np.float64), 1, 2), LEAST_MS),
    )
