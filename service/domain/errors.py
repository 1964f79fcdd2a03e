"""The error tree: every error carries data and a stable ``kind``, and a remedy where there is one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong with an input.

    Attributes:
        pointer: JSON pointer (RFC 6901) to the field at fault, for example ``/tables/3/embedding_dim``.
        message: what is wrong and what would be right.
        table: name of the table concerned, where there is one.
        parameter: name of the query parameter at fault, where it is one; the pointer is empty then.
    """

    pointer: str
    message: str
    table: str | None = None
    parameter: str | None = None


def escaped(token: int | str) -> str:
    """One reference token of a JSON pointer (RFC 6901)."""
    return str(token).replace("~", "~0").replace("/", "~1")


class ShardwrightError(Exception):
    """Base of all errors that this service raises on purpose.

    Attributes:
        kind: stable, machine-readable name of the error; the API turns it into the problem type.
        data: machine-readable facts about this occurrence.
    """

    kind = "error"

    def __init__(self, detail: str, **data: Any) -> None:
        super().__init__(detail)
        self.detail = detail
        self.data: Mapping[str, Any] = data


class InvalidRequest(ShardwrightError):
    """The request contradicts itself or the contract; lists every field at fault."""

    kind = "invalid_request"

    def __init__(self, faults: Sequence[Fault]) -> None:
        first = faults[0]
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        super().__init__(f"{first.pointer or first.parameter or 'request'}: {first.message}{more}")
        self.faults = tuple(faults)


class UnsupportedSharding(ShardwrightError):
    """A way of sharding that the cost models do not describe (row-wise, data-parallel, unpooled)."""

    kind = "unsupported_sharding"


class UnsupportedAlgorithm(ShardwrightError):
    """No policy of the algorithm was trained for the hardware; ``data['available']`` names what can be asked for."""

    kind = "unsupported_algorithm"


class UnknownHardware(ShardwrightError):
    """No cost models exist for the hardware asked for; ``data['known']`` names those that do."""

    kind = "unknown_hardware"


class ModelsUnavailable(ShardwrightError):
    """The model store has no version or cannot be read, so nobody knows what it prices; ``data['retry_after_s']``."""

    kind = "models_unavailable"


class ModelStoreUnwritable(ShardwrightError):
    """No version can be written to the model store: a training would end with nothing."""

    kind = "model_store_unwritable"


class Infeasible(ShardwrightError):
    """No plan meets the request, or none was found.

    Args:
        detail: the sentence for people.
        reason: ``total_memory``, ``table_exceeds_device``, ``pinned``, ``colocate``, ``separate``, ``packing`` or
            ``max_moved_bytes``.
        proven: True where no plan can exist, False where the search found none.
        shortfall_bytes: bytes missing, 0 where the amount is not known.
        tables: names of the tables that bind.
        devices: indices of the devices that bind.
        remedies: the least changes that would help, one sentence each.
    """

    kind = "infeasible"

    def __init__(
        self,
        detail: str,
        *,
        reason: str,
        proven: bool,
        shortfall_bytes: int,
        tables: Sequence[str] = (),
        devices: Sequence[int] = (),
        remedies: Sequence[str] = (),
    ) -> None:
        super().__init__(
            detail,
            reason=reason,
            proven=proven,
            shortfall_bytes=shortfall_bytes,
            tables=list(tables),
            devices=list(devices),
            remedies=list(remedies),
        )


class NoPlanInTime(ShardwrightError):
    """The deadline passed before any plan was found; says nothing about feasibility."""

    kind = "no_plan_in_time"


class PlanCancelled(ShardwrightError):
    """Nobody waits for the plan any more, so that it was not made to its end."""

    kind = "cancelled"


class PlanNotFound(ShardwrightError):
    """No plan is stored under this id, or none that is there for the caller."""

    kind = "plan_not_found"

    @classmethod
    def under(cls, plan_id: str, **data: str) -> Self:
        """The same words whether there is none or it is another's."""
        return cls(f"no plan is stored under {plan_id!r}", **data)


class UnknownModelVersion(ShardwrightError):
    """There is no such model or version; ``data['known']`` names those that there are."""

    kind = "unknown_model_version"


class NothingToRollBackTo(ShardwrightError):
    """No version served before the one that serves."""

    kind = "nothing_to_roll_back_to"


class PlannerBusy(ShardwrightError):
    """All planning processes and their queue are taken; ``data['retry_after_s']`` says when to return."""

    kind = "planner_busy"


class LaunchPending(ShardwrightError):
    """Another process makes the plan of the launch still; ``data['retry_after_s']`` says when to return."""

    kind = "launch_pending"


class StorageUnavailable(ShardwrightError):
    """The database cannot be reached; ``data['retry_after_s']`` says when to return."""

    kind = "storage_unavailable"


class DamagedArtifact(ShardwrightError):
    """A model version or a measurement file is incomplete, altered or of another format."""

    kind = "damaged_artifact"


class MeasurementRefused(ShardwrightError):
    """A measurement that would not fit in memory or that the operator cannot run."""

    kind = "measurement_refused"


class MemoryIsShort(MeasurementRefused):
    """The memory that a measurement may take is not free just now: what else runs there may end."""


class TooFewMeasurements(ShardwrightError):
    """There is not enough to train or to evaluate on."""

    kind = "too_few_measurements"


class InvalidInputFile(ShardwrightError):
    """A file given on the command line does not hold what it should."""

    kind = "invalid_input_file"


class RetrainingUnderWay(ShardwrightError):
    """Another process retrains models of this hardware on this database."""

    kind = "retraining_under_way"
