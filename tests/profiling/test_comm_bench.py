"""The exchanges' bench: stamps composed by hand-computed values, real ranks with delays, and one killed in between."""

import os
import signal
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from service.domain.errors import MeasurementRefused
from service.profiling.comm_bench import (
    Exchange,
    Stamps,
    _times,
    default_time_limit_s,
    exchange_times,
    measure_exchanges,
    turns,
    wait_and_transfer,
)
from tests.api.processes import planning_processes, wait_for

SECONDS = st.floats(0, 1e3)
LISTENING, CONNECTED = "0A", "01"


@pytest.fixture
def temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for temporary files that must be empty in the end."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield tmp_path
    assert list(tmp_path.iterdir()) == []


def sockets(pids: set[int], state: str) -> set[str]:
    """Inodes of the TCP sockets that processes have in a state."""
    held = set()
    for descriptor in (path for pid in pids for path in Path(f"/proc/{pid}/fd").glob("*")):
        with suppress(OSError):
            held.add(os.readlink(descriptor))
    return {inode for inode in all_sockets(state) if f"socket:[{inode}]" in held}


def all_sockets(state: str) -> set[str]:
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()]
    return {fields[9] for fields in lines if fields[3] == state}


def test_wait_ends_and_transfer_begins_when_the_last_rank_starts() -> None:
    # Of the second exchange, rank 0 is done before rank 1 starts.
    starts = np.array([[0.0, 10.0], [3.0, 14.0], [5.0, 10.0]])
    ends = np.array([[9.0, 11.5], [8.0, 20.0], [7.0, 15.0]])
    wait, transfer = wait_and_transfer(starts, ends)
    assert wait.tolist() == [[5.0, 1.5], [2.0, 0.0], [0.0, 4.0]]
    assert transfer.tolist() == [[4.0, 0.0], [3.0, 6.0], [2.0, 1.0]]


@given(st.integers(1, 6).flatmap(lambda d: st.tuples(*[arrays(float, (d, 2), elements=SECONDS)] * 2)))
def test_wait_and_transfer_are_never_negative_and_make_up_all_of_the_time(stamps: tuple[Stamps, Stamps]) -> None:
    starts, durations = stamps
    ends = starts + durations
    wait, transfer = wait_and_transfer(starts, ends)
    assert (wait >= 0).all()
    assert (transfer >= 0).all()
    np.testing.assert_allclose(wait + transfer, ends - starts, atol=1e-9)
    assert (wait[starts == starts.max(axis=0)] == 0).all()
    assert (transfer[ends <= starts.max(axis=0)] == 0).all()


def test_times_of_each_repeat_and_their_medians_are_each_ranks_in_milliseconds() -> None:
    # [rank, case, repeat, backward and forward, start and end], seconds.
    stamps = np.zeros((2, 2, 3, 2, 2))
    stamps[:, :, :, 0, 1] = [[[0.001, 0.002, 0.9], [0.01, 0.01, 0.01]], [[0.003, 0.004, 0.005], [0.02, 0.02, 0.02]]]
    stamps[1, :, :, 1, 0] = [[0.1, 0.5, 0.2], [0.3, 0.3, 0.3]]
    stamps[0, :, :, 1, 1] = [[0.11, 0.52, 0.23], [0.34, 0.34, 0.34]]
    stamps[1, :, :, 1, 1] = [[0.15, 0.55, 0.25], [0.35, 0.35, 0.35]]
    times = _times(stamps)
    assert times[0].forward_wait_ms == pytest.approx(np.array([[100, 500, 200], [0, 0, 0]]))
    assert times[0].forward_transfer_ms == pytest.approx(np.array([[10, 20, 30], [50, 50, 50]]))
    assert times[0].backward_ms == pytest.approx(np.array([[1, 2, 900], [3, 4, 5]]))
    first, second = (found.medians() for found in times)
    assert first.forward_wait_ms == pytest.approx((200, 0))
    assert first.forward_transfer_ms == pytest.approx((20, 50))
    assert first.backward_ms == pytest.approx((2, 4))
    assert second.forward_wait_ms == pytest.approx((300, 0))
    assert second.forward_transfer_ms == pytest.approx((40, 50))
    assert second.backward_ms == pytest.approx((10, 20))


def test_real_ranks_wait_for_the_last_and_a_rank_without_tables_takes_part(temporary_folder: Path) -> None:
    ranks_before = planning_processes(os.getpid())
    delayed = Exchange((8, 8, 8), 64, (0.0, 150.0, 300.0))
    uneven = Exchange((256, 0, 4), 1000, (0.0, 0.0, 0.0))
    nothing = Exchange((0, 0, 0), 64, (0.0, 0.0, 0.0))
    timings = measure_exchanges([delayed, uneven, nothing], warmup=1, repeats=5)
    assert planning_processes(os.getpid()) == ranks_before
    wait, transfer = timings[0].forward_wait_ms, timings[0].forward_transfer_ms
    for measured, wanted in zip(wait, (300, 150, 0), strict=True):
        assert measured == pytest.approx(wanted, abs=100)
    assert wait[0] > wait[1] > wait[2] >= 0
    assert all(0 < ms < 100 for ms in transfer)
    for timing in timings[1:]:
        assert all(ms < 100 for ms in timing.forward_wait_ms)
    assert len(timings) == 3
    assert all(len(part) == 3 for t in timings for part in (t.forward_wait_ms, t.forward_transfer_ms, t.backward_ms))
    assert max(timings[1].backward_ms) > 0


