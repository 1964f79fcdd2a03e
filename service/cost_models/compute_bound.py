"""What devices cost at least under the learned compute model; see docs/decisions/0014."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from service.domain.ports import Floats, Integers

_ROUNDS = 3
"""Constants ``phi`` that are tried, each the factor that was found with the one before."""

_CLOSE = 1 - 1e-6
"""Embeddings are kept in single precision."""


class LearnedLeastCosts:
    """What no device costs less than, whatever it holds of T tables; implements ``LeastCosts``.

    A device's columns of a table are taken to be one slice: embeddings of more slices sum to no less.
    """

    def __init__(
        self,
        widths: Integers,
        narrowest: Floats,
        widest: Floats,
        head: Callable[[Floats], Floats],
        factor: Callable[[Floats], Floats],
        weights: Mapping[str, NDArray[np.float64]],
        log_scale: float,
    ) -> None:
        """Takes embeddings of slices and what the model makes of their sums.

        Args:
            widths: columns, ascending, the last of each row the table's own; [T, G].
            narrowest: embeddings of the narrowest slices that are wider than the width before; [T, G, H].
            widest: embeddings of slices of these widths; [T, G, H].
            head: milliseconds, forward and backward, of sums of embeddings.
            factor: what the additive part is multiplied by, from the head's pre-activations.
            weights: arrays of the model.
            log_scale: what logarithms are divided by before the head's first layer.
        """
        self._widths, self._narrowest, self._widest = widths, narrowest, widest
        self._head, self._factor = head, factor
        self._constant, self._additive = weights["constant"], weights["additive"]
        self._units, self._bias = weights["head.0.growing"] / log_scale, weights["head.0.bias"]
        self._logs = np.log(narrowest) @ self._units.T
        self._alone = np.asarray(_CLOSE * head(narrowest).sum(axis=-1))

    @property
    def alone(self) -> Floats:
        """Of a device with more columns of a table than the width before this one; [T, G]."""
        return self._alone

    def together(self, held: Sequence[Sequence[int]]) -> Floats:
        """Of devices that hold these tables whole; N lists -> [N]."""
        sums = [self._widest[list(tables), -1].sum(axis=0) for tables in held]
        return np.asarray(_CLOSE * self._head(np.stack(sums)).sum(axis=-1))

    def shared(self, tables: Integers, widest: Integers, devices: int) -> float:
        """Of the dearest of the devices that hold all of these tables between them.

        The load of a device is ``s = phi . additive . z``, ``phi`` a constant for each cost. Some device has at least
        an even share of it, and costs at least ``r (phi . constant + s)`` where its factor is at least ``r phi``. Any
        ``phi`` will do; the factor that an even share has with the last one is the next.
        """
        phi, dearest = np.ones_like(self._constant), 0.0
        for _ in range(_ROUNDS):
            load = self._additive.T @ phi
            cap, total = self._loads(load, tables, widest)
            share = total / devices
            if cap.sum() < _CLOSE * share:
                return float("inf")
            factor = self._factor(self._least_activations(load, tables, widest, cap, share))
            dearest = max(dearest, float((factor / phi).min() * (phi @ self._constant + share)))
            phi = factor
        return _CLOSE * dearest

    def _loads(self, load: Floats, tables: Integers, widest: Integers) -> tuple[Floats, float]:
        """The most that a device has of each table, [K], and the least that all devices have together."""
        cap = self._widest[tables, widest] @ load
        a_column = np.minimum.accumulate(self._narrowest[tables] @ load / self._widths[tables], axis=1)
        columns = self._widths[tables, -1]
        cut = columns * a_column[np.arange(len(tables)), widest]
        return cap, float(np.maximum(self._widest[tables, -1] @ load, cut).sum())

    def _least_activations(self, load: Floats, tables: Integers, widest: Integers, cap: Floats, share: float) -> Floats:
        """Pre-activations of the head's hidden units that devices with this load, or more, have at least; [B].

        ``log`` is concave: where ``p`` is the share that each slice has of a device's load ``s``, ``log z >= log s +
        sum p log (z_t / s_t)``. So a unit sees least of a device that is filled with the tables that it sees least
        of, each as far as a device can hold it.
        """
        scale = np.log(self._widest[tables] @ load)[..., None] * self._units.sum(axis=1)
        held = np.arange(self._widths.shape[1]) <= widest[:, None]
        seen = np.where(held[..., None], self._logs[tables] - scale, np.inf).min(axis=1)
        order = np.argsort(seen, axis=0)
        filled = np.minimum(np.cumsum(cap[order], axis=0), share)
        taken = np.diff(filled, axis=0, prepend=0.0) / filled[-1]
        mixed = (np.take_along_axis(seen, order, axis=0) * taken).sum(axis=0)
        return np.asarray(np.log(share) * self._units.sum(axis=1) + mixed + self._bias)
