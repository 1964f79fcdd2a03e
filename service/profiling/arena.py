"""The host memory that a bench measures in: touched once, and kept by the allocator."""

import ctypes
from collections.abc import Sequence

import torch

from service.domain.memory import optimizer_bytes
from service.domain.tables import DataType, Optimizer, Table

_TORCH_TYPE = {DataType.FP32: torch.float32, DataType.FP16: torch.float16, DataType.BF16: torch.bfloat16}
_FILL_CHUNK = 2**24
# M_MMAP_MAX: no block is a mapping of its own; M_TRIM_THRESHOLD, M_TOP_PAD: the heap shrinks late, grows in steps.
_MALLOC_OPTIONS = ((-4, 0), (-1, 2**31 - 1), (-2, 64 * 2**20))


class Arena:
    """Host memory touched once: allocating and first-touching gigabytes for every combination costs seconds."""

    def __init__(self, size_bytes: int) -> None:
        self._weights = torch.empty(size_bytes // 4, dtype=torch.float32)
        self._holds: DataType | None = None
        self._filled = 0
        self._state = torch.zeros(0)

    def buffers(self, tables: Sequence[Table], optimizer: Optimizer) -> dict[str, torch.Tensor]:
        """FBGEMM's host buffers for these tables, views of the arena."""
        data_type = tables[0].data_type
        elements = sum(t.num_embeddings * t.embedding_dim for t in tables)
        self._fill(data_type, elements)
        buffers = {"weights": self._weights.view(_TORCH_TYPE[data_type])[:elements]}
        state = sum(optimizer_bytes(t, optimizer) for t in tables) // 4
        if state:
            if state > self._state.numel():
                self._state = torch.zeros(state)
            buffers["momentum1"] = self._state[:state]
        return buffers

    def _fill(self, data_type: DataType, elements: int) -> None:
        """Small numbers in the precision measured, as far as needed: other bit patterns hold denormals and NaN."""
        if self._holds is not data_type:
            self._holds, self._filled = data_type, 0
        values = self._weights.view(_TORCH_TYPE[data_type])
        pattern = torch.empty(_FILL_CHUNK).uniform_(0.01, 0.02).to(values.dtype) if elements > self._filled else None
        while pattern is not None and self._filled < elements:
            part = values[self._filled : self._filled + _FILL_CHUNK]
            part.copy_(pattern[: part.numel()])
            self._filled += part.numel()


def keep_freed_memory() -> None:
    """Makes malloc keep freed pages, as the allocators that training runs under do.

    glibc maps every block above 32 MiB afresh: first-touching the pooled output's pages would take up to three times
    as long as looking it up, in a jump at that size.
    """
    allocator = ctypes.CDLL(None)
    if hasattr(allocator, "mallopt"):
        for parameter, value in _MALLOC_OPTIONS:
            allocator.mallopt(parameter, value)
