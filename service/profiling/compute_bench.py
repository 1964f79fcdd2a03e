"""Times the fused embedding operator of one device, forward and backward apart.

One code path for ``cpu`` and ``cuda``: FBGEMM's SplitTableBatchedEmbeddingBagsCodegen with the optimizer fused into
the backward pass, as training runs it.
"""

import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import fbgemm_gpu
import numpy as np
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
)

from service.domain import tables as spec
from service.domain.errors import MeasurementRefused, MemoryIsShort
from service.domain.fused_operator import unsupported
from service.domain.memory import buffer_bytes, optimizer_bytes
from service.domain.tables import DataType, Optimizer, Table
from service.profiling.arena import Arena, keep_freed_memory
from service.profiling.host import free_memory
from service.profiling.workload import IndexStream, index_stream

BENCH_VERSION = 1
"""Raised when a change here makes times that must not be mixed with earlier ones."""

_PRECISION = {DataType.FP32: SparseType.FP32, DataType.FP16: SparseType.FP16, DataType.BF16: SparseType.BF16}
_OPTIMIZER = {
    Optimizer.SGD: EmbOptimType.EXACT_SGD,
    Optimizer.ROWWISE_ADAGRAD: EmbOptimType.EXACT_ROWWISE_ADAGRAD,
    Optimizer.ADAGRAD: EmbOptimType.EXACT_ADAGRAD,
    Optimizer.ADAM: EmbOptimType.ADAM,
}
_POOLING = {spec.PoolingMode.SUM: PoolingMode.SUM, spec.PoolingMode.MEAN: PoolingMode.MEAN}
_MEDIAN_ERROR = 1.2533 / 1.349  # Standard error of a median in deviations, and a deviation in quartile ranges.
Result = TypeVar("Result")

_LEARNING_RATE = 1e-4
_FLUSH_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Timing:
    """Times of one phase over the repeats.

    Attributes:
        median_ms: median, milliseconds.
        spread: interquartile range relative to the median.
    """

    median_ms: float
    spread: float


@dataclass(frozen=True, slots=True)
class ComputeTiming:
    """Times of one combination of tables on one device."""

    forward: Timing
    backward: Timing
    repeats: int


@dataclass(frozen=True, slots=True)
class BenchSettings:
    """How often and how carefully to measure.

    Attributes:
        device: ``cpu`` or ``cuda`` (or ``cuda:1``).
        memory_bytes: most that one combination may take in all; on the CPU its weights live in an arena whose pages
            are touched once and reused.
        warmup: untimed repeats.
        repeats: most timed repeats.
        budget_s: stop repeating after this long, once ``least_repeats`` are done.
        least_repeats: timed repeats whatever they take.
        precision: stop repeating once the standard error of the median is below this share of it, after
            ``least_repeats``; what takes a millisecond is noisier and is repeated more often.
    """

    device: str = "cpu"
    memory_bytes: int = 4 * 2**30
    warmup: int = 2
    repeats: int = 41
    budget_s: float = 1.5
    least_repeats: int = 5
    precision: float = 0.005


