"""What the inner rooms ask of the outer ones."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from service.domain.callers import Caller
from service.domain.error_law import ErrorLaw
from service.domain.measurements import CommunicationMeasurement, ComputeMeasurement
from service.domain.policy import PlacementPolicy
from service.domain.profiles import ProfileRequest, ProfileTerms, TableProfile
from service.domain.retention import Kept, Retention, TrainedBench
from service.domain.tables import Optimizer, Table
from service.domain.trainings import Outcome

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Embeddings = NDArray[np.float32]

FORWARD, BACKWARD = 0, 1
"""Positions of the forward and backward cost, of compute (``ComputeCostModel.head``) as of exchanges."""

COMPUTE_TOTAL = 2
"""Position, after these two, of their sum in the law that ``ComputeCostModel.errors`` tells."""


class LeastCosts(Protocol):
    """Compute that devices have at least, in milliseconds, from what they hold of T tables; made for G widths a table.

    A device may hold more of these tables than it is said to, and its columns of a table may be one slice or several.
    """

    @property
    def alone(self) -> Floats:
        """Of a device with more columns of a table than the width before this one, any for the first; [T, G].

        Columns and widths are multiples of 4.
        """

    def together(self, held: Sequence[Sequence[int]]) -> Floats:
        """Of devices that hold these tables whole, by their positions; N lists -> [N]."""

    def shared(self, tables: Integers, widest: Integers, devices: int) -> float:
        """Of the dearest of the devices that hold all of these tables between them; infinite where they cannot.

        Args:
            tables: positions of K tables; [K].
            widest: position of the width that no device holds more columns of a table than; [K].
            devices: how many there are.
        """


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

    def least_costs(
        self, tables: Sequence[Table], widths: Integers, batch_size: int, optimizer: Optimizer
    ) -> LeastCosts:
        """What no device costs less than, whatever it holds of T tables.

        Args:
            tables: all that any device may hold.
            widths: multiples of 4, ascending, the last of each row the table's own; [T, G].
            batch_size: the global batch.
            optimizer: the fused optimizer.
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

    def least_exchange(self, width: int, devices: int, batch_size: int) -> float:
        """Milliseconds that exchanges add to a plan at least, however two or more devices share these output columns.

        The backward exchange of any one device, and the largest forward transfer whatever the waits: the two together.
        """

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
    """The versions that make a plan together.

    Attributes:
        compute: prices a device.
        communication: prices the exchanges.
        digest: hash of what the versions hold; two stores may use one name for different weights.
        policy: places tables, where the algorithm is one that was trained for this.
    """

    compute: ComputeCostModel
    communication: CommunicationCostModel
    digest: str = ""
    policy: PlacementPolicy | None = None

    @property
    def versions(self) -> dict[str, str]:
        """Version of each model, by kind; of a policy that is the algorithm's name."""
        found = {"compute": self.compute.version, "communication": self.communication.version}
        if self.policy is not None:
            found[self.policy.algorithm.value] = self.policy.version
        return found


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

    def refuse_unwritable(self) -> None:
        """Raises ModelStoreUnwritable where no version can be written, which is known before anything is trained."""

    def write(
        self, hardware: str, model: str, weights: Mapping[str, NDArray[np.float32]], facts: Mapping[str, Any]
    ) -> object:
        """Writes the next version, whole or not at all; ``str()`` of the result is its name."""


class PlanStore(Protocol):
    """Keeps plans."""

    def get(self, plan_id: str, caller: Caller) -> StoredPlan | None:
        """The plan with this id, or None where there is none for this caller.

        Raises:
            StorageUnavailable: the database cannot be reached.
        """

    def ask(self, plan_id: str, caller: Caller) -> StoredPlan | None:
        """The plan with this id, or None; it is the caller's own from now on, who asked the whole question.

        Raises:
            StorageUnavailable: the database cannot be reached.
        """

    def put(self, plan: StoredPlan, caller: Caller) -> StoredPlan:
        """Stores a plan of a caller durably and returns the one stored under its id, which is the caller's own too.

        That is the first that was put there; but one whose answer's ``status`` is ``cut_short`` gives way to one that
        is ``complete`` or costs less.

        Raises:
            StorageUnavailable: the database cannot be reached.
        """

    def delete(self, plan_id: str, caller: Caller) -> None:
        """Takes a plan from a caller, or from everyone where the caller sees all.

        Raises:
            PlanNotFound: there is none under this id for this caller.
            StorageUnavailable: the database cannot be reached.
        """


