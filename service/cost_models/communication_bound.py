"""What exchanges cost at least under the learned model, however devices share the columns; see docs/decisions/0014.

A device's part is its width over the mean width: 1 on average. Sets of devices are told apart by cells, of the least
part and of the largest. Within a cell the network is replaced by a linear function that is never above it. What the
other devices do then matters through a mean over them, and the least mean is that of two kinds of devices, one narrower
and one wider than the mean.
"""

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from service.domain.ports import BACKWARD, FORWARD, Floats

_NARROW = (0.1, 0.4, 0.7, 0.9, 1.0)
_WIDE = (1.0, 1.05, 1.15, 1.3, 1.5, 1.75, 2.0, 2.3, 2.6, 3.0, 3.4, 3.8, 4.3, 5.0, 6.0, 8.0, 11.0, 16.0, 32.0, 64.0)
"""Edges of the cells of devices' parts, below and above the mean."""

_NEVER = 1e9

_CLOSE = 1 - 1e-9
"""Sums in another order differ in the last bits."""


def least_exchange_ms(
    weights: Mapping[str, NDArray[np.float64]], width: int, devices: int, batch_size: int, limit: float
) -> float:
    """What ``CommunicationCostModel.least_exchange`` tells, from the model's arrays and ``CORRECTION_LIMIT``."""
    cells = _Cells(weights, width, devices, batch_size, limit)
    forward = np.maximum(cells.least(FORWARD), cells.least_even_forward())
    return _CLOSE * float((cells.least(BACKWARD) + forward).min())


