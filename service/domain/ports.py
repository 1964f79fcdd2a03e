"""What the inner rooms ask of the outer ones."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from service.domain.measurements import CommunicationMeasurement, ComputeMeasurement
from service.domain.tables import Optimizer, Table

Floats = NDArray[np.float64]
Embeddings = NDArray[np.float32]

FORWARD, BACKWARD = 0, 1
"""Positions of the forward and backward compute cost in the last axis of ``ComputeCostModel.head``."""

COMPUTE_TOTAL = 2
"""Position, after these two, of their sum in the law that ``ComputeCostModel.errors`` tells."""

LEVEL = 0.9
"""Probability that a measured cost is within the interval told with a predicted one."""

_LARGEST_ERROR = log(1000.0)


def probabilities(count: int) -> Floats:
    """Probabilities spread evenly over (0, 1), (i + 1/2) / count; [count]."""
    return (np.arange(count) + 0.5) / count


@dataclass(frozen=True, slots=True, eq=False)
class ErrorLaw:
    """The law of ``log(measured / predicted)`` of D devices' costs of K kinds.

    Attributes:
        scales: what the standardised law is multiplied by, for each cost; [D, K], positive.
        quantiles: of the standardised law, at ``probabilities(Q)``; [K, Q], ascending.
        shared: what two devices' errors of one cost have in common in one step: the correlation of their normal scores.
    """

    scales: Floats
    quantiles: Floats
    shared: float

    def factors(self, standard: Floats, cost: int) -> Floats:
        """Measured over predicted cost, where the standardised law takes these values; [..., D] -> [..., D].

        Factors of more than 1,000 say no more than that one does.
        """
        return np.exp(np.clip(standard * self.scales[:, cost], -_LARGEST_ERROR, _LARGEST_ERROR))

    def interval(self, costs: Floats, cost: int) -> tuple[Floats, Floats]:
        """Ends of the interval of each device's cost, widened to hold the predicted one; [D] -> [D] and [D]."""
        quantiles = self.quantiles[cost]
        ends = np.interp([(1.0 - LEVEL) / 2, (1.0 + LEVEL) / 2], probabilities(len(quantiles)), quantiles)
        low, high = (costs * self.factors(np.full(costs.shape, end), cost) for end in ends)
        return np.minimum(low, costs), np.maximum(high, costs)


class ComputeCostModel(Protocol):
    """Prices the fused lookup operator of one device; numpy only, so that planning processes stay light.

    The cost of a set of tables is ``head(sum of their embeddings)``: embeddings are computed once for each
    (table, width), and a device's state is a running sum.
    """

    @property
    def version(self) -> str:
        """Name of the version, ``<hardware>/compute/<number>``."""

    def encode(self, tables: Sequence[Table], batch_size: int, optimizer: Optimizer) -> Embeddings:
        """Embeddings of T tables (or slices, as tables of their width) at a global batch size; [T, H]."""

    def head(self, sums: Embeddings) -> Floats:
        """Forward and backward compute in milliseconds for sums of embeddings; [..., H] -> [..., 2].

        An empty device (a sum of zeros) costs 0.
        """

    def assumptions(self, tables: Sequence[Table], batch_size: int, optimizer: Optimizer) -> list[str]:
        """Sentences that say what the model had to assume about this input."""

    def novelty(self, tables: Sequence[Table], batch_size: int, optimizer: Optimizer) -> Floats:
        """How far each of T tables (or slices) is from what was measured; [T].

        1 is as far as a new table of the measured kind seldom is (see ``service.cost_models.novelty``); infinity
        where nothing was measured.
        """

    def errors(self, costs: Floats, held: Sequence[Sequence[Table]], batch_size: int, optimizer: Optimizer) -> ErrorLaw:
        """How far measured costs may be from these predictions.

        Three laws, K = 3: of the forward compute, of the backward compute, and of their sum. What makes one slow makes
        the other slow too, so the law of the sum does not follow from those of its parts.

        Args:
            costs: forward and backward compute of D devices, as ``head`` predicts them; [D, 2].
            held: what each of the D devices holds, slices as tables of their width.
            batch_size: the global batch.
            optimizer: the fused optimizer.
        """


