"""The communication cost model: bytes over bandwidth, and a network over the set of devices that corrects it.

NeuroShard has a network for each device count, whose forward cost takes in the start delays (MLSys 2023). Here the
wait for the slowest device is not learned but added up (``service.search.simulator``). What is left to transfer after
it depends on the wait only within bounds: devices that wait exchange among themselves meanwhile. The network is the
same for any number of devices: each device's hidden vector comes from one shared layer, and the devices see each other
through the mean and the maximum of those vectors, so that permuting the devices permutes the costs.
"""

from copy import copy
from dataclasses import dataclass
from typing import Self

import numpy as np

from service.cost_models.arrays import Arrays, Shapes, check_arrays
from service.cost_models.communication_bound import least_exchange_ms
from service.cost_models.error_model import ExchangeErrors
from service.domain.error_law import ErrorLaw
from service.domain.ports import BACKWARD, FORWARD, Floats

_FLOAT_BYTES = 4

QUANTITIES = ("one", "own_bytes", "slowest_bytes", "all_bytes")
"""Columns of ``exchange_quantities``, in order: what the physical part of a price is linear in."""

FEATURE_NAMES = ("log_sent", "log_received", "log_slowest", "log_all", "share", "log_batch", "log_devices", "waited")
"""Columns of ``exchange_features``, in order."""

CORRECTION_LIMIT = 1.0
"""The network moves the logarithm of a cost by less than this from that of the physical part."""

LEAST_MS = 1e-3
"""No exchange is priced below this."""

WEIGHT_SHAPES: Shapes = {
    "base": (2, len(QUANTITIES)),
    "feature_mean": (len(FEATURE_NAMES),),
    "feature_scale": (len(FEATURE_NAMES),),
    "feature_low": (len(FEATURE_NAMES),),
    "feature_high": (len(FEATURE_NAMES),),
    "device.weight": ("H", len(FEATURE_NAMES)),
    "device.bias": ("H",),
    "own.weight": ("M", "H"),
    "mean.weight": ("M", "H"),
    "most.weight": ("M", "H"),
    "own.bias": ("M",),
    "out.weight": (2, "M"),
    "out.bias": (2,),
}
"""Arrays of a version: H hidden units a device, M after mixing, two costs (forward transfer, backward exchange)."""


@dataclass(frozen=True, slots=True)
class MeasuredExchanges:
    """What the measurements behind a model cover.

    Attributes:
        ranks: numbers of devices that exchanged, ascending.
        oversubscribed: those of them that were more than there were cores to run them.
        batch_sizes: smallest and largest global batch.
        device_bytes: fewest and most bytes of a device's part of an exchange.
        skew_ms: smallest and largest time between the first start of a forward exchange and the last, milliseconds.
    """

    ranks: tuple[int, ...]
    oversubscribed: tuple[int, ...]
    batch_sizes: tuple[int, int]
    device_bytes: tuple[int, int]
    skew_ms: tuple[float, float]