@dataclass(frozen=True, slots=True)
class PlanPlace:
    """Where a plan stands among those that there are."""

    created_at: datetime
    plan_id: str


@dataclass(frozen=True, slots=True)
class ListedPlan:
    """A stored plan in short."""

    place: PlanPlace
    hardware: str
    algorithm: str
    status: str
    max_cost_ms: float


class PlanIndex(Protocol):
    """Tells which plans there are."""

    def listed(self, caller: Caller, after: PlanPlace | None, most: int) -> list[ListedPlan]:
        """Plans that are there for a caller, the newest first; listing is no use of them.

        Args:
            caller: who asks.
            after: the last one that the caller has seen; None from the newest on.
            most: how many at most.

        Raises:
            StorageUnavailable: the database cannot be reached.
        """


class RetentionStore(Protocol):
    """Deletes what is kept no longer; all of it raises StorageUnavailable where the database cannot be reached."""

    def prune(self, kind: Kept, keep: Retention, trained: Collection[TrainedBench], limit: int) -> int:
        """Deletes so many rows at most, in a short transaction; says how many. 0 where nothing is left to delete.

        Args:
            kind: of what.
            keep: how long.
            trained: benches whose measurements stay, since versions that exist were trained on them.
            limit: of one transaction.
        """

    def prunable(self, keep: Retention, trained: Collection[TrainedBench]) -> dict[Kept, int]:
        """How many rows of each kind would be deleted; locks nothing."""


class ProfileStore(Protocol):
    """Keeps profiles, and queues each once however many ask."""

    def devices(self, hardware: str, terms: ProfileTerms) -> set[str]:
        """What live workers measure a hardware on, as they name it; empty where none serves it.

        Raises:
            StorageUnavailable: the database cannot be reached.
        """

    def queue_new(self, profiles: Iterable[TableProfile], caller: str, terms: ProfileTerms) -> int:
        """Queues those that are neither known nor measured yet, up to half of the caller's quota; how many.

        Raises:
            NoWorker: there are new ones, and no live worker serves their hardware.
            StorageUnavailable: the database cannot be reached.
        """

    def request(self, named: Sequence[tuple[str, TableProfile]], caller: str, terms: ProfileTerms) -> ProfileRequest:
        """Stores a request and queues those of its profiles that are not known yet, all or nothing.

        Args:
            named: tables by name; of one hardware.
            caller: who asks.
            terms: what callers may queue.

        Raises:
            NoWorker: there are new ones, and no live worker serves their hardware.
            ProfileQuotaExceeded: there are more new ones than the caller may queue today.
            StorageUnavailable: the database cannot be reached.
        """

    def get_request(self, request_id: str, caller: Caller) -> ProfileRequest | None:
        """The request with this id and where its profiles stand, or None where there is none for this caller.

        Raises:
            StorageUnavailable: the database cannot be reached.
        """


class TrainingStore(Protocol):
    """Keeps what trainings came to; all of it raises StorageUnavailable where the database cannot be reached."""

    def alone(self, hardware: str) -> AbstractContextManager[Callable[[], None]]:
        """Keeps all others from retraining models of a hardware until its end, or that of the process.

        What it gives is called to make sure of that: it raises StorageUnavailable where the connection was lost, so
        that another may have begun.

        Raises:
            RetrainingUnderWay: another process does.
        """

    def now(self) -> datetime:
        """The time, by the database's clock."""

    def add(self, outcome: Outcome) -> None:
        """Stores an outcome durably."""

    def of_model(self, hardware: str, model: str, limit: int) -> list[Outcome]:
        """Outcomes of a model, the last first."""
