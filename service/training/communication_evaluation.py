"""Evaluates a communication model, as it will serve, on measured exchanges."""

from collections.abc import Sequence

import numpy as np

from service.cost_models.communication import LEAST_MS
from service.domain.ports import CommunicationCostModel
from service.training.communication_dataset import Exchanges, Values
from service.training.metrics import Metrics, can_be_ranked, metrics

PARTS = ("forward_transfer", "forward", "backward")
"""What is judged; ``forward`` is the wait and the transfer together: the wait that the start delays give beside the
measured one."""


def predict(model: CommunicationCostModel, group: Exchanges) -> Values:
    """Forward transfer and backward exchange of each device, by the numpy code that serves; [N, D, 2]."""
    rows = zip(group.widths, group.nominal_wait_ms, group.batch_sizes[:, 0].astype(int).tolist(), strict=True)
    pairs = [(model.forward_transfer(w, wait, b), model.backward(w, b)) for w, wait, b in rows]
    return np.moveaxis(np.array(pairs, dtype=np.float64).reshape(len(group), 2, group.devices), 1, 2)


def evaluate_communication(model: CommunicationCostModel, groups: Sequence[Exchanges]) -> dict[str, Metrics]:
    """Metrics over all devices of all exchanges, and for each number of devices, as ``forward``, ``forward_4``, ...

    Times of ``LEAST_MS`` or less are not judged, and a metric is left out whose values cannot be ranked.
    """
    found: dict[str, list[tuple[Values, Values]]] = {part: [] for part in PARTS}
    for group in groups:
        for part, pair in _pairs(model, group).items():
            found[part].append(pair)
    joined = {part: _joined(pairs) for part, pairs in found.items()}
    for i, group in enumerate(groups):
        joined.update({f"{part}_{group.devices}": pairs[i] for part, pairs in found.items()})
    return {name: metrics(*pair) for name, pair in joined.items() if can_be_ranked(*pair)}


def _pairs(model: CommunicationCostModel, group: Exchanges) -> dict[str, tuple[Values, Values]]:
    """Predicted and measured milliseconds of each part; at most [N * D] each."""
    predicted, measured = predict(model, group), group.costs
    both = {
        "forward_transfer": (predicted[..., 0], measured[..., 0]),
        "forward": (predicted[..., 0] + group.nominal_wait_ms, measured[..., 0] + group.wait_ms),
        "backward": (predicted[..., 1], measured[..., 1]),
    }
    return {part: (p[m > LEAST_MS], m[m > LEAST_MS]) for part, (p, m) in both.items()}


def _joined(pairs: Sequence[tuple[Values, Values]]) -> tuple[Values, Values]:
    predicted, measured = (np.concatenate(values) for values in zip(*pairs, strict=True))
    return predicted, measured
