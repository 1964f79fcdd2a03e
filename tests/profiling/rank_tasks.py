"""What ranks of the tests do; imports little, so that they start quickly."""

import os
import signal
import time


def square(rank: int) -> int:
    return rank * rank


def hang(rank: int) -> None:
    while True:
        time.sleep(60)


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