class CommunicationCostModel(Protocol):
    """Prices the all-to-all exchanges of a step, without the wait for the slowest device."""

    @property
    def version(self) -> str:
        """Name of the version, ``<hardware>/communication/<number>``."""

    def forward_transfer(self, widths: Floats, wait_ms: Floats, batch_size: int) -> Floats:
        """Milliseconds of exchanging pooled vectors, from the last device's start on; [..., D] -> [..., D].

        Args:
            widths: pooled output columns of each of D devices; [..., D].
            wait_ms: how long each waits for the last one to start; [..., D]. Devices that wait may exchange meanwhile.
            batch_size: the global batch.
        """

    def backward(self, widths: Floats, batch_size: int) -> Floats:
        """Milliseconds of exchanging gradients; output widths of D devices [..., D] -> [..., D]."""

    def assumptions(self, widths: Floats, wait_ms: Floats, batch_size: int) -> list[str]:
        """Sentences that say what the model had to assume about exchanges of D devices of these widths, [D]."""

    def errors(self, costs: Floats, widths: Floats, batch_size: int) -> ErrorLaw:
        """How far measured exchanges may be from these predictions: K = 2 laws, forward transfer and backward exchange.

        Args:
            costs: forward transfer and backward exchange of D devices, as predicted; [D, 2].
            widths: pooled output columns of each device; [D].
            batch_size: the global batch.
        """


@dataclass(frozen=True, slots=True)
class CostModels:
    """The versions that price a plan together.

    Attributes:
        compute: prices a device.
        communication: prices the exchanges.
        digest: hash of what the versions hold; two stores may use one name for different weights.
    """

    compute: ComputeCostModel
    communication: CommunicationCostModel
    digest: str = ""

    @property
    def versions(self) -> dict[str, str]:
        """Version of each model, by kind."""
        return {"compute": self.compute.version, "communication": self.communication.version}


@dataclass(frozen=True, slots=True)
class StoredPlan:
    """A plan as it is kept.

    Attributes:
        plan_id: hash of the request and the model versions.
        hardware: hardware that it was made for.
        algorithm: algorithm that made it.
        max_cost_ms: its predicted cost.
        request: the request, every default filled in.
        answer: the answer as it was given.
    """

    plan_id: str
    hardware: str
    algorithm: str
    max_cost_ms: float
    request: Mapping[str, Any]
    answer: Mapping[str, Any]


class MeasurementStore(Protocol):
    """Keeps what the profiler measured."""

    def add_compute(self, measurement: ComputeMeasurement) -> bool:
        """Stores one measurement durably; False where its (campaign, index) is stored already."""

    def measured_indices(self, campaign: str) -> set[int]:
        """Indices of a campaign's compute measurements that are stored."""

    def compute(self, hardware: str) -> list[ComputeMeasurement]:
        """All compute measurements of one hardware, ordered by campaign and index."""

    def add_communication(self, measurement: CommunicationMeasurement) -> bool:
        """Stores one measurement durably; False where its (campaign, index) is stored already."""

    def communication(self, hardware: str) -> list[CommunicationMeasurement]:
        """All communication measurements of one hardware, ordered by campaign and index."""


class ModelWriter(Protocol):
    """Keeps versions of models."""

    def write(
        self, hardware: str, model: str, weights: Mapping[str, NDArray[np.float32]], facts: Mapping[str, Any]
    ) -> object:
        """Writes the next version, whole or not at all; ``str()`` of the result is its name."""


class PlanStore(Protocol):
    """Keeps plans."""

    def get(self, plan_id: str) -> StoredPlan | None:
        """The plan with this id, or None.

        Raises:
            StorageUnavailable: the database cannot be reached.
        """

    def put(self, plan: StoredPlan) -> StoredPlan:
        """Stores a plan durably and returns the one stored under its id.

        That is the first that was put there; but one whose answer's ``status`` is ``cut_short`` gives way to one that
        is ``complete`` or costs less.

        Raises:
            StorageUnavailable: the database cannot be reached.
        """