def test_every_repeat_of_real_ranks_is_told() -> None:
    exchange = Exchange((64, 0), 256, (0.0, 5.0))
    (times,) = exchange_times([exchange], warmup=1, repeats=4)
    parts = np.stack([times.forward_wait_ms, times.forward_transfer_ms, times.backward_ms])
    assert parts.shape == (3, 2, 4)
    assert len(np.unique(times.backward_ms[0])) == 4
    assert (times.forward_wait_ms[0] > times.forward_wait_ms[1]).all()


@given(st.integers(1, 7))
def test_every_repeat_takes_all_cases_and_none_always_follows_the_same_other(cases: int) -> None:
    orders = [turns(cases, repeat) for repeat in range(200)]
    assert all(sorted(order) == list(range(cases)) for order in orders)
    followers = {pair for order in orders for pair in pairwise(order)}
    assert len(followers) == cases * (cases - 1)
    assert {order[0] for order in orders} == set(range(cases))


def test_a_rank_killed_in_the_middle_of_an_exchange_leaves_nothing_behind(temporary_folder: Path) -> None:
    before = planning_processes(os.getpid())

    def ranks() -> set[int]:
        return planning_processes(os.getpid()) - before

    endless = [Exchange((64, 32), 512, (0.0, 1.0))]
    with ThreadPoolExecutor(1) as pool:
        measuring = pool.submit(measure_exchanges, endless, repeats=1_000_000, time_limit_s=120)
        wait_for(lambda: len(ranks()) == 2 and all(sockets({rank}, CONNECTED) for rank in ranks()), 60)
        started = sorted(ranks())
        ports = sockets(set(started), LISTENING)
        assert ports
        time.sleep(0.5)
        killed_at = time.monotonic()
        os.kill(started[1], signal.SIGKILL)
        error = measuring.exception(timeout=60)
    assert time.monotonic() - killed_at < 20
    assert isinstance(error, MeasurementRefused)
    assert "rank 1 of 2" in error.detail
    assert "SIGKILL" in error.detail
    assert ranks() == set()
    assert ports.isdisjoint(all_sockets(LISTENING))


GOOD = Exchange((8, 4), 64, (0.0, 1.5))


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (replace(GOOD, widths=(8,), start_delays_ms=(0.0,)), r"exchange 1: widths has 1 entries"),
        (replace(GOOD, widths=(8, 4, 4), start_delays_ms=(0.0,) * 3), r"exchange 1: widths has 3 .* exchange 0 has 2"),
        (replace(GOOD, start_delays_ms=(0.0,)), r"start_delays_ms is \(0\.0,\): give each of 2 ranks"),
        (replace(GOOD, widths=(8, -4)), "widths holds -4"),
        (replace(GOOD, start_delays_ms=(0.0, -1.0)), "exchange 1: start_delays_ms is .*at least 0"),
        (replace(GOOD, start_delays_ms=(0.0, float("nan"))), "start_delays_ms"),
        (replace(GOOD, start_delays_ms=(0.0, float("inf"))), "start_delays_ms"),
        (replace(GOOD, batch_size=0), "batch_size is 0"),
    ],
)
def test_an_impossible_exchange_is_refused_before_any_rank_starts(bad: Exchange, said: str) -> None:
    with pytest.raises(MeasurementRefused, match=said):
        measure_exchanges([GOOD, bad])


def test_no_repeats_are_refused() -> None:
    with pytest.raises(MeasurementRefused, match="repeats is 0"):
        measure_exchanges([GOOD], repeats=0)


def test_no_exchanges_take_no_time() -> None:
    assert measure_exchanges([]) == []


def test_more_ranks_than_gpus_are_refused() -> None:
    ranks = torch.cuda.device_count() + 2
    with pytest.raises(MeasurementRefused, match=f"{ranks} ranks need a GPU each"):
        measure_exchanges([Exchange((4,) * ranks, 64, (0.0,) * ranks)], device="cuda")


def test_the_time_limit_grows_with_what_is_measured() -> None:
    one = default_time_limit_s([GOOD], 11)
    late = default_time_limit_s([replace(GOOD, start_delays_ms=(0.0, 10_000.0))], 11)
    large = default_time_limit_s([replace(GOOD, widths=(4096, 4096), batch_size=65_536)], 11)
    assert late > one + 100
    assert large > one + 100
    assert default_time_limit_s([GOOD] * 50, 11) > one


@pytest.mark.gpu
def test_gpus_exchange_over_nccl() -> None:
    gpus = torch.cuda.device_count()
    if gpus < 2:
        pytest.skip("needs two GPUs")
    exchange = Exchange((64,) * gpus, 4096, (20.0, *[0.0] * (gpus - 1)))
    (timing,) = measure_exchanges([exchange], device="cuda", repeats=5)
    assert timing.forward_wait_ms[1] == pytest.approx(20, abs=10)
    assert max(timing.forward_transfer_ms) < 20
