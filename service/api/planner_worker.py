"""The side of planning that runs in a process of its own.

At import it loads nothing that brings numpy, because BLAS reads its number of threads when it is loaded; and never
torch, FastAPI or SQLAlchemy, so that planning processes start fast and stay small.
"""

import gc
import importlib
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing import connection, parent_process
from typing import TYPE_CHECKING, Any

from service.api.recent import Recent
from service.domain.deadline import Deadline
from service.domain.errors import Fault, InvalidRequest, PlanCancelled, ShardwrightError
from service.domain.plan import Algorithm, Problem, Running, Shard
from service.telemetry import logging as structured_logging
from service.telemetry.tracing import span_in
from service.telemetry.tracing import start as start_tracing

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from service.domain.ports import CostModels
    from service.domain.version_ports import ModelSource
    from service.usecases.estimate import Estimate
    from service.usecases.make_plan import PlanResult

_THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


def use_one_blas_thread() -> None:
    """Has this process plan with one thread, if numpy is not loaded yet; more would wait for each other in turns."""
    for variable in _THREAD_VARIABLES:
        os.environ[variable] = "1"


@dataclass(frozen=True, slots=True)
class SourceSpec:
    """How a process makes its source of cost models; a name rather than an object, so that it imports it late.

    Attributes:
        factory: ``module:callable``.
        root: the callable's argument.
    """

    factory: str
    root: str

    def build(self) -> "ModelSource":
        """The source."""
        module, name = self.factory.split(":")
        source: ModelSource = getattr(importlib.import_module(module), name)(self.root)
        return source


@dataclass(frozen=True, slots=True)
class Refusal:
    """A domain error on its way between processes: exceptions with data do not survive pickling."""

    kind: type[ShardwrightError]
    detail: str
    data: dict[str, Any] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()

    def error(self) -> ShardwrightError:
        """The error again."""
        return InvalidRequest(self.faults) if self.faults else self.kind(self.detail, **self.data)


@dataclass(frozen=True, slots=True)
class Crash:
    """An unexpected error on its way between processes."""

    traceback: str


@dataclass(frozen=True, slots=True)
class Cancel:
    """Sent after a call whose outcome nobody waits for any more; without effect once it is on its way."""


_LOOK_S = 0.02
"""Seconds between two looks whether the call was cancelled: looking takes longer than reading a clock."""

_KEPT = 32
"""Sets of models that a process keeps: what serves, what served a moment ago, and what some requests pin."""

_sources: "list[ModelSource]" = []
"""This process's source of cost models, once it has one."""

_loaded: "Recent[tuple[str, ...], CostModels]" = Recent(_KEPT)
"""This process's cost models, by hardware and the names of their versions."""


_pipes: "list[Connection[Any, Any]]" = []
"""This process's pipe to the one that calls, once it has one."""


def main(pipe: "Connection[Any, Any]", spec: SourceSpec) -> None:
    """A planning process: answers the calls that come through a pipe until its other end is gone."""
    structured_logging.configure("warning")
    tracing = start_tracing()
    _pipes.append(pipe)
    _initialize(spec)
    while True:
        try:
            received = pipe.recv()
        except EOFError:
            return
        if isinstance(received, Cancel):
            continue
        call, args, parent = received
        with span_in(tracing, f"planning process: {call.__name__}", parent):
            outcome = _outcome(call, args)
        pipe.send(outcome)


def _outcome(call: Callable[..., Any], args: Sequence[Any]) -> Any:
    try:
        return call(*args)
    except InvalidRequest as error:
        return Refusal(InvalidRequest, error.detail, faults=error.faults)
    except ShardwrightError as error:
        return Refusal(type(error), error.detail, dict(error.data))
    except Exception:
        return Crash(traceback.format_exc())


def _initialize(spec: SourceSpec) -> None:
    """Prepares a fresh process: one BLAS thread, deaf to Ctrl-C (blocked until here), gone when its parent is."""
    use_one_blas_thread()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_follow_parent, daemon=True).start()
    source = spec.build()
    _sources.append(source)
    importlib.import_module("service.usecases.estimate")
    # A question with little time must not wait for it.
    importlib.import_module("service.search.exact").load_solver()
    for hardware in source.hardware():
        for policy in (None, *source.policies(hardware)):
            # A damaged version is the matter of the requests that ask for it.
            with suppress(ShardwrightError):
                _keep(hardware, source.cost_models(hardware, policy=policy))
    # What is loaded now stays: a full collection need not look through it.
    gc.collect()
    gc.freeze()


def _follow_parent() -> None:
    """Ends this process with its parent, however that ended and whatever this process is at."""
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def _cost_models(hardware: str, versions: Mapping[str, str]) -> "CostModels":
    return _loaded.get(_key(hardware, versions), lambda: _sources[0].cost_models(hardware, versions))


def _keep(hardware: str, models: "CostModels") -> None:
    _loaded.get(_key(hardware, models.versions), lambda: models)


def _key(hardware: str, versions: Mapping[str, str]) -> tuple[str, ...]:
    return (hardware, *(versions[kind] for kind in sorted(versions)))


def ready() -> None:
    """Does nothing; an answer means that the process is prepared."""


def plan(
    problem: Problem,
    versions: Mapping[str, str],
    algorithm: Algorithm,
    seed: int,
    deadline: Deadline,
    running: Running | None,
) -> "PlanResult":
    """``make_plan`` with models of these versions; the deadline's clock is the machine's, not the process's.

    Raises:
        PlanCancelled: when the clock is looked at next after the call was cancelled.
    """
    from service.usecases.make_plan import make_plan

    models = _cost_models(problem.topology.hardware, versions)
    return make_plan(problem, models, algorithm, seed, replace(deadline, clock=_clock_while_wanted()), running)


def _clock_while_wanted() -> Callable[[], float]:
    """The machine's clock for a search, which ends with its call: whatever it is at, it looks at its clock often."""
    look_at = 0.0

    def clock() -> float:
        nonlocal look_at
        now = time.monotonic()
        if now >= look_at:
            look_at = now + _LOOK_S
            if _pipes[0].poll():
                _pipes[0].recv()
                raise PlanCancelled("nobody waits for the plan any more")
        return now

    return clock


def estimate(problem: Problem, versions: Mapping[str, str], shards: Sequence[Shard]) -> "Estimate":
    """``usecases.estimate`` with models of these versions."""
    from service.usecases import estimate as usecase

    return usecase.estimate(problem, _cost_models(problem.topology.hardware, versions), shards)
