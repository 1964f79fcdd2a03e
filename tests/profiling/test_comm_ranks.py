"""Whatever happens to a rank, the error names it and no rank is left."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from service.domain.errors import MeasurementRefused
from service.profiling.ranks import run_ranks
from tests.api.processes import is_alive, planning_processes, wait_for
from tests.profiling.rank_tasks import hang, rank_1_exits, rank_1_is_lost, rank_1_raises, rank_1_stops, square

PARENT = """
from service.profiling.ranks import run_ranks
from tests.profiling.rank_tasks import hang
run_ranks(hang, 2, 600)
"""


@pytest.fixture(autouse=True)
def _no_rank_left() -> Iterator[None]:
    before = planning_processes(os.getpid())
    yield
    assert planning_processes(os.getpid()) == before


def test_answers_come_in_the_order_of_the_ranks() -> None:
    assert run_ranks(square, 3, 60) == [0, 1, 4]


@pytest.mark.parametrize(
    ("task", "said"),
    [
        (rank_1_raises, r"rank 1 of 3 .*failed with ValueError: no such width: measure again"),
        (rank_1_exits, r"rank 1 of 3 .*exit code 7"),
        (rank_1_is_lost, r"rank 1 of 3 .*ended by SIGKILL: measure again"),
    ],
)
def test_a_rank_that_fails_ends_all_long_before_the_time_limit(task: Callable[[int], None], said: str) -> None:
    started = time.monotonic()
    with pytest.raises(MeasurementRefused, match=said) as refused:
        run_ranks(task, 3, 600)
    assert time.monotonic() - started < 30
    assert refused.value.data["rank"] == 1
    assert "\n" not in refused.value.detail


def test_a_stopped_rank_is_named_once_the_time_limit_has_passed() -> None:
    started = time.monotonic()
    with pytest.raises(MeasurementRefused, match=r"rank 1 of 2 .*is stopped") as refused:
        run_ranks(rank_1_stops, 2, 4)
    assert 4 <= time.monotonic() - started < 10
    assert refused.value.data["rank"] == 1


def test_ranks_that_hang_are_ended_at_the_time_limit() -> None:
    with pytest.raises(MeasurementRefused, match=r"0, 1 did not finish within 0\.5 s: leave the machine"):
        run_ranks(hang, 2, 0.5)


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGINT])
def test_ranks_end_with_their_parent(ending: signal.Signals) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stderr=subprocess.PIPE, text=True, start_new_session=True)
    wait_for(lambda: len(planning_processes(parent.pid)) == 2)
    ranks = planning_processes(parent.pid)
    if ending == signal.SIGINT:
        # A terminal sends it to the whole group.
        os.killpg(parent.pid, ending)
    else:
        parent.send_signal(ending)
    _, errors = parent.communicate(timeout=30)
    wait_for(lambda: not any(map(is_alive, ranks)))
    if ending == signal.SIGINT:
        assert errors.count("Traceback") == 1
