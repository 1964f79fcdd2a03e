"""What the policies' networks are made of, and choices among legal devices; in double precision."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from service.domain.ports import Floats

Flags = NDArray[np.bool_]

LOGIT_DECIMALS = 6
"""Logits are rounded to so many decimals before they are compared: matrix products differ in the last bits between
processors and batch shapes, and devices that hold the same must tie (as with ``service.search.catalogue``'s ticks)."""


def two_layers(weights: Mapping[str, Floats], name: str, x: Floats) -> Floats:
    """A network of two layers with ReLU between them; [..., I] -> [..., O].

    Args:
        weights: ``{name}.0.weight`` [H, I], ``{name}.0.bias`` [H], ``{name}.1.weight`` [O, H], ``{name}.1.bias`` [O].
        name: of the network.
        x: its input.
    """
    hidden = np.maximum(x @ weights[f"{name}.0.weight"].T + weights[f"{name}.0.bias"], 0.0)
    out: Floats = hidden @ weights[f"{name}.1.weight"].T + weights[f"{name}.1.bias"]
    return out


def log_probabilities(logits: Floats, legal: Flags) -> Floats:
    """Logarithms of the softmax over the legal devices, minus infinity elsewhere; [..., D] -> [..., D].

    Rows without a legal device, of episodes that have ended, are minus infinity throughout.
    """
    masked = np.where(legal, logits, -np.inf)
    largest = np.where(legal.any(axis=-1, keepdims=True), masked.max(axis=-1, keepdims=True), 0.0)
    shifted = masked - largest
    total = np.exp(shifted).sum(axis=-1, keepdims=True)
    found: Floats = shifted - np.log(np.where(total > 0, total, 1.0))
    return found


def drawn(logits: Floats, legal: Flags, generator: np.random.Generator) -> NDArray[np.intp]:
    """A device for each row, drawn from the softmax over the legal ones (the Gumbel-max trick); [..., D] -> [...].

    Rows without a legal device get any.
    """
    noisy = np.where(legal, logits + generator.gumbel(size=logits.shape), -np.inf)
    chosen: NDArray[np.intp] = noisy.argmax(axis=-1)
    return chosen