class CommunicationModel:
    """Prices all-to-all exchanges between any number of devices; implements ``CommunicationCostModel``."""

    def __init__(self, version: str, weights: Arrays, measured: MeasuredExchanges) -> None:
        """Takes a version's arrays.

        Raises:
            DamagedArtifact: they are not those of ``WEIGHT_SHAPES``.
        """
        check_arrays(version, weights, WEIGHT_SHAPES)
        self._version = version
        # In double precision, so that the shape of a batch moves no result by as much as a search can see.
        self._w = {name: array.astype(np.float64) for name, array in weights.items()}
        self._measured = measured
        self._errors: ExchangeErrors | None = None

    def with_errors(self, arrays: Arrays) -> Self:
        """This model with the errors that a version's arrays tell; it prices as before.

        Raises:
            DamagedArtifact: the arrays are not those of ``error_shapes``.
        """
        found = copy(self)
        found._errors = ExchangeErrors(self._version, arrays)
        return found

    @property
    def version(self) -> str:
        """Name of the version."""
        return self._version

    def forward_transfer(self, widths: Floats, wait_ms: Floats, batch_size: int) -> Floats:
        """Milliseconds of exchanging pooled vectors once all have started; widths and waits [..., D] -> [..., D].

        The longest is no shorter than it were with the columns spread evenly, see ``_no_shorter``.
        """
        return _no_shorter(
            self._forward(widths, wait_ms, batch_size), self._forward(_even(widths), wait_ms, batch_size)
        )

    def backward(self, widths: Floats, batch_size: int) -> Floats:
        """Milliseconds of exchanging gradients; [..., D] -> [..., D]. The longest as in ``forward_transfer``."""
        together = np.zeros_like(widths)
        even = self._price(_even(widths), together, batch_size, BACKWARD)
        return _no_shorter(self._price(widths, together, batch_size, BACKWARD), even)

    def least_exchange(self, width: int, devices: int, batch_size: int) -> float:
        """What exchanges add at least, see the port."""
        return least_exchange_ms(self._w, width, devices, batch_size, CORRECTION_LIMIT)

    def assumptions(self, widths: Floats, wait_ms: Floats, batch_size: int) -> list[str]:
        """What the prices of exchanges of these widths and waits, [D] each, rest on besides the request."""
        devices = len(widths)
        if devices == 1:
            return []
        return [*_unmeasured(self._measured, devices), *_beyond(self._measured, widths, wait_ms, batch_size)]

    def errors(self, costs: Floats, widths: Floats, batch_size: int) -> ErrorLaw:
        """How far measured exchanges may be from these, see ``ExchangeErrors``. Only of a model with errors."""
        if self._errors is None:
            raise ValueError(f"{self._version} has no errors fitted")
        return self._errors.law(costs, widths, batch_size, octaves_beyond(self._measured, widths, batch_size))

    def _forward(self, widths: Floats, wait_ms: Floats, batch_size: int) -> Floats:
        """Nobody's wait saves more than it takes: no shorter than without waits, less the longest wait."""
        together = self._price(widths, np.zeros_like(widths), batch_size, FORWARD)
        later = self._price(widths, wait_ms, batch_size, FORWARD)
        return np.asarray(np.maximum(later, together - wait_ms.max(axis=-1, keepdims=True)))

    def _price(self, widths: Floats, wait_ms: Floats, batch_size: int, output: int) -> Floats:
        if widths.shape[-1] == 1:
            return np.zeros_like(widths)
        w = self._w
        base = physical_part(widths, batch_size, w["base"])[..., output]
        waited = waited_share(wait_ms, base)
        features = np.clip(exchange_features(widths, waited, batch_size), w["feature_low"], w["feature_high"])
        standard = (features - w["feature_mean"]) / w["feature_scale"]
        hidden = np.maximum(standard @ w["device.weight"].T + w["device.bias"], 0)
        others = hidden.mean(axis=-2, keepdims=True) @ w["mean.weight"].T
        others += hidden.max(axis=-2, keepdims=True) @ w["most.weight"].T
        mixed = np.maximum(hidden @ w["own.weight"].T + others + w["own.bias"], 0)
        raw = mixed @ w["out.weight"][output] + w["out.bias"][output]
        return np.asarray(base * np.exp(CORRECTION_LIMIT * np.tanh(raw / CORRECTION_LIMIT)))


def _even(widths: Floats) -> Floats:
    """The same columns spread evenly over the devices; [..., D]."""
    return np.broadcast_to(widths.mean(axis=-1, keepdims=True), widths.shape)


def _no_shorter(prices: Floats, even: Floats) -> Floats:
    """Prices of D devices, raised alike where the longest would be shorter than that with even widths; [..., D] each.

    The device with the most columns has more to send then, and all wait for it. A network that was only trained on
    measurements knows sets of widths that it prices lower, and a search finds them.
    """
    longest, longest_even = (each.max(axis=-1, keepdims=True) for each in (prices, even))
    return np.asarray(prices * np.maximum(longest_even / np.maximum(longest, LEAST_MS), 1.0))


def octaves_beyond(measured: MeasuredExchanges, widths: Floats, batch_size: int) -> Floats:
    """How far exchanges of D devices are from those measured, as powers of two; [D] -> [D], 0 for one of their kind.

    The sum of how far their number, the batch and a device's bytes are from the nearest that were measured.
    """
    from_ranks = np.abs(np.log2(len(widths) / np.array(measured.ranks))).min()
    from_batch = _octaves_outside(np.float64(batch_size), measured.batch_sizes)
    from_bytes = _octaves_outside(exchanged_bytes(widths, batch_size), measured.device_bytes)
    return np.asarray(from_ranks + from_batch + from_bytes)


def _octaves_outside(values: Floats | np.float64, span: tuple[int, int]) -> Floats:
    logs, (least, most) = np.log2(np.maximum(values, 1.0)), np.log2(np.maximum(span, 1.0))
    return np.asarray(np.maximum(least - logs, 0.0) + np.maximum(logs - most, 0.0))


def _unmeasured(measured: MeasuredExchanges, devices: int) -> list[str]:
    shared = ", ".join(map(str, measured.oversubscribed))
    if devices in measured.oversubscribed:
        return [f"exchanges of {devices} devices were measured on fewer cores, which they shared"]
    if devices in measured.ranks:
        return []
    known = ", ".join(map(str, measured.ranks))
    cores = f", of which {shared} on fewer cores, which they shared" if shared else ""
    return [f"exchanges were measured on {known} devices{cores}: those of {devices} are extrapolated"]


