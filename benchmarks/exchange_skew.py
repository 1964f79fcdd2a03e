"""Whether the transfer of the forward exchange is priced right however far apart the ranks start.

Error and bias of the shipped communication model on the held-out exchanges of the shipped measurements, for ranks that
start together, up to 40 ms apart and further. A bias that changes with the skew is a dependence that the model misses.
Run: python -m benchmarks.exchange_skew
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from service.cost_models.communication import LEAST_MS
from service.domain.measurements import CommunicationMeasurement, Split, comparable
from service.domain.ports import CommunicationCostModel
from service.domain.versions import COMMUNICATION
from service.registry.store import ModelStore
from service.settings import Settings
from service.storage.measurement_files import read_measurements
from service.training.communication_dataset import exchange_groups
from service.training.communication_evaluation import predict

HARDWARE = "cpu-fbgemm"
UP_TO_MS = (0.0, 40.0, inf)
"""Bounds of the skew, the difference between the first start and the last; each bin includes its own."""


@dataclass(frozen=True, slots=True)
class SkewError:
    """How well transfers of one bin of skews are priced.

    Attributes:
        up_to_ms: largest skew of the bin.
        times: devices of all exchanges.
        error: mean of |predicted / measured - 1|.
        bias: mean of predicted / measured - 1.
        median_bias: median of the same, which a stalled rank does not move.
    """

    up_to_ms: float
    times: int
    error: float
    bias: float
    median_bias: float


def transfer_errors(model: CommunicationCostModel, measurements: Sequence[CommunicationMeasurement]) -> list[SkewError]:
    """Errors of the forward transfer for each bin of ``UP_TO_MS`` that has any; times of ``LEAST_MS`` do not count."""
    skews, deviations = [], []
    for group in exchange_groups(measurements):
        measured = group.costs[..., 0]
        kept = measured > LEAST_MS
        skew = np.broadcast_to(group.nominal_wait_ms.max(axis=1, keepdims=True), measured.shape)
        skews.append(skew[kept])
        deviations.append(predict(model, group)[..., 0][kept] / measured[kept] - 1)
    bins = np.searchsorted(UP_TO_MS, np.concatenate(skews))
    deviation = np.concatenate(deviations)
    return [_skew_error(bound, deviation[bins == i]) for i, bound in enumerate(UP_TO_MS) if (bins == i).any()]


def step_biases(model: CommunicationCostModel, measurements: Sequence[CommunicationMeasurement]) -> dict[int, float]:
    """Mean error, for each number of ranks, of what a plan's cost holds: from the first start to the last end."""
    found = {}
    for group in exchange_groups(measurements):
        predicted = group.nominal_wait_ms.max(axis=1) + predict(model, group)[..., 0].max(axis=1)
        measured = (group.wait_ms + group.costs[..., 0]).max(axis=1)
        found[group.devices] = float((predicted / measured - 1).mean())
    return found


def _skew_error(up_to_ms: float, deviation: np.ndarray[tuple[int], np.dtype[np.float64]]) -> SkewError:
    error, bias, median = np.abs(deviation).mean(), deviation.mean(), np.median(deviation)
    return SkewError(up_to_ms, len(deviation), float(error), float(bias), float(median))


def main() -> None:
    """Prints error and bias of each bin."""
    store = ModelStore(Settings().model_store)
    version = store.latest(HARDWARE, COMMUNICATION)
    if version is None:
        raise SystemExit(f"no communication model of {HARDWARE} is shipped")
    _, measured = read_measurements(store.measurement_files()[HARDWARE])
    held_out = [m for m in comparable(measured) if m.split is Split.TEST]
    model = store.communication_model(version)
    print(f"transfer of {version} on {len(held_out)} held-out exchanges, by skew")
    for found in transfer_errors(model, held_out):
        print(
            f"up to {found.up_to_ms:g} ms: {found.times} times, error {found.error:.1%}, bias {found.bias:+.1%}, "
            f"median bias {found.median_bias:+.1%}"
        )
    for devices, bias in step_biases(model, held_out).items():
        print(f"skew and longest transfer together, {devices} ranks: bias {bias:+.1%}")


if __name__ == "__main__":
    main()
