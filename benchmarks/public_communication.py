"""One communication model trained and evaluated on public exchanges of 4 and 8 processes, 80/20 of each with seed 0.

There the forward time runs from a process's own start to a closing barrier: the wait for the last one to start, which
the start delays give, and the transfer. Run: python -m benchmarks.public_communication
"""

import sys
from typing import Any

import numpy as np

from benchmarks import shared_data
from service.cost_models.communication import (
    LEAST_MS,
    CommunicationModel,
    MeasuredExchanges,
    exchanged_bytes,
)
from service.training.communication_dataset import Exchanges
from service.training.communication_evaluation import evaluate_communication
from service.training.communication_trainer import CommunicationTraining, train_communication
from service.training.metrics import Metrics

BATCH_SIZE = 65_536
COUNTS = (4, 8)


def public_exchanges(rows: list[dict[str, Any]]) -> Exchanges:
    """Rows of one file as a group; no wait is measured there, so that the start delays give both."""
    delays = np.array([row["start_delay_ms"] for row in rows], dtype=np.float64)
    wait = delays.max(axis=1, keepdims=True) - delays
    forward, backward = (np.array([row[name] for row in rows]) for name in ("forward_ms", "backward_ms"))
    widths = np.array([row["dim_sums"] for row in rows], dtype=np.float64)
    costs = np.maximum(np.stack([forward - wait, backward], axis=-1), LEAST_MS)
    return Exchanges(widths, np.full((len(rows), 1), BATCH_SIZE), wait, wait, costs)


def evaluate_public(config: CommunicationTraining) -> dict[str, Metrics]:
    """Held-out metrics of one model for all counts; an eighth of the training rows chooses the epoch."""
    parts: tuple[list[Exchanges], list[Exchanges], list[Exchanges]] = ([], [], [])
    for count in COUNTS:
        rows = shared_data.measurements(f"cpu_comm_{count}proc")
        order = np.random.default_rng(0).permutation(len(rows))
        cuts = np.array([0.7, 0.8]) * len(rows)
        for part, chosen in zip(parts, np.split(order, cuts.astype(int)), strict=True):
            part.append(public_exchanges([rows[i] for i in chosen]))
    train, validation, test = parts
    weights = train_communication(train, validation, config)
    sizes = np.concatenate([exchanged_bytes(group.widths, group.batch_sizes).ravel() for group in train])
    covered = (int(sizes.min()), int(sizes.max()))
    measured = MeasuredExchanges(COUNTS, (), (BATCH_SIZE, BATCH_SIZE), covered, (0.0, 20.0))
    model = CommunicationModel("public/communication/1", weights, measured)
    return evaluate_communication(model, test)


def main() -> None:
    """Prints the held-out error for each part and number of processes."""
    if not shared_data.present():
        sys.exit(f"skipped: the public measurements are not at {shared_data.SHARED}")
    found = evaluate_public(CommunicationTraining())
    for name, result in found.items():
        print(
            f"{name}: MAPE {result.mape:.1%}, median {result.median_ape:.1%}, tau {result.tau:.3f}, {result.rows} times"
        )


if __name__ == "__main__":
    main()
