"""Times the all-to-all exchanges of a step over real ranks: gloo between processes here, nccl between GPUs."""

import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException, spawn

from service.domain.errors import MeasurementRefused

_COLLECTIVE_TIMEOUT = timedelta(seconds=60)


@dataclass(frozen=True, slots=True)
class Exchange:
    """One case: pooled output columns held by each of D ranks, and the global batch."""

    widths: tuple[int, ...]
    batch_size: int


@dataclass(frozen=True, slots=True)
class ExchangeTiming:
    """Median milliseconds of each rank's part; D entries each."""

    forward_ms: tuple[float, ...]
    backward_ms: tuple[float, ...]


def measure_exchanges(
    exchanges: Sequence[Exchange], device: str = "cpu", warmup: int = 2, repeats: int = 9
) -> list[ExchangeTiming]:
    """Times forward and backward exchanges over as many ranks as each case has widths (the same for all cases).

    All ranks pass a barrier before every exchange, so that no wait for a late rank is counted.

    Raises:
        MeasurementRefused: a rank failed or hung; the others are ended with it.
    """
    ranks = {len(exchange.widths) for exchange in exchanges}
    if len(ranks) != 1:
        raise MeasurementRefused("the exchanges of one run must have the same number of ranks")
    world = ranks.pop()
    with tempfile.TemporaryDirectory() as folder:
        arguments = (world, list(exchanges), device, warmup, repeats, folder)
        try:
            spawn(_rank_main, args=arguments, nprocs=world)  # type: ignore[no-untyped-call]
        except (ProcessRaisedException, ProcessExitedException) as error:
            raise MeasurementRefused(f"a rank of the exchange bench failed: {error}") from error
        times = torch.stack([torch.load(Path(folder, f"{rank}.pt"), weights_only=True) for rank in range(world)])
    medians = times.median(dim=-1).values.permute(1, 2, 0).tolist()
    return [ExchangeTiming(tuple(forward), tuple(backward)) for forward, backward in medians]


def _rank_main(
    rank: int, world: int, exchanges: list[Exchange], device: str, warmup: int, repeats: int, folder: str
) -> None:
    """One rank: times every exchange and leaves milliseconds [cases, 2, repeats] in ``<folder>/<rank>.pt``."""
    torch.set_num_threads(1)
    backend = "nccl" if device.startswith("cuda") else "gloo"
    place = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if backend == "nccl":
        torch.cuda.set_device(place)
    dist.init_process_group(
        backend,
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=world,
        timeout=_COLLECTIVE_TIMEOUT,
        device_id=place if backend == "nccl" else None,
    )
    try:
        times = [_time_exchange(rank, exchange, place, warmup, repeats) for exchange in exchanges]
        torch.save(torch.tensor(times), Path(folder, f"{rank}.pt"))
    finally:
        dist.destroy_process_group()


def _time_exchange(rank: int, exchange: Exchange, device: torch.device, warmup: int, repeats: int) -> list[list[float]]:
    samples = _shares(exchange.batch_size, len(exchange.widths))
    width = exchange.widths[rank]
    held = torch.ones(exchange.batch_size * width, device=device)
    owned = torch.ones(samples[rank] * sum(exchange.widths), device=device)
    by_sample = [count * width for count in samples]
    by_width = [samples[rank] * w for w in exchange.widths]
    phases = ((owned, held, by_width, by_sample), (held, owned, by_sample, by_width))
    return [[_timed(device, phase) for _ in range(warmup + repeats)][warmup:] for phase in phases]


def _timed(device: torch.device, phase: tuple[torch.Tensor, torch.Tensor, list[int], list[int]]) -> float:
    received, sent, receive_splits, send_splits = phase
    dist.barrier()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    started = time.perf_counter()
    dist.all_to_all_single(received, sent, receive_splits, send_splits)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return (time.perf_counter() - started) * 1e3


def _shares(batch_size: int, ranks: int) -> list[int]:
    """Samples that each rank owns: ceil and floor where the count does not divide."""
    return [batch_size // ranks + (rank < batch_size % ranks) for rank in range(ranks)]
