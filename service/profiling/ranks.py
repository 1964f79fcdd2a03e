"""Runs a task in several processes of this host, the ranks, and leaves none of them behind whatever happens."""

import ctypes
import multiprocessing
import os
import pickle
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeVar

from service.domain.errors import MeasurementRefused

Answer = TypeVar("Answer")

_SPAWN = multiprocessing.get_context("spawn")
_PR_SET_PDEATHSIG = 1
_SETTLE_S = 1.0
_LOOK_S = 2.0
_GLANCE_S = 0.02
_TASK = "task"


@dataclass(frozen=True, slots=True)
class _Failure:
    """What a rank's task raised, and when on the clock that all processes of the host share."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class _Silence:
    """In place of the answer of a rank whose connection closed before it gave one."""


@dataclass(frozen=True, slots=True)
class _Rank:
    """A rank; ``said`` becomes readable once its answer lies in the folder, or when it ends."""

    number: int
    process: BaseProcess
    said: Connection


def run_ranks(task: Callable[[int], Answer], ranks: int, time_limit_s: float) -> list[Answer]:
    """Calls ``task(rank)`` in a process for each rank at once and returns the answers in the order of the ranks.

    A rank stays until all have answered: leaving would close connections that others still use. All are gone when
    this returns or raises, also those that are stopped, and they end with this process should it be killed.

    Args:
        task: picklable, with a picklable answer; both pass through files, so that neither fills a pipe.
        ranks: number of processes.
        time_limit_s: the longest that starting them and the task may take, seconds.

    Raises:
        MeasurementRefused: a rank was ended, is stopped or raised, or the time limit passed; ``data['rank']`` is the
            rank at fault, where it is one.
    """
    deadline = time.monotonic() + time_limit_s
    with tempfile.TemporaryDirectory(prefix="shardwright-ranks-") as name:
        folder = Path(name)
        with _started(task, ranks, folder) as running:
            answers: dict[int, Any] = {}
            while waiting := {rank.said: rank for rank in running if rank.number not in answers}:
                left = max(0.0, deadline - time.monotonic())
                ready = wait(list(waiting), min(left, _LOOK_S))
                for said, rank in waiting.items():
                    if said in ready:
                        answers[rank.number] = _received(rank, folder)
                # What was timed while a rank was stopped is worth nothing: there is no need to wait for the limit.
                stuck = not ready and (left <= _LOOK_S or any(_is_stopped(rank.process.pid) for rank in running))
                if stuck or _failed(answers):
                    raise _refusal(running, answers, time_limit_s)
            return [answers[rank.number] for rank in running]


@contextmanager
def _started(task: Callable[[int], Any], ranks: int, folder: Path) -> Iterator[list[_Rank]]:
    """The ranks, running; on leaving they are ended by SIGKILL, as a SIGTERM waits for one that is stopped to go on."""
    running: list[_Rank] = []
    try:
        _start_all(task, ranks, folder, running)
        yield running
    finally:
        # One whose start was interrupted or failed has no process.
        begun = [rank for rank in running if rank.process.pid is not None]
        for rank in begun:
            rank.process.kill()
        for rank in begun:
            rank.process.join()
        for rank in running:
            rank.process.close()
            rank.said.close()


def _start_all(task: Callable[[int], Any], ranks: int, folder: Path, running: list[_Rank]) -> None:
    number = 0
    try:
        (folder / _TASK).write_bytes(pickle.dumps(task))
        # Its start unblocks the signals that the ranks are to inherit blocked.
        resource_tracker.ensure_running()
        with _interrupts_blocked():
            for number in range(ranks):
                _start(folder, number, running)
    except OSError as error:
        raise MeasurementRefused(
            f"rank {number} of {ranks} (numbered from 0) could not be started ({error}): measure fewer ranks, or make "
            "room where temporary files go",
            rank=number,
        ) from error


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Ranks inherit the mask: Ctrl-C in a terminal reaches them too, but ending them is for this process."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start(folder: Path, number: int, running: list[_Rank]) -> None:
    """Starts a rank that is among the running before it is: an interrupt leaves none that nobody ends."""
    receiver, sender = _SPAWN.Pipe(duplex=False)
    process = _SPAWN.Process(target=_serve, args=(folder, number, sender), daemon=True)
    running.append(_Rank(number, process, receiver))
    with sender:
        process.start()


def _serve(folder: Path, number: int, done: Connection) -> None:
    """A rank's life: answers, then waits to be ended."""
    _end_with_parent()
    try:
        answer = pickle.dumps(_read(folder / _TASK)(number))
    except Exception as error:
        answer = pickle.dumps(_Failure(time.perf_counter(), _one_line(error)))
    _answer_file(folder, number).write_bytes(answer)
    done.send(None)
    while True:
        signal.pause()


