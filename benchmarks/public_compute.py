"""The compute model's network on public measurements: error and rank correlation on a held-out fifth.

Run: python -m benchmarks.public_compute [4proc|8proc ...]
"""

import sys
import time

import numpy as np

from benchmarks import shared_data
from service.cost_models.compute import ComputeModel
from service.cost_models.features import FEATURES_VERSION
from service.cost_models.measured_domain import MeasuredDomain
from service.domain.tables import Optimizer
from service.training.compute_dataset import ComputeDataset, build_dataset
from service.training.compute_evaluation import predict
from service.training.compute_trainer import ComputeTraining, train_compute
from service.training.metrics import Metrics, metrics

BATCH_SIZE = 65_536
_SEED = 0
_NOTHING_MEASURED = MeasuredDomain((0, 0), (0, 0), (0, 0), (0.0, 0.0), (), (), (), ())


def public_dataset(name: str) -> ComputeDataset:
    """All rows of ``cpu_compute_<name>``, with one cost: forward and backward together."""
    tables = shared_data.pool()
    rows = shared_data.measurements(f"cpu_compute_{name}")
    combinations = [([tables[i].sliced(dim) for i, dim in row["tables"]], BATCH_SIZE, Optimizer.SGD) for row in rows]
    return build_dataset(combinations, np.array([[row["cost_ms"]] for row in rows]))


def evaluate_public(name: str, config: ComputeTraining) -> Metrics:
    """Trains on 80%, reports on the other 20%."""
    train, held_out = public_parts(public_dataset(name))
    model = ComputeModel(f"public-{name}", train_compute(train, config), FEATURES_VERSION, _NOTHING_MEASURED)
    return metrics(predict(model, held_out).sum(axis=1), held_out.costs.sum(axis=1))


def public_parts(data: ComputeDataset) -> tuple[ComputeDataset, ComputeDataset]:
    """What is trained on, 80%, and what is judged."""
    order = np.random.default_rng(_SEED).permutation(len(data))
    first = int(0.8 * len(data))
    return data.rows(order[:first]), data.rows(order[first:])


def main() -> None:
    """Prints a line for each set."""
    if not shared_data.present():
        sys.exit(f"skipped: the public data is not at {shared_data.SHARED}")
    for name in sys.argv[1:] or ["4proc", "8proc"]:
        started = time.perf_counter()
        found = evaluate_public(name, ComputeTraining())
        seconds = time.perf_counter() - started
        print(
            f"cpu_compute_{name}: held out {found.rows}, MAPE {found.mape:.1%}, median APE {found.median_ape:.1%}, "
            f"tau {found.tau:.3f} (trained in {seconds:.0f} s)"
        )


if __name__ == "__main__":
    main()
