"""Times the all-to-all exchanges of a step over real ranks: gloo between processes here, nccl between GPUs.

Stamps are ``time.perf_counter()`` of each rank. On Linux that is CLOCK_MONOTONIC, one clock for all processes of a
host, so that stamps of different ranks may be compared: the ranks are processes of this host only.
"""

import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from math import isfinite
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from service.domain.errors import MeasurementRefused
from service.profiling.ranks import run_ranks

BENCH_VERSION = 2
"""Raised when a change here makes times that must not be mixed with earlier ones; 1 had no start delays."""

_FLOAT_BYTES = 4
_BASE_S = 60.0
_START_S = 15.0
_LEAST_BYTES_PER_S = 1e8
_LATENCY_S = 0.2

Stamps = NDArray[np.float64]
Times = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Exchange:
    """One case.

    Attributes:
        widths: pooled output columns that each rank holds; D entries.
        batch_size: global batch size; each rank owns a D-th of the samples.
        start_delays_ms: how long each rank sleeps before its forward exchange, milliseconds; D entries.
    """

    widths: tuple[int, ...]
    batch_size: int
    start_delays_ms: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ExchangeTiming:
    """Median milliseconds of each rank over the repeats; D entries each.

    Attributes:
        forward_wait_ms: from the rank's own start of the forward exchange to the last rank's.
        forward_transfer_ms: from the last rank's start to the rank's own end.
        backward_ms: the same of the backward exchange, which all start together.
    """

    forward_wait_ms: tuple[float, ...]
    forward_transfer_ms: tuple[float, ...]
    backward_ms: tuple[float, ...]


@dataclass(frozen=True, slots=True, eq=False)
class ExchangeTimes:
    """Milliseconds of each rank in every repeat; the parts of ``ExchangeTiming``, [D, R] each."""

    forward_wait_ms: Times
    forward_transfer_ms: Times
    backward_ms: Times

    def medians(self) -> ExchangeTiming:
        """The median of each rank."""
        wait, transfer, backward = (
            tuple(np.median(times, axis=1).tolist())
            for times in (self.forward_wait_ms, self.forward_transfer_ms, self.backward_ms)
        )
        return ExchangeTiming(wait, transfer, backward)


@dataclass(frozen=True, slots=True)
class _Phase:
    """One all-to-all of one case on one rank; the tensors are views of the rank's two buffers."""

    received: torch.Tensor
    sent: torch.Tensor
    receive_splits: list[int]
    send_splits: list[int]
    delay_s: float


def measure_exchanges(
    exchanges: Sequence[Exchange],
    device: str = "cpu",
    warmup: int = 2,
    repeats: int = 9,
    time_limit_s: float | None = None,
) -> list[ExchangeTiming]:
    """Medians of ``exchange_times``, with its arguments and errors."""
    return [times.medians() for times in exchange_times(exchanges, device, warmup, repeats, time_limit_s)]


def exchange_times(
    exchanges: Sequence[Exchange],
    device: str = "cpu",
    warmup: int = 2,
    repeats: int = 9,
    time_limit_s: float | None = None,
) -> list[ExchangeTimes]:
    """Times the exchanges over as many ranks as they have widths.

    One repeat of one exchange: all ranks pass a barrier and exchange gradients backward; they pass another, each
    sleeps its start delay, and they exchange pooled vectors forward. The repeats are interleaved: the first of every
    exchange, then the second, each repeat in an order of its own, so that drift of the machine hits all alike.

    Args:
        exchanges: cases of one number of ranks.
        device: ``cpu``, or ``cuda`` for a rank on each of the first D GPUs.
        warmup: untimed repeats.
        repeats: timed repeats.
        time_limit_s: the longest that it may all take, seconds; by default ``default_time_limit_s``.

    Raises:
        MeasurementRefused: the exchanges are not possible; or a rank was ended, hung or failed, or the time limit
            passed. All ranks are ended then, and nothing of the call is left.
    """
    if not exchanges:
        return []
    _refuse(exchanges, device, warmup, repeats)
    ranks = len(exchanges[0].widths)
    if time_limit_s is None:
        time_limit_s = default_time_limit_s(exchanges, warmup + repeats)
    with tempfile.TemporaryDirectory(prefix="shardwright-exchanges-") as folder:
        rendezvous = str(Path(folder, "rendezvous"))
        task = partial(_stamp_exchanges, tuple(exchanges), device, warmup, repeats, rendezvous)
        stamps = np.stack(run_ranks(task, ranks, time_limit_s))
    return _times(stamps)


