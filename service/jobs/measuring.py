"""The process that measures: whatever becomes of it, the worker lives on.

The operator can end its process, and the kernel ends one that takes too much memory. So a measurement runs in a process
of its own, which the worker starts when there is something to measure, keeps, and starts again when it has ended.
"""

import contextlib
import fcntl
import importlib
import os
import tempfile
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

from service.domain.errors import MeasurementRefused, MemoryIsShort, ShardwrightError
from service.domain.fused_operator import CPU, device_kind
from service.domain.profiles import MeasuredProfile, ProfileSettings, TableProfile
from service.jobs import children

OPERATOR_BENCH = "service.profiling.table_profile:OperatorBench"
"""The real bench."""

Bench = Callable[[TableProfile, int], MeasuredProfile]
"""Measures a profile; its second argument is the position of the first measurement in the profile's campaign."""


_PATIENCE = 10
"""Longest measurements of other workers, one after the other, that are waited for."""


class MeasuringFailed(ShardwrightError):
    """A try to measure failed; the detail says why."""

    kind = "measuring_failed"


class NeverMeasured(MeasuringFailed):
    """The bench refused what it will refuse at every try."""


@dataclass(frozen=True, slots=True)
class _Failed:
    """What the process answers where there is no result; ``error`` is its kind."""

    error: type[MeasuringFailed]
    reason: str


@dataclass(frozen=True, slots=True)
class _Begun:
    """The machine is this process's from now on: what took time until here was others' work."""


@dataclass(frozen=True, slots=True)
class Device:
    """What one worker measures on.

    Attributes:
        name: ``cpu``, ``cuda`` or ``cuda:<n>``, the n-th GPU that the supervisor may use.
        cpus: processor cores that measuring is bound to; any where it is empty.
    """

    name: str
    cpus: tuple[int, ...] = ()

    @property
    def is_gpu(self) -> bool:
        """Whether it is a GPU, rather than processor cores."""
        return device_kind(self.name) != CPU

    def __str__(self) -> str:
        """For people: the device, and its cores where it has any."""
        return f"{self.name} on cores {','.join(map(str, self.cpus))}" if self.cpus else self.name


@dataclass(frozen=True, slots=True)
class MeasuringSpec:
    """How the process measures.

    Attributes:
        device: what it measures on.
        memory_bytes: most that one table may take.
        noisy_spread: see ``ProfileSettings``.
        bench: ``module:callable`` that makes the bench of ``ProfileSettings``.
    """

    device: Device
    memory_bytes: int
    noisy_spread: float
    bench: str = OPERATOR_BENCH


class MeasuringProcess:
    """A place for the process that measures, which may be missing; one measurement at a time."""

    def __init__(self, spec: MeasuringSpec) -> None:
        """An empty place."""
        self._spec = spec
        self._process: SpawnProcess | None = None
        self._pipe: Connection[Any, Any] | None = None

    def measure(self, profile: TableProfile, first_index: int, timeout_s: float) -> MeasuredProfile:
        """What the bench finds of a profile; blocks the calling thread. Starts the process where there is none.

        Args:
            profile: what is measured.
            first_index: position of the first measurement in the profile's campaign.
            timeout_s: most seconds of measuring; waiting for other workers of the machine does not count.

        Raises:
            NeverMeasured: the bench refused, and would again.
            MeasuringFailed: the process ended, took too long and was ended, or the bench failed.
        """
        try:
            if self._process is None or not self._process.is_alive():
                self._start()
            outcome = self._answer((profile, first_index), timeout_s)
        except (EOFError, OSError) as error:
            raise MeasuringFailed(f"the measuring process ended: {self._how_it_ended(error)}") from error
        if isinstance(outcome, _Failed):
            raise outcome.error(outcome.reason)
        found: MeasuredProfile = outcome
        return found

    def end(self) -> None:
        """Ends the process, whatever it is at; what waits for it is told so."""
        if self._process is not None:
            self._process.kill()
            self._process.join()

    def _start(self) -> None:
        self._process = None
        self._pipe, theirs = Pipe()
        with theirs:
            self._process = children.start(main, theirs, self._spec)

    def _answer(self, call: Any, timeout_s: float) -> Any:
        if self._pipe is None:
            raise EOFError
        self._pipe.send(call)
        said = self._said(_PATIENCE * timeout_s, "waiting for other workers of the machine")
        return self._said(timeout_s, "measuring") if isinstance(said, _Begun) else said

    def _said(self, timeout_s: float, doing: str) -> Any:
        if self._pipe is None:
            raise EOFError
        if not self._pipe.poll(timeout_s):
            self.end()
            raise MeasuringFailed(f"{doing} took longer than {timeout_s:g} s and was ended")
        return self._pipe.recv()

    def _how_it_ended(self, error: Exception) -> str:
        if self._process is None:
            return f"it did not start: {error}"
        return children.how_it_ended(self._process)


def main(pipe: "Connection[Any, Any]", spec: MeasuringSpec) -> None:
    """The process: answers the profiles that come through a pipe until its other end is gone."""
    _prepare(spec)
    bench: Bench | None = None
    while True:
        try:
            profile, first_index = pipe.recv()
        except EOFError:
            return
        try:
            with alone_on(spec.device):
                pipe.send(_Begun())
                bench = bench or _bench(spec)
                outcome: MeasuredProfile | _Failed = bench(profile, first_index)
        except MemoryIsShort as error:
            outcome = _Failed(MeasuringFailed, error.detail)
        except MeasurementRefused as error:
            outcome = _Failed(NeverMeasured, error.detail)
        except ShardwrightError as error:
            outcome = _Failed(MeasuringFailed, error.detail)
        except MemoryError:
            outcome = _Failed(MeasuringFailed, "memory ran out: give the worker more, or measure a smaller table")
        except Exception:
            outcome = _Failed(MeasuringFailed, traceback.format_exc())
        # Where the worker is gone this process ends, too.
        with contextlib.suppress(BrokenPipeError):
            pipe.send(outcome)


def _prepare(spec: MeasuringSpec) -> None:
    """Before anything large is loaded: who ends this process, where it runs, and what it sees."""
    children.prepare(spec.device.cpus)
    if spec.device.is_gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = _visible_gpu(spec.device)


def _visible_gpu(device: Device) -> str:
    """The GPU of a device, as CUDA calls it: the n-th of those that may be used."""
    position = int(device.name.partition(":")[2] or 0)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return visible.split(",")[position] if visible else str(position)


def _bench(spec: MeasuringSpec) -> Bench:
    module, name = spec.bench.split(":")
    make = getattr(importlib.import_module(module), name)
    made: Bench = make(ProfileSettings(device_kind(spec.device.name), spec.memory_bytes, spec.noisy_spread))
    return made


@contextlib.contextmanager
def alone_on(device: Device) -> Iterator[None]:
    """Waits until no other process of this machine measures on a GPU or on one of the named cores.

    The kernel ends the hold with the process. A worker that is bound to no cores waits for none.
    """
    gpu = f"gpu-{os.environ['CUDA_VISIBLE_DEVICES']}" if device.is_gpu else None
    names = [gpu] if gpu else [f"core-{cpu}" for cpu in sorted(device.cpus)]
    with contextlib.ExitStack() as holds:
        for name in names:
            path = Path(tempfile.gettempdir(), f"shardwright-{os.geteuid()}-{name}.lock")
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            holds.callback(os.close, lock)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