class ComputeBench:
    """Measures combinations one after the other; one torch thread, so a CPU device is one thread.

    Caches are displaced before every timed phase, since in training the dense part runs in between.

    Raises:
        MeasurementRefused: the device does not have the memory that the settings allow.
    """

    def __init__(self, settings: BenchSettings) -> None:
        self.settings = settings
        torch.set_num_threads(1)
        _check_free_memory(torch.device(settings.device), settings.memory_bytes)
        self._device = torch.device(settings.device)
        self._arena = Arena(settings.memory_bytes) if self._device.type == "cpu" else None
        self._flush = torch.zeros(_FLUSH_BYTES // 4, device=self._device)
        if self._arena:
            keep_freed_memory()

    def measure(
        self, tables: Sequence[Table], batch_size: int, optimizer: Optimizer, rng: np.random.Generator
    ) -> ComputeTiming:
        """Times one device's tables on one batch with fresh index streams.

        Raises:
            MeasurementRefused: the operator cannot run the combination here, or it would not fit in memory.
        """
        step = self.prepare(tables, batch_size, optimizer, lambda table: index_stream(table, batch_size, rng))
        return self._repeat(step.run)

    def prepare(
        self,
        tables: Sequence[Table],
        batch_size: int,
        optimizer: Optimizer,
        stream_of: Callable[[Table], IndexStream],
    ) -> "PreparedStep":
        """One device's tables with a batch of lookups, ready to be run any number of times.

        On the CPU the weights and the optimizer's state of all steps prepared by one bench are the same memory: steps
        of one precision can be run in turns and take no more of it than the largest. Prepare the one with most
        optimizer state first, since a larger one takes new memory for it.

        Args:
            tables: what the device holds.
            batch_size: the global batch.
            optimizer: optimizer fused into the backward pass.
            stream_of: draws the lookups of each table.

        Raises:
            MeasurementRefused: the operator cannot run the combination here, or it would not fit in memory.
        """
        self.refuse(tables, batch_size, optimizer)
        with _refused_when_out_of_memory():
            operator = self._operator(tables, optimizer)
            indices, offsets = _batch(tables, stream_of, self._device)
            gradient = torch.full((batch_size, sum(t.output_width for t in tables)), 1e-3, device=self._device)
        return PreparedStep(operator, indices, offsets, gradient, self._flush)

    def refuse(self, tables: Sequence[Table], batch_size: int, optimizer: Optimizer) -> None:
        """Raises MeasurementRefused where ``measure`` would."""
        if len({t.data_type for t in tables}) != 1:
            raise MeasurementRefused("the tables of one operator must have one data_type: measure them apart")
        if len({t.pooling_mode for t in tables}) != 1:
            raise MeasurementRefused("the tables of one operator must have one pooling_mode: measure them apart")
        for _, reason in unsupported(self.settings.device, tables[0].data_type, optimizer):
            raise MeasurementRefused(reason)
        need = needed_bytes(tables, batch_size, optimizer)
        if need > self.settings.memory_bytes:
            raise MeasurementRefused(
                f"the combination needs {need / 2**30:.2f} GiB, the bench may use "
                f"{self.settings.memory_bytes / 2**30:.2f} GiB: raise the limit or use fewer rows",
                needed_bytes=need,
                limit_bytes=self.settings.memory_bytes,
            )

    def environment(self) -> dict[str, str]:
        """Versions and names that a measurement depends on."""
        return {
            "torch": torch.__version__,
            "fbgemm_gpu": fbgemm_gpu.__version__,
            "bench": str(BENCH_VERSION),
            "device": device_name(self._device),
            "python": platform.python_version(),
        }

    def _operator(self, tables: Sequence[Table], optimizer: Optimizer) -> SplitTableBatchedEmbeddingBagsCodegen:
        on_cpu = self._device.type == "cpu"
        place = (
            (EmbeddingLocation.HOST, ComputeDevice.CPU) if on_cpu else (EmbeddingLocation.DEVICE, ComputeDevice.CUDA)
        )
        return SplitTableBatchedEmbeddingBagsCodegen(
            [(t.num_embeddings, t.embedding_dim, *place) for t in tables],
            feature_table_map=[i for i, t in enumerate(tables) for _ in range(t.num_features)],
            weights_precision=_PRECISION[tables[0].data_type],
            optimizer=_OPTIMIZER[optimizer],
            learning_rate=_LEARNING_RATE,
            pooling_mode=_POOLING[tables[0].pooling_mode],
            device=self._device,
            preallocated_host_buffers=self._arena.buffers(tables, optimizer) if self._arena else None,
        )

    def _repeat(self, step: Callable[[], tuple[float, float]]) -> ComputeTiming:
        for _ in range(self.settings.warmup):
            step()
        started = time.perf_counter()
        times: list[tuple[float, float]] = []
        while len(times) < self.settings.repeats:
            times.append(step())
            if len(times) < self.settings.least_repeats:
                continue
            if time.perf_counter() - started > self.settings.budget_s or _precision(times) < self.settings.precision:
                break
        forward, backward = np.array(times).T
        return ComputeTiming(_summary(forward), _summary(backward), len(times))


class PreparedStep:
    """One device's operator and its batch; made by ``ComputeBench.prepare``."""

    def __init__(
        self,
        operator: SplitTableBatchedEmbeddingBagsCodegen,
        indices: torch.Tensor,
        offsets: torch.Tensor,
        gradient: torch.Tensor,
        flush: torch.Tensor,
    ) -> None:
        self._operator = operator
        self._indices = indices
        self._offsets = offsets
        self._gradient = gradient
        self._flush = flush

    def run(self) -> tuple[float, float]:
        """One repeat: milliseconds of the forward and the backward pass, caches displaced before each.

        Raises:
            MeasurementRefused: the device ran out of memory.
        """
        device = self._flush.device
        with _refused_when_out_of_memory():
            self._displace_caches()
            forward_ms, output = _timed(device, lambda: self._operator(self._indices, self._offsets))
            self._displace_caches()
            backward_ms, _ = _timed(device, lambda: torch.autograd.backward(output, self._gradient))
        return forward_ms, backward_ms

    def _displace_caches(self) -> None:
        self._flush.add_(1.0)


def needed_bytes(tables: Sequence[Table], batch_size: int, optimizer: Optimizer) -> int:
    """Bytes that measuring a combination takes: weights, optimizer state, index streams, output and gradient."""
    return sum(t.weight_bytes + optimizer_bytes(t, optimizer) + buffer_bytes(t, batch_size) for t in tables)


def device_name(device: torch.device) -> str:
    """What one device of a measurement is: a GPU by its name, or a thread of a processor."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"{_processor_name()}, 1 thread"


def _processor_name() -> str:
    """Model of this machine's processor, as precise as the system tells."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


def free_bytes(device: torch.device) -> int:
    """Memory that can be had now: a GPU's, or what this process may take of the host's."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else free_memory()


def _check_free_memory(device: torch.device, wanted: int) -> None:
    free = free_bytes(device)
    if wanted > free:
        raise MemoryIsShort(
            f"measuring may take {wanted / 2**30:.1f} GiB, but {device} has {free / 2**30:.1f} GiB free: allow less",
            needed_bytes=wanted,
            limit_bytes=free,
        )


def _batch(
    tables: Sequence[Table], stream_of: Callable[[Table], IndexStream], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Indices [L] and offsets [F * B + 1] of all tables, one after the other."""
    streams = [stream_of(table) for table in tables]
    starts = np.cumsum([0, *(len(s.indices) for s in streams)])
    offsets = [s.offsets[:-1] + start for s, start in zip(streams, starts[:-1], strict=True)]
    indices = np.concatenate([s.indices for s in streams])
    return (
        torch.from_numpy(indices).to(device),
        torch.from_numpy(np.concatenate([*offsets, starts[-1:]])).to(device),
    )


@contextmanager
def _refused_when_out_of_memory() -> Iterator[None]:
    try:
        yield
    except torch.cuda.OutOfMemoryError as error:
        raise MemoryIsShort(f"the device ran out of memory: {error}") from error


def _timed(device: torch.device, call: Callable[[], Result]) -> tuple[float, Result]:
    """Milliseconds of a call, waiting for the device before and after."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    started = time.perf_counter()
    result = call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return (time.perf_counter() - started) * 1e3, result


def _precision(times: Sequence[tuple[float, float]]) -> float:
    """Standard error of the median of the sums, relative to it; that of a normal law with the same quartiles."""
    low, median, high = np.percentile(np.sum(times, axis=1), [25, 50, 75])
    return float(_MEDIAN_ERROR * (high - low) / median / np.sqrt(len(times)))


def _summary(times: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Timing:
    low, median, high = np.percentile(times, [25, 50, 75])
    return Timing(float(median), float((high - low) / median))
