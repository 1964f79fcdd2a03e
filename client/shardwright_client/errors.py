"""Everything that this package raises on purpose: one tree under ``ShardwrightError``.

Messages stand by themselves in a launcher's log: what was asked of whom, what came of it, and what would help.
All can be pickled, so that a rank can send them to the others. None has the API key.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

TYPE_PREFIX = "urn:shardwright:problem:"
"""How the service's problem types begin."""


@dataclass(frozen=True, slots=True)
class SentRequest:
    """What was asked.

    Attributes:
        method: of HTTP.
        url: all of it.
        body: as JSON; None where there is none.
    """

    method: str
    url: str
    body: Mapping[str, Any] | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong with a request.

    Attributes:
        pointer: JSON pointer (RFC 6901) to the field at fault.
        message: what is wrong and what would be right.
        table: name of the table concerned, where there is one.
        parameter: name of the query parameter at fault, where it is one.
    """

    pointer: str
    message: str
    table: str | None = None
    parameter: str | None = None


@dataclass(frozen=True, slots=True)
class Problem:
    """RFC 9457 problem details.

    Attributes:
        type: stable URI of the kind of problem.
        title: the kind, in words.
        status: of HTTP.
        detail: this occurrence, in a sentence.
        instance: the request's id, which the service's log has too.
        pointer: JSON pointer to the field at fault, where it is one field.
        faults: of an invalid request: everything that is wrong.
        extra: further members.
    """

    type: str = "about:blank"
    title: str = ""
    status: int = 0
    detail: str = ""
    instance: str = ""
    pointer: str | None = None
    faults: tuple[Fault, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)


class ShardwrightError(Exception):
    """Base of all errors of this package.

    Attributes:
        request: what was asked; None where it did not come so far.
    """

    def __init__(self, message: str, request: SentRequest | None = None) -> None:
        super().__init__(message)
        self.request = request


class InvalidArgument(ShardwrightError, ValueError):
    """What this package was given cannot be sent, or names no service; nothing was asked."""


class ConnectionFailed(ShardwrightError):
    """No service was reached, or it was cut off before its answer ended."""


class Timeout(ShardwrightError):
    """No answer came in time."""


class UnexpectedAnswer(ShardwrightError):
    """What answered is no Shardwright service, or one that this package cannot read.

    Attributes:
        status: of HTTP.
    """

    def __init__(self, message: str, request: SentRequest | None = None, status: int = 0) -> None:
        super().__init__(message, request)
        self.status = status


class ProblemError(ShardwrightError):
    """The service said no.

    Attributes:
        problem: all that it said.
        retry_after_s: when to ask again, seconds; None where it did not say.
    """

    def __init__(
        self,
        message: str,
        request: SentRequest | None = None,
        problem: Problem | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message, request)
        self.problem = problem or Problem()
        self.retry_after_s = retry_after_s

    @property
    def type(self) -> str:
        """Stable URI of the kind of problem."""
        return self.problem.type

    @property
    def kind(self) -> str:
        """Stable name of the kind of problem, for example ``plan_not_found``."""
        return self.problem.type.removeprefix(TYPE_PREFIX)

    @property
    def title(self) -> str:
        """The kind of problem, in words."""
        return self.problem.title

    @property
    def detail(self) -> str:
        """This occurrence, in a sentence."""
        return self.problem.detail

    @property
    def status(self) -> int:
        """Of HTTP."""
        return self.problem.status

    @property
    def request_id(self) -> str:
        """The request's id, which the service's log has too."""
        return self.problem.instance

    @property
    def errors(self) -> Sequence[Fault]:
        """The fields at fault."""
        if self.problem.faults or self.problem.pointer is None:
            return self.problem.faults
        return (Fault(self.problem.pointer, self.problem.detail),)

    @property
    def extra(self) -> Mapping[str, Any]:
        """Further data of this occurrence, by name."""
        return self.problem.extra


class InvalidRequest(ProblemError):
    """The request contradicts itself or the contract; ``errors`` has every field at fault."""


class Unsupported(ProblemError):
    """No cost model or policy describes what is asked for: sharding, algorithm or hardware."""


class Infeasible(ProblemError):
    """No plan meets the request, or none was found."""

    @property
    def reason(self) -> str:
        """What it fails by, for example ``total_memory``."""
        return str(self.extra.get("reason") or "")

    @property
    def proven(self) -> bool:
        """True where no plan can exist, False where the search found none."""
        return bool(self.extra.get("proven"))

    @property
    def shortfall_bytes(self) -> int:
        """Bytes missing; 0 where the amount is not known."""
        return int(self.extra.get("shortfall_bytes") or 0)

    @property
    def tables(self) -> Sequence[str]:
        """Names of the tables that bind."""
        return tuple(self.extra.get("tables") or ())

    @property
    def devices(self) -> Sequence[int]:
        """Indices of the devices that bind."""
        return tuple(self.extra.get("devices") or ())

    @property
    def remedies(self) -> Sequence[str]:
        """The least changes that would help, one sentence each."""
        return tuple(self.extra.get("remedies") or ())


class NoPlanInTime(ProblemError):
    """The time limit passed before any plan was found; says nothing about feasibility."""


class NotFound(ProblemError):
    """What was named is not stored."""


class Unauthorized(ProblemError):
    """The service does not take the API key, or wants one."""


class Forbidden(ProblemError):
    """The API key may not do this."""


class Busy(ProblemError):
    """The service cannot answer now: no room, a quota, a database that is away; see ``retry_after_s``."""


class ServiceFailed(ProblemError):
    """The service failed; its log says more under ``request_id``."""


_BY_KIND: Mapping[str, type[ProblemError]] = {
    "invalid_request": InvalidRequest,
    "unsupported_sharding": Unsupported,
    "unsupported_algorithm": Unsupported,
    "unknown_hardware": Unsupported,
    "infeasible": Infeasible,
    "no_plan_in_time": NoPlanInTime,
    "idempotent_call_running": Busy,
}
_BY_STATUS: Mapping[int, type[ProblemError]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    408: Busy,
    429: Busy,
    503: Busy,
}


def problem_class(problem: Problem) -> type[ProblemError]:
    """The class of errors that a problem is of: by its type, where that says nothing by its status."""
    kind = problem.type.removeprefix(TYPE_PREFIX)
    failed = ServiceFailed if problem.status >= 500 else ProblemError
    return _BY_KIND.get(kind) or _BY_STATUS.get(problem.status) or failed
