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
    return layers(weights, name, 2, x)


def layers(weights: Mapping[str, Floats], name: str, count: int, x: Floats) -> Floats:
    """A network of so many layers with ReLU between them; [..., I] -> [..., O].

    Args:
        weights: ``{name}.{layer}.weight`` [O, I] and ``{name}.{layer}.bias`` [O] of each layer.
        name: of the network.
        count: number of layers.
        x: its input.
    """
    for layer in range(count):
        x = linear(weights, f"{name}.{layer}", np.maximum(x, 0.0) if layer else x)
    return x


def linear(weights: Mapping[str, Floats], name: str, x: Floats) -> Floats:
    """One layer; ``{name}.weight`` [O, I] and ``{name}.bias`` [O]; [..., I] -> [..., O]."""
    out: Floats = x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]
    return out


def lstm_cell(
    weights: Mapping[str, Floats], name: str, x: Floats, hidden: Floats, cell: Floats
) -> tuple[Floats, Floats]:
    """One step of a long short-term memory; its next hidden state and cell, [..., H] each.

    Args:
        weights: ``{name}.input`` [4 H, I], ``{name}.hidden`` [4 H, H] and ``{name}.bias`` [4 H], of the input gate,
            the forget gate, the new content and the output gate, in this order.
        name: of the layer.
        x: input of the step; [..., I].
        hidden: state before; [..., H].
        cell: content before; [..., H].
    """
    gates = x @ weights[f"{name}.input"].T + hidden @ weights[f"{name}.hidden"].T + weights[f"{name}.bias"]
    into, keep, new, out = np.split(gates, 4, axis=-1)
    after = _sigmoid(keep) * cell + _sigmoid(into) * np.tanh(new)
    return _sigmoid(out) * np.tanh(after), after


def _sigmoid(x: Floats) -> Floats:
    # By tanh, which nothing overflows.
    found: Floats = 0.5 + 0.5 * np.tanh(0.5 * x)
    return found


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
