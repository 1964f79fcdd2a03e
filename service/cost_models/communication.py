"""The communication cost model: latency + bytes / bandwidth, each measured with the real collectives."""

from dataclasses import dataclass

import numpy as np

from service.domain.ports import Floats

_FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True)
class Line:
    """Milliseconds of an exchange: ``latency_ms + ms_per_byte * bytes``."""

    latency_ms: float
    ms_per_byte: float


class CommunicationModel:
    """Prices all-to-all exchanges by two measured lines; implements ``CommunicationCostModel``."""

    def __init__(self, version: str, forward: Line, backward: Line, measured_ranks: tuple[int, ...]) -> None:
        self._version = version
        self._measured_ranks = measured_ranks
        self._forward = forward
        self._backward = backward

    @property
    def version(self) -> str:
        """Name of the version."""
        return self._version

    def forward_transfer(self, widths: Floats, batch_size: int) -> Floats:
        """Milliseconds of exchanging pooled vectors; [..., D] -> [..., D]."""
        return _price(self._forward, widths, batch_size)

    def backward(self, widths: Floats, batch_size: int) -> Floats:
        """Milliseconds of exchanging gradients; [..., D] -> [..., D]."""
        return _price(self._backward, widths, batch_size)

    def assumptions(self, devices: int) -> list[str]:
        """What the prices rest on for this many devices."""
        if devices == 1 or devices in self._measured_ranks:
            return []
        measured = ", ".join(map(str, self._measured_ranks))
        return [f"exchanges were measured on {measured} devices: those of {devices} are priced by their bytes"]


def exchanged_bytes(widths: Floats, batch_size: int) -> Floats:
    """Bytes that bound a device's part of an exchange: the larger of what it sends and receives; [..., D].

    A device of width w sends its fp32 vectors of all samples that others own, B * (D - 1) / D of them, and receives
    those of its own B / D samples from the others. The backward exchange is the same with the roles swapped.
    """
    devices = widths.shape[-1]
    share = batch_size / devices
    sent = widths * share * (devices - 1)
    received = (widths.sum(axis=-1, keepdims=True) - widths) * share
    return np.asarray(np.maximum(sent, received) * _FLOAT_BYTES)


def _price(line: Line, widths: Floats, batch_size: int) -> Floats:
    if widths.shape[-1] == 1:
        return np.zeros_like(widths)
    return np.asarray(line.latency_ms + line.ms_per_byte * exchanged_bytes(widths, batch_size))
