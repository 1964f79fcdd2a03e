"""What ranks of the tests do; imports little, so that they start quickly."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

MEGABYTE = 2**20


def square(rank: int) -> int:
    return rank * rank


def hang(rank: int) -> None:
    while True:
        time.sleep(60)


def touch_and_hang(folder: Path, rank: int) -> None:
    """Says in a folder that it runs."""
    (folder / str(rank)).touch()
    hang(rank)


def echo(content: bytes, rank: int) -> bytes:
    return content + bytes([rank])


class Unreadable:
    """A task that no rank can read."""

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return _unreadable, ()

    def __call__(self, rank: int) -> None:
        raise NotImplementedError


def _unreadable() -> None:
    raise ValueError("unreadable")


def rank_1_closes_all_it_has_open(rank: int) -> None:
    if rank == 1:
        os.closerange(3, 1024)
    hang(rank)


def rank_1_raises(rank: int) -> None:
    if rank == 1:
        raise ValueError("no such width\nsecond line")
    hang(rank)


def rank_1_exits(rank: int) -> None:
    if rank == 1:
        os._exit(7)
    hang(rank)


def rank_1_stops(rank: int) -> None:
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    hang(rank)


def rank_1_is_lost(rank: int) -> None:
    """As where a connection breaks: the others notice before the end of the lost one shows."""
    if rank != 1:
        raise ConnectionError("lost rank 1")
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGKILL)
