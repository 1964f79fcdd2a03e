"""How often ids repeat in sample batches: pooling factors, distinct rows and reuse histograms of tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from shardwright_client.errors import InvalidArgument
from shardwright_client.tables import ReuseHistogram
from shardwright_client.torchrec.errors import together
from shardwright_client.torchrec.modules import ModuleTable

BINS = 17
_EDGES = tuple(2**i for i in range(BINS - 1))
"""Largest count of every bin but the last, which is open."""


@dataclass(frozen=True, slots=True)
class Lookups:
    """What a table's lookups in sample batches are like.

    Attributes:
        pooling_factor: mean lookups a sample, summed over the table's features.
        distinct_rows: distinct ids in all the samples.
        histogram: how often they occur there.
    """

    pooling_factor: float
    distinct_rows: float
    histogram: ReuseHistogram


def measured_lookups(tables: Sequence[ModuleTable], samples: Sequence[Any]) -> Mapping[str, Lookups]:
    """The lookups of each table, by its name in requests.

    Args:
        tables: of a model.
        samples: KeyedJaggedTensors, each with every feature of every table. Together they are taken as one batch. Reuse
            is carried to a smaller batch exactly and to a larger one by extrapolation: as many samples as a step has
            over all ranks are best.

    Raises:
        InvalidArgument: they are no KeyedJaggedTensors, a feature is missing, or an id is no row of its table; names
            what is at fault.
    """
    batch_size = _batch_size(samples)
    by_feature = [sample.to_dict() for sample in samples]
    lacking = [
        f"feature {feature!r} of {table.told}"
        for table in tables
        for feature in table.features
        if any(feature not in sample for sample in by_feature)
    ]
    if lacking:
        raise InvalidArgument(f"samples lack {together(lacking)}: each must have every feature of every table")
    return {table.name: _lookups(_ids(table, by_feature), batch_size) for table in tables}


def _batch_size(samples: Sequence[Any]) -> int:
    if not isinstance(samples, Sequence):
        raise InvalidArgument(f"samples must be a list of KeyedJaggedTensors, are a {type(samples).__name__}")
    others = [type(sample).__name__ for sample in samples if not isinstance(sample, KeyedJaggedTensor)]
    if others:
        raise InvalidArgument(f"samples must be KeyedJaggedTensors, one of them is a {others[0]}")
    if any(sample.variable_stride_per_key() for sample in samples):
        raise InvalidArgument("samples must have one batch size for all features: variable batches are not modelled")
    batch_size = sum(int(sample.stride()) for sample in samples)
    if not batch_size:
        raise InvalidArgument("samples must have one sample at least")
    return batch_size


def _ids(table: ModuleTable, samples: Sequence[Mapping[str, Any]]) -> torch.Tensor:
    """Every lookup's id; [lookups]."""
    found = [torch.empty(0, dtype=torch.int64)]
    for feature in table.features:
        for sample in samples:
            ids = sample[feature].values().detach().to("cpu", torch.int64)
            if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < table.num_embeddings:
                raise InvalidArgument(
                    f"samples have ids from {int(ids.min())} to {int(ids.max())} of feature {feature!r}, but "
                    f"{table.told} has rows 0 to {table.num_embeddings - 1}: give ids as they are looked up"
                )
            found.append(ids)
    return torch.cat(found)


def _lookups(ids: torch.Tensor, batch_size: int) -> Lookups:
    counts = torch.unique(ids, return_counts=True)[1]
    by_bin = torch.bincount(torch.bucketize(counts, torch.tensor(_EDGES)), minlength=BINS).tolist()
    distinct = len(counts)
    fractions = tuple(ids_in_bin / max(distinct, 1) for ids_in_bin in by_bin)
    return Lookups(len(ids) / batch_size, float(distinct), ReuseHistogram(batch_size, fractions))