def _beyond(measured: MeasuredExchanges, widths: Floats, wait_ms: Floats, batch_size: int) -> list[str]:
    said = []
    least, most = measured.batch_sizes
    if not least <= batch_size <= most:
        said.append(
            f"exchanges were measured with a global_batch_size of {least} to {most}: those of {batch_size} are "
            "extrapolated"
        )
    sizes = exchanged_bytes(widths, batch_size)
    fewest, most = measured.device_bytes
    if sizes.min() < fewest or sizes.max() > most:
        said.append(
            f"exchanges were measured with {fewest} to {most} bytes a device: {sizes.min():.0f} to {sizes.max():.0f} "
            "are extrapolated"
        )
    skew, most_skew = float(wait_ms.max()), measured.skew_ms[1]
    if skew > most_skew:
        said.append(
            f"devices start their forward exchanges up to {skew:.0f} ms apart, those measured {most_skew:.0f} ms: how "
            "much is exchanged meanwhile is extrapolated"
        )
    return said


def exchanged_bytes(widths: Floats, batch_size: int | Floats) -> Floats:
    """Bytes that bound a device's part of an exchange: the larger of what it sends and receives; [..., D] -> [..., D].

    Here and below ``batch_size`` is the global batch, one for all or one for each set of devices, [..., 1].
    """
    return np.asarray(np.maximum(*_sent_and_received(widths, batch_size)))


def exchange_quantities(widths: Floats, batch_size: int | Floats) -> Floats:
    """What an exchange's time is roughly linear in, ``QUANTITIES``; [..., D] -> [..., D, 4].

    A device's own bytes; those of the device with the most, for which others may have to wait; and those of all, which
    share a medium (the memory of one host, a switch).
    """
    own = exchanged_bytes(widths, batch_size)
    slowest = np.broadcast_to(own.max(axis=-1, keepdims=True), own.shape)
    all_bytes = _all_bytes(widths, batch_size)
    return np.stack([np.ones_like(own), own, slowest, np.broadcast_to(all_bytes, own.shape)], axis=-1)


def physical_part(widths: Floats, batch_size: int | Floats, base: Floats) -> Floats:
    """Milliseconds that coefficients [2, Q] of the quantities come to, from ``LEAST_MS``; [..., D] -> [..., D, 2]."""
    return np.asarray(np.maximum(exchange_quantities(widths, batch_size) @ base.T, LEAST_MS))


def waited_share(wait_ms: Floats, physical_ms: Floats) -> Floats:
    """How long a device waits, relative to that and its exchange together, from 0 to 1; [..., D].

    The longer it waits, the more of its exchange with others that wait can be over by then, but never more than all.
    """
    return np.asarray(wait_ms / (wait_ms + physical_ms))


def exchange_features(widths: Floats, waited: Floats, batch_size: int | Floats) -> Floats:
    """Features of each device among the others, ``FEATURE_NAMES``, not standardised; [..., D] -> [..., D, 8].

    ``waited`` is the ``waited_share`` of each device, [..., D], all zero where they start together.
    """
    devices = widths.shape[-1]
    sent, received = _sent_and_received(widths, batch_size)
    slowest = np.maximum(sent, received).max(axis=-1, keepdims=True)
    total = widths.sum(axis=-1, keepdims=True)
    share = widths * devices / np.maximum(total, 1.0)
    columns = (
        np.log1p(sent),
        np.log1p(received),
        np.log1p(slowest),
        np.log1p(_all_bytes(widths, batch_size)),
        share,
        np.log(np.asarray(batch_size, dtype=np.float64)),
        np.log(np.float64(devices)),
        waited,
    )
    features = np.empty((*widths.shape, len(columns)))
    for i, column in enumerate(columns):
        features[..., i] = column
    return features


def _sent_and_received(widths: Floats, batch_size: int | Floats) -> tuple[Floats, Floats]:
    """Bytes that each device sends and receives in the forward exchange; [..., D] each.

    A device of width w sends its fp32 vectors of all samples that others own, B * (D - 1) / D of them, and receives
    those of its own B / D samples from the others. The backward exchange is the same with the roles swapped.
    """
    devices = widths.shape[-1]
    share = batch_size / devices * _FLOAT_BYTES
    return widths * share * (devices - 1), (widths.sum(axis=-1, keepdims=True) - widths) * share


def _all_bytes(widths: Floats, batch_size: int | Floats) -> Floats:
    """Bytes that all devices send together; [..., D] -> [..., 1]."""
    devices = widths.shape[-1]
    return np.asarray(widths.sum(axis=-1, keepdims=True) * (batch_size / devices * (devices - 1) * _FLOAT_BYTES))