class _Cells:
    """Least prices of D devices that share a width, in K cells: each least part with each largest part.

    Boxes are ranges of a device's part, N below the mean, of which the first is no part at all, and then those above.
    """

    def __init__(
        self, weights: Mapping[str, NDArray[np.float64]], width: int, devices: int, batch_size: int, limit: float
    ) -> None:
        self._w, self._devices, self._batch_size, self._limit = weights, devices, batch_size, limit
        self._unit = 4.0 * width / devices * batch_size / devices
        self._weight = weights["device.weight"] / weights["feature_scale"]
        self._bias = weights["device.bias"] - self._weight @ weights["feature_mean"]
        # No device has fewer columns than the narrowest slice, but for those that have none.
        slimmest = min(4.0 * devices / width, _NARROW[0])
        narrow = [(0.0, 0.0), *pairwise(sorted({slimmest, *_NARROW}))]
        wide = list(pairwise(sorted({min(edge, float(devices)) for edge in (*_WIDE, float(devices))})))
        self._below, self._boxes = len(narrow), np.array([*narrow, *wide])
        least, most = np.indices((len(narrow), len(wide))).reshape(2, -1)
        most += len(narrow)
        self._least, self._most = self._boxes[least], self._boxes[most]
        position = np.arange(len(self._boxes))
        self._inside = (position >= least[:, None]) & (position <= most[:, None])
        others = devices - 1.0
        low = np.maximum(np.maximum(self._most[:, 0] * others, devices - self._least[:, 1]), others)
        high = np.maximum(self._most[:, 1] * others, devices - self._least[:, 0])
        self._slowest = np.stack([low, high], axis=-1)[:, None]

    def least(self, output: int) -> Floats:
        """Least backward price of any device, or least of the largest forward price, milliseconds; [K].

        The largest forward price is that of the device that starts last, which does not wait, or of the widest.
        """
        may_wait = np.array([0.0, 1.0 if output == FORWARD else 0.0])
        boxes = np.broadcast_to(self._boxes, (*self._inside.shape, 2))
        others = self._hidden(boxes, may_wait)
        # Of each unit's maximum over devices: the narrowest and the widest are among them, and the mean is no more.
        named = self._hidden(np.stack([self._least, self._most], axis=1), may_wait)[0].max(axis=1)
        at_least = np.maximum(named, self._least_means(np.eye(named.shape[-1])[None], others))[:, None]
        at_most = np.where(self._inside[..., None], others[1], 0.0).max(axis=1, keepdims=True)
        prices = self._price(output, boxes, np.zeros(2), others, (at_least, at_most))
        least: Floats = np.where(self._inside, prices, _NEVER).min(axis=1)
        if output == BACKWARD:
            return least
        return np.maximum(least, self._price(output, self._most[:, None], may_wait, others, (at_least, at_most))[:, 0])

    def least_even_forward(self) -> float:
        """Least of the largest forward price with even widths, which no other widths are below, whatever the waits.

        It is no less than that of the device that starts last; the others are between not waiting and only waiting.
        """
        w, unit, others = self._w, self._unit, self._devices - 1.0
        sent, all_sent = np.log1p(unit * others), np.log1p(unit * others * self._devices)
        about = (np.log(np.float64(self._batch_size)), np.log(np.float64(self._devices)))
        features = np.array([[sent, sent, sent, all_sent, 1.0, *about, waited] for waited in (0.0, 1.0)])
        ends = np.clip(features, w["feature_low"], w["feature_high"]) @ self._weight.T + self._bias
        ends = np.maximum(ends, 0.0)
        low, high = ends.min(axis=0), ends.max(axis=0)
        own = w["own.weight"] @ ends[0] + w["own.bias"]
        seen = _least(w["mean.weight"], low, high) + _least(w["most.weight"], low, high)
        most = _least(w["mean.weight"], high, low) + _least(w["most.weight"], high, low)
        out = w["out.weight"][FORWARD]
        least, largest = np.maximum(own + seen, 0.0), np.maximum(own + most, 0.0)
        raw = w["out.bias"][FORWARD] + float(_least_each(out, least, largest))
        quantities = np.array([1.0, unit * others, unit * others, unit * others * self._devices])
        physical = max(float(quantities @ w["base"][FORWARD]), 0.0)
        return physical * float(np.exp(self._limit * np.tanh(raw / self._limit)))

    def _price(
        self, output: int, parts: Floats, waited: Floats, others: tuple[Floats, Floats], maxima: tuple[Floats, Floats]
    ) -> Floats:
        """Least price of devices whose part is in one of X ranges; [K, X, 2] -> [K, X].

        Args:
            output: forward or backward.
            parts: least and largest part.
            waited: least and largest ``waited_share``; [2].
            others: least and largest hidden vectors of devices in each box; [K, V, H].
            maxima: least and largest of each unit's maximum over devices; [K, 1, H].
        """
        w = self._w
        own, mean, most = w["own.weight"], w["mean.weight"], w["most.weight"]
        low, high = self._hidden(parts, waited)
        most_low, most_high = np.maximum(maxima[0], low), np.maximum(maxima[1], high)
        least = _least(own, low, high) + _least(most, most_low, most_high) + w["own.bias"]
        largest = _least(own, high, low) + _least(most, most_high, most_low) + w["own.bias"]
        least = least + self._least_means(mean[None], others)[:, None]
        largest = largest - self._least_means(-mean[None], others)[:, None]
        # Linear functions below what each mixed unit adds: of a unit that may be on or off, a chord or a slope.
        out = w["out.weight"][output]
        bends = (least < 0) & (largest > 0)
        chord = np.where(least >= 0, 1.0, np.where(bends, largest / np.where(bends, largest - least, 1.0), 0.0))
        slope = np.where(least >= 0, 1.0, np.where(bends & (largest > -least), 1.0, 0.0))
        gain = out * np.where(out > 0, slope, chord)
        at_bends = (out * np.where((out < 0) & bends, chord * least, 0.0)).sum(axis=-1)
        of_own, of_mean, of_most = gain @ own, gain @ mean, gain @ most
        rising, falling = np.maximum(of_most, 0.0), np.minimum(of_most, 0.0)
        raw = w["out.bias"][output] + gain @ w["own.bias"] - at_bends
        raw = raw + _least_each(of_own, low, high) + (falling * most_high).sum(axis=-1)
        # The maximum of a unit over devices is no less than what some of them have at least, nor than the mean.
        raw = raw + np.maximum(
            (rising * most_low).sum(axis=-1) + self._least_means(of_mean, others),
            self._least_means(of_mean + rising, others),
        )
        return np.asarray(self._physical(output, parts) * np.exp(self._limit * np.tanh(raw / self._limit)))

    def _physical(self, output: int, parts: Floats) -> Floats:
        """Least physical part of the price of devices whose part is in these ranges; [K, X, 2] -> [K, X]."""
        others = self._devices - 1.0
        own = np.maximum(np.maximum(parts[..., 0] * others, self._devices - parts[..., 1]), others)
        once, every = np.ones_like(own), np.full_like(own, self._devices * others * self._unit)
        slowest = np.broadcast_to(self._slowest, (*own.shape, 2)) * self._unit
        low = np.stack([once, own * self._unit, slowest[..., 0], every], axis=-1)
        high = np.stack([once, slowest[..., 1], slowest[..., 1], every], axis=-1)
        return np.asarray(np.maximum(_least_each(self._w["base"][output], low, high), 0.0))

    def _hidden(self, parts: Floats, waited: Floats) -> tuple[Floats, Floats]:
        """Least and largest hidden vectors of devices in these ranges; [K, X, 2] and [2] -> two [K, X, H]."""
        devices, w = self._devices, self._w

        def features(low: int) -> Floats:
            columns = (
                np.log1p(parts[..., low] * self._unit * (devices - 1)),
                np.log1p((devices - parts[..., 1 - low]) * self._unit),
                np.log1p(self._slowest[..., low] * self._unit),
                np.log1p(devices * (devices - 1) * self._unit),
                parts[..., low],
                np.log(np.float64(self._batch_size)),
                np.log(np.float64(devices)),
                waited[low],
            )
            stacked = np.stack(np.broadcast_arrays(*columns), axis=-1)
            return np.asarray(np.clip(stacked, w["feature_low"], w["feature_high"]))

        low, high = features(0), features(1)
        least, largest = _least(self._weight, low, high), _least(self._weight, high, low)
        return np.asarray(np.maximum(least + self._bias, 0.0)), np.asarray(np.maximum(largest + self._bias, 0.0))

    def _least_means(self, weights: Floats, others: tuple[Floats, Floats]) -> Floats:
        """Least means over devices of Y functions of their hidden vectors; [K or 1, Y, H] -> [K, Y].

        A mean over devices whose part is 1 on average is, at least, one over two kinds of them.
        """
        positive, negative = (np.swapaxes(each, 1, 2) for each in (np.maximum(weights, 0.0), np.minimum(weights, 0.0)))
        values = np.where(self._inside[..., None], others[0] @ positive + others[1] @ negative, _NEVER)
        below, above = values[:, : self._below, None], values[:, None, self._below :]
        narrow, wide = self._boxes[: self._below, None], self._boxes[None, self._below :]
        kinds = []
        for end in (0, 1):
            # The share of the narrower kind is between those at the two ends of both boxes.
            apart = wide[..., end] - narrow[..., end]
            share = np.divide(wide[..., end] - 1.0, apart, out=np.full_like(apart, float(end)), where=apart > 0)
            kinds.append(above + share[..., None] * (below - above))
        return np.asarray(np.minimum(*kinds).min(axis=(1, 2)))


def _least(weights: Floats, low: Floats, high: Floats) -> Floats:
    """Least of linear functions of what lies between these; [Y, H] and two [..., H] -> [..., Y]."""
    return np.asarray(low @ np.maximum(weights, 0.0).T + high @ np.minimum(weights, 0.0).T)


def _least_each(weights: Floats, low: Floats, high: Floats) -> Floats:
    """The same of one function each; three [..., H] -> [...]."""
    return np.asarray((np.maximum(weights, 0.0) * low + np.minimum(weights, 0.0) * high).sum(axis=-1))