def turns(cases: int, repeat: int) -> list[int]:
    """Positions of the cases in the order that a repeat takes them, so that none always follows the same other one.

    Shuffled by the repeat's number: alike in all ranks.
    """
    return [int(case) for case in np.random.default_rng(repeat).permutation(cases)]


def default_time_limit_s(exchanges: Sequence[Exchange], repeats: int) -> float:
    """Several times what the exchanges should take, seconds; ``repeats`` counts the untimed ones too.

    That is a minute, 15 s to start each rank (they import torch, on few cores one after the other), and for each
    repeat its longest delay and its bytes at 100 MB/s.
    """
    ranks = max((len(exchange.widths) for exchange in exchanges), default=0)
    return _start_s(ranks) + repeats * sum(map(_patience_s, exchanges))


def wait_and_transfer(starts: Stamps, ends: Stamps) -> tuple[Stamps, Stamps]:
    """Tells the wait for the last rank from the transfer; the unit is that of the stamps.

    With T the last rank's start, a rank waits ``min(T, end) - start`` and transfers for ``max(0, end - T)``: it can
    only end before T where the ranks that come later send it nothing.

    Args:
        starts: start of each rank, [D, ...].
        ends: end of each rank, not before its start, [D, ...].

    Returns:
        Waits and transfers, [D, ...] each.
    """
    last = starts.max(axis=0, keepdims=True)
    return np.minimum(last, ends) - starts, np.maximum(ends - last, 0.0)


def _times(stamps: Stamps) -> list[ExchangeTimes]:
    """Times of each case, from stamps [D, cases, repeats, backward and forward, start and end] in seconds."""
    waits, transfers = wait_and_transfer(stamps[..., 0] * 1e3, stamps[..., 1] * 1e3)
    return [
        ExchangeTimes(waits[:, case, :, 1], transfers[:, case, :, 1], transfers[:, case, :, 0])
        for case in range(stamps.shape[1])
    ]


def _refuse(exchanges: Sequence[Exchange], device: str, warmup: int, repeats: int) -> None:
    """Raises MeasurementRefused for what cannot be measured."""
    if repeats < 1 or warmup < 0:
        raise MeasurementRefused(f"repeats is {repeats} and warmup {warmup}: give at least 1 and 0")
    ranks = len(exchanges[0].widths)
    for position, exchange in enumerate(exchanges):
        fault = _fault(exchange, ranks)
        if fault:
            raise MeasurementRefused(f"exchange {position}: {fault}")
    gpus = torch.cuda.device_count() if device.startswith("cuda") else ranks
    if ranks > gpus:
        raise MeasurementRefused(f"{ranks} ranks need a GPU each, and this machine has {gpus}: give fewer widths")


def _fault(exchange: Exchange, ranks: int) -> str | None:
    widths, delays = exchange.widths, exchange.start_delays_ms
    if len(widths) < 2:
        return f"widths has {len(widths)} entries: an exchange takes two ranks or more"
    if len(widths) != ranks:
        return f"widths has {len(widths)} entries and exchange 0 has {ranks}: measure each number of ranks apart"
    if min(widths) < 0:
        return f"widths holds {min(widths)}: a rank without tables has width 0"
    if len(delays) != ranks or not all(isfinite(delay) and delay >= 0 for delay in delays):
        return f"start_delays_ms is {delays}: give each of {ranks} ranks finite milliseconds of at least 0"
    if exchange.batch_size < 1:
        return f"batch_size is {exchange.batch_size}: it must be at least 1"
    return None