def _end_with_parent() -> None:
    """Has the kernel kill this process when the thread that started it ends, as prctl(2) says; ends if it has."""
    library = ctypes.CDLL(None)
    if hasattr(library, "prctl"):
        library.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    parent = multiprocessing.parent_process()
    if parent is None or os.getppid() != parent.pid:
        os._exit(1)


def _answer_file(folder: Path, number: int) -> Path:
    return folder / f"answer-{number}"


def _received(rank: _Rank, folder: Path) -> Any:
    try:
        rank.said.recv()
    except (EOFError, OSError):
        return _Silence()
    return _read(_answer_file(folder, rank.number))


def _read(path: Path) -> Any:
    # Written by this process or a rank of its own, into a folder that no other user can write to.
    return pickle.loads(path.read_bytes())  # noqa: S301


def _failed(answers: Mapping[int, Any]) -> bool:
    return any(isinstance(answer, (_Failure, _Silence)) for answer in answers.values())


def _refusal(ranks: Sequence[_Rank], answers: Mapping[int, Any], time_limit_s: float) -> MeasurementRefused:
    """What went wrong first: a rank that raises may only have lost its connection to one that was ended or stopped."""
    ended = _ended(ranks, _SETTLE_S if _failed(answers) else 0.0)
    if ended:
        return _said(ended, len(ranks), _ending(ended.process.exitcode or 0))
    stopped = next((rank for rank in ranks if _is_stopped(rank.process.pid)), None)
    if stopped:
        return _said(stopped, len(ranks), "is stopped (SIGSTOP, or a debugger): see why, and measure again")
    silent = next((rank for rank in ranks if isinstance(answers.get(rank.number), _Silence)), None)
    if silent:
        return _said(silent, len(ranks), "closed its connection and gave no answer: measure again")
    failures = {number: answer for number, answer in answers.items() if isinstance(answer, _Failure)}
    if failures:
        first = min(failures, key=lambda number: failures[number].at)
        said = f"failed with {failures[first].text}: measure again, with fewer ranks or less at once if memory ran out"
        return _said(ranks[first], len(ranks), said)
    late = [rank.number for rank in ranks if rank.number not in answers]
    return MeasurementRefused(
        f"of {len(ranks)} ranks, {', '.join(map(str, late))} did not finish within {time_limit_s:g} s: "
        "leave the machine to them, allow more time, or measure less at once",
        ranks=late,
    )


def _said(rank: _Rank, ranks: int, what: str) -> MeasurementRefused:
    return MeasurementRefused(f"rank {rank.number} of {ranks} (numbered from 0) {what}", rank=rank.number)


def _ended(ranks: Sequence[_Rank], patience_s: float) -> _Rank | None:
    """The first rank that has ended, after a moment in which an end that is under way becomes visible."""
    until = time.monotonic() + patience_s
    while True:
        # Not by the sentinel: that closes before the end, and joining would wait for that without limit.
        ended = next((rank for rank in ranks if rank.process.exitcode is not None), None)
        if ended or time.monotonic() >= until:
            return ended
        time.sleep(_GLANCE_S)


def _ending(exit_code: int) -> str:
    if exit_code >= 0:
        return f"ended with exit code {exit_code}: standard error says more; mend that and measure again"
    names = {number.value: number.name for number in signal.Signals}
    name = names.get(-exit_code, f"signal {-exit_code}")
    return f"was ended by {name}: measure again, with fewer ranks or less at once if memory ran out"


def _is_stopped(pid: int | None) -> bool:
    """Whether Linux says so (states T and t of proc(5)); False where there is no /proc."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] in "Tt"
    except OSError:
        return False


def _one_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
