"""Processes of the worker pool; most are for what may crash, take all memory or never end: the worker lives on."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Sequence
from multiprocessing import connection, get_context, parent_process, resource_tracker
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

_THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


def start(main: Callable[..., None], *arguments: Any) -> SpawnProcess:
    """Starts a process; ``main`` begins with ``prepare``."""
    process = get_context("spawn").Process(target=main, args=arguments, daemon=True)
    # Signals to the whole group are the worker's matter: it ends this process, or lets it finish.
    start_deaf(process, signal.SIGINT, signal.SIGTERM)
    return process


def start_deaf(process: SpawnProcess, *numbers: signal.Signals) -> None:
    """Starts a process that signals of these numbers do not reach until it lets them."""
    # Starting this helper would end the block on signals.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def prepare(cpus: Sequence[int]) -> None:
    """In the process, before anything large is loaded: who ends it, and where it runs; any core where none is named."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_follow_parent, daemon=True).start()
    # Where memory runs out, the kernel takes this process before the worker, the API or the database.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="utf-8")
    for variable in _THREAD_VARIABLES:
        os.environ[variable] = "1"
    if cpus:
        os.sched_setaffinity(0, cpus)


def how_it_ended(process: SpawnProcess) -> str:
    """For people; waits a moment for a process that is ending."""
    process.join(5)
    code = process.exitcode or 0
    if code >= 0:
        return f"exit status {code}"
    name = signal.Signals(-code).name
    killed = name == "SIGKILL"
    return f"{name}, perhaps by the kernel because memory ran out" if killed else f"{name}, as by a crash"


def _follow_parent() -> None:
    """Ends this process with its parent, however that ended and whatever this process is at."""
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
