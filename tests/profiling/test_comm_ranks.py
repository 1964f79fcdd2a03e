"""Whatever happens to a rank, the error names it and no rank is left."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from service.domain.errors import MeasurementRefused
from service.profiling.ranks import run_ranks
from tests.api.processes import is_alive, planning_processes, wait_for
from tests.profiling.rank_tasks import (
    MEGABYTE,
    Unreadable,
    echo,
    hang,
    rank_1_closes_all_it_has_open,
    rank_1_exits,
    rank_1_is_lost,
    rank_1_raises,
    rank_1_stops,
    square,
)

PARENT = """
import sys
from functools import partial
from pathlib import Path
from service.profiling.ranks import run_ranks
from tests.profiling.rank_tasks import touch_and_hang
run_ranks(partial(touch_and_hang, Path(sys.argv[1])), 2, 600)
"""

FEW_FILES = """
import gc, os, resource
from service.domain.errors import MeasurementRefused
from service.profiling.ranks import run_ranks
from tests.profiling.rank_tasks import square
run_ranks(square, 1, 60)
before = os.listdir("/proc/self/fd")
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
for few in (3, 5, 9):
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(before) - 1 + few, most))
    try:
        run_ranks(square, 3, 60)
    except MeasurementRefused as error:
        print(error.detail)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    gc.collect()
    assert os.listdir("/proc/self/fd") == before
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


def test_a_stopped_rank_is_named_long_before_the_time_limit() -> None:
    started = time.monotonic()
    with pytest.raises(MeasurementRefused, match=r"rank 1 of 2 .*is stopped") as refused:
        run_ranks(rank_1_stops, 2, 600)
    assert time.monotonic() - started < 30
    assert refused.value.data["rank"] == 1


def test_ranks_that_hang_are_ended_at_the_time_limit() -> None:
    with pytest.raises(MeasurementRefused, match=r"0, 1 did not finish within 0\.5 s: leave the machine"):
        run_ranks(hang, 2, 0.5)


def test_a_task_and_answers_that_no_pipe_holds_pass_whole() -> None:
    content = os.urandom(MEGABYTE)
    assert run_ranks(partial(echo, content), 2, 60) == [content + b"\0", content + b"\1"]


def test_a_task_that_cannot_be_read_is_a_failure_of_its_rank() -> None:
    with pytest.raises(MeasurementRefused, match=r"rank [01] of 2 .*failed with ValueError: unreadable"):
        run_ranks(Unreadable(), 2, 60)


def test_a_rank_that_loses_its_connection_is_named() -> None:
    with pytest.raises(MeasurementRefused, match=r"rank 1 of 2 .*closed its connection and gave no answer") as refused:
        run_ranks(rank_1_closes_all_it_has_open, 2, 60)
    assert refused.value.data["rank"] == 1


def test_too_few_open_files_are_a_refusal_and_leave_none_open() -> None:
    found = subprocess.run([sys.executable, "-c", FEW_FILES], capture_output=True, text=True, timeout=60, check=False)
    assert found.returncode == 0, found.stderr
    assert len(found.stdout.splitlines()) == 3
    for line in found.stdout.splitlines():
        assert re.match(r"rank \d of 3 .*could not be started \(.*Too many open files\).*: measure fewer ranks", line)


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGINT])
def test_ranks_end_with_their_parent(ending: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, "-c", PARENT, str(tmp_path)]
    # A parent that is killed leaves the folder through which the ranks got their task.
    temporary = tmp_path.parent / f"{tmp_path.name}-temporary"
    temporary.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary)}
    parent = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True, env=environment)
    # They are at their task: one that is still starting would end with the pipe that it reads that from.
    wait_for(lambda: {path.name for path in tmp_path.iterdir()} == {"0", "1"}, 60)
    ranks = planning_processes(parent.pid)
    assert len(ranks) == 2
    if ending == signal.SIGINT:
        # A terminal sends it to the whole group.
        os.killpg(parent.pid, ending)
    else:
        parent.send_signal(ending)
    _, errors = parent.communicate(timeout=30)
    wait_for(lambda: not any(map(is_alive, ranks)))
    if ending == signal.SIGINT:
        assert errors.count("Traceback") == 1