def _start_s(ranks: int) -> float:
    return _BASE_S + _START_S * ranks


def _patience_s(exchange: Exchange) -> float:
    """Seconds that one repeat may take, the backward and the forward exchange."""
    moved = sum(exchange.widths) * exchange.batch_size * _FLOAT_BYTES
    return max(exchange.start_delays_ms) / 1e3 + 2 * (_LATENCY_S + moved / _LEAST_BYTES_PER_S)


def _stamp_exchanges(
    exchanges: Sequence[Exchange], device: str, warmup: int, repeats: int, rendezvous: str, rank: int
) -> Stamps:
    """One rank: seconds [cases, repeats, backward and forward, start and end] on the host's clock."""
    ranks = len(exchanges[0].widths)
    torch.set_num_threads(1)
    place = torch.device("cuda", rank) if device.startswith("cuda") else torch.device("cpu")
    _join_group(rank, ranks, place, rendezvous, _start_s(ranks) + max(map(_patience_s, exchanges)))
    size = max(max(_elements(exchange, rank)) for exchange in exchanges)
    buffers = torch.ones(size, device=place), torch.ones(size, device=place)
    cases = [_phases(exchange, rank, *buffers) for exchange in exchanges]
    stamps = np.empty((len(cases), warmup + repeats, 2, 2))
    for repeat in range(warmup + repeats):
        for case in turns(len(cases), repeat):
            for kind, phase in enumerate(cases[case]):
                stamps[case, repeat, kind] = _stamped(place, phase)
    return stamps[:, warmup:]


def _join_group(rank: int, ranks: int, place: torch.device, rendezvous: str, patience_s: float) -> None:
    """Makes the group of all ranks; a collective, and the wait for a rank to join, may take ``patience_s``."""
    on_gpu = place.type == "cuda"
    if on_gpu:
        torch.cuda.set_device(place)
    # Whatever the host's name resolves to, the ranks meet on the loopback interface.
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        store=dist.FileStore(rendezvous, ranks),  # type: ignore[attr-defined]
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=patience_s),
        device_id=place if on_gpu else None,
    )


def _elements(exchange: Exchange, rank: int) -> tuple[int, int]:
    """Floats that a rank holds before and after the forward exchange: all samples of its columns, and the reverse."""
    own = _shares(exchange.batch_size, len(exchange.widths))[rank]
    return exchange.batch_size * exchange.widths[rank], own * sum(exchange.widths)


def _phases(exchange: Exchange, rank: int, sent: torch.Tensor, received: torch.Tensor) -> tuple[_Phase, _Phase]:
    """The backward and the forward exchange of one case."""
    samples = _shares(exchange.batch_size, len(exchange.widths))
    by_sample = [count * exchange.widths[rank] for count in samples]
    by_width = [samples[rank] * width for width in exchange.widths]
    held, owned = _elements(exchange, rank)
    return (
        _Phase(received[:held], sent[:owned], by_sample, by_width, 0.0),
        _Phase(received[:owned], sent[:held], by_width, by_sample, exchange.start_delays_ms[rank] / 1e3),
    )


def _stamped(place: torch.device, phase: _Phase) -> tuple[float, float]:
    """Start and end of one all-to-all; all ranks pass a barrier and sleep their delays before it."""
    dist.barrier()
    if phase.delay_s:
        time.sleep(phase.delay_s)
    started = _now(place)
    dist.all_to_all_single(phase.received, phase.sent, phase.receive_splits, phase.send_splits)
    return started, _now(place)


def _now(place: torch.device) -> float:
    """The host's clock, once the device has done what it was given."""
    if place.type == "cuda":
        torch.cuda.synchronize(place)
    return time.perf_counter()


def _shares(batch_size: int, ranks: int) -> list[int]:
    """Samples that each rank owns: ceil and floor where the count does not divide."""
    return [batch_size // ranks + (rank < batch_size % ranks) for rank in range(ranks)]
