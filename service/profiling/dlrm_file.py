"""Reads a batch in the form of facebookresearch/dlrm_datasets: torch tensors (indices, offsets, lengths)."""

import gzip
import pickle
import struct
from pathlib import Path
from typing import IO, cast

import numpy as np
import torch

from service.domain.errors import InvalidInputFile
from service.domain.tables import ReuseHistogram, Table
from service.profiling.workload import measured_histogram

# What torch's restricted unpickler was seen to raise on bytes that are something else.
_UNREADABLE = (
    AssertionError,
    AttributeError,
    EOFError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
    pickle.UnpicklingError,
    struct.error,
)
_EXPECTED = "expected (indices [L], offsets [T * B + 1], lengths [T, B])"


def tables_from_dlrm(path: Path, embedding_dim: int) -> list[Table]:
    """Tables of a file ``.pt`` or ``.pt.gz``, with measured pooling factor, distinct rows and reuse histogram.

    Dims are not part of such files: every table gets ``embedding_dim``. Rows are the largest index seen plus one
    (the table itself may have more), and 1 for a table without lookups. Only tensors are unpickled.

    Raises:
        InvalidInputFile: the file cannot be read, or is not of this form.
    """
    indices, offsets, lengths = _load(path)
    tables, batch_size = lengths.shape
    found = []
    for t in range(tables):
        looked_up = indices[offsets[t * batch_size] : offsets[(t + 1) * batch_size]]
        fractions = measured_histogram(looked_up)
        found.append(
            Table(
                name=f"table_{t}",
                num_embeddings=int(looked_up.max()) + 1 if len(looked_up) else 1,
                embedding_dim=embedding_dim,
                pooling_factor=len(looked_up) / batch_size,
                distinct_rows=float(len(np.unique(looked_up))) if len(looked_up) else None,
                reuse_histogram=ReuseHistogram(batch_size, fractions),
            )
        )
    return found


def tables_json(tables: list[Table]) -> dict[str, object]:
    """The JSON form that ``read_pool`` and the service take."""
    return {
        "tables": [
            {
                "name": t.name,
                "num_embeddings": t.num_embeddings,
                "embedding_dim": t.embedding_dim,
                "pooling_factor": t.pooling_factor,
                "distinct_rows": t.distinct_rows,
                "reuse_histogram": t.reuse_histogram
                and {"batch_size": t.reuse_histogram.batch_size, "fractions": list(t.reuse_histogram.fractions)},
            }
            for t in tables
        ]
    }


def _load(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    try:
        with cast(IO[bytes], gzip.open(path) if path.suffix == ".gz" else path.open("rb")) as file:
            content = torch.load(file, map_location="cpu", weights_only=True)
    except OSError as error:
        raise InvalidInputFile(f"{path}: {error.strerror or error}") from error
    except _UNREADABLE as error:
        # Without torch's message, which advises to run what the file holds.
        raise InvalidInputFile(f"{path}: cannot be read as torch tensors, and nothing else is read") from error
    if not isinstance(content, tuple | list) or len(content) != 3 or not all(map(torch.is_tensor, content)):
        raise InvalidInputFile(f"{path}: {_EXPECTED}")
    indices, offsets, lengths = (tensor.numpy() for tensor in content)
    if lengths.ndim != 2 or offsets.shape != (lengths.size + 1,) or indices.ndim != 1 or offsets[-1] != len(indices):
        raise InvalidInputFile(
            f"{path}: {_EXPECTED}, got indices {indices.shape}, offsets {offsets.shape}, lengths {lengths.shape}"
        )
    if not np.array_equal(np.diff(offsets), lengths.ravel()):
        raise InvalidInputFile(f"{path}: the lengths are not the differences of the offsets")
    if indices.dtype.kind not in "iu" or (len(indices) and indices.min() < 0):
        raise InvalidInputFile(f"{path}: indices must be whole numbers of 0 or more")
    return indices, offsets, lengths
