"""Plans of TorchRec's EmbeddingShardingPlanner, the tool that users have today, as placements that we can price.

TorchRec is no dependency: `make bench` installs it (benchmarks/requirements-torchrec.txt).
"""

import logging
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import torch

from service.domain.plan import Problem, Shard
from service.domain.tables import DataType, Optimizer, PoolingMode

COLUMN_TYPES = ("table_wise", "column_wise")
"""What Shardwright plans too."""

_PRICED_TYPES = {*COLUMN_TYPES, "table_column_wise"}
_OF_A_HOST = 8
_DATA_TYPE = {DataType.FP32: "FP32", DataType.FP16: "FP16", DataType.BF16: "BF16"}
_POOLING = {PoolingMode.SUM: "SUM", PoolingMode.MEAN: "MEAN"}


@dataclass(frozen=True, slots=True)
class TorchRecPlan:
    """What TorchRec's planner answered.

    Attributes:
        seconds: from its construction to its answer.
        sharding_types: number of tables of each; empty where it refused.
        shards: columns on devices; empty where it refused, or shards a table by rows or replicates one.
        refused: the kind of its error, None where it planned.
    """

    seconds: float
    sharding_types: Mapping[str, int]
    shards: tuple[Shard, ...]
    refused: str | None = None


def available() -> bool:
    """Whether TorchRec is installed."""
    return find_spec("torchrec") is not None


def torchrec_version() -> str:
    """The installed version."""
    return version("torchrec")


def torchrec_plan(
    problem: Problem,
    sharding_types: tuple[str, ...] | None = COLUMN_TYPES,
    min_partition: int | None = None,
    timeout_s: int | None = None,
) -> TorchRecPlan:
    """TorchRec's plan of a problem, by its default proposers, partitioner and cost model.

    It is told what the problem tells us: rows, columns, precision, pooling mode and pooling factors of the tables (a
    shared table's lookups evenly over its features), the number of devices, on hosts of 8 where there are more, and the
    batch of each, the global one by the devices. It has no use for reuse histograms and for constraints on places.

    Compute device: ``cuda``, with its constants. Its ``cpu`` changes only the memory's bandwidth, not how costs depend
    on tables, and its plans for ``cpu`` are no better by our models; for ``cuda`` it also has all its sharding types.
    Memory: a device's bytes are the HBM, nothing is reserved, and the kernels are those that keep weights in HBM (fused
    ones, dense for replicas). Where buffers count, its own estimate of them does (indices and one pooled output for the
    global batch); where they do not, its estimator is told to leave them out, as for inference, which leaves the
    weights alone, all that sgd keeps.

    Args:
        problem: tables of one device memory, trained by sgd.
        sharding_types: those allowed; None for its defaults.
        min_partition: least columns of a slice; None for its default of 128. A table is cut to the narrowest equal
            slices that are no narrower, or not at all.
        timeout_s: when it stops proposing, seconds; None for never.

    Raises:
        ValueError: device memories differ, or the optimizer is not sgd.
    """
    if len(set(problem.topology.memory_bytes)) != 1 or problem.optimizer is not Optimizer.SGD:
        raise ValueError("devices.memory_bytes must be the same for all and optimizer must be sgd to ask TorchRec")
    with quiet():
        from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
        from torchrec.distributed.planner.types import PlannerError

        module = _module(problem)
        started = time.perf_counter()
        planner = _planner(problem, sharding_types, min_partition, timeout_s)
        try:
            plan = planner.plan(module, [EmbeddingBagCollectionSharder()])
        except PlannerError as refused:
            return TorchRecPlan(time.perf_counter() - started, {}, (), refused.error_type.value)
        seconds = time.perf_counter() - started
    placed = {name: sharding for tables in plan.plan.values() for name, sharding in tables.items()}
    types = Counter(sharding.sharding_type for sharding in placed.values())
    if not types.keys() <= _PRICED_TYPES:
        return TorchRecPlan(seconds, types, ())
    return TorchRecPlan(seconds, types, tuple(shard for name in placed for shard in _shards(name, placed[name])))


@contextmanager
def quiet() -> Iterator[None]:
    """Without the warnings and logs of TorchRec, which are of features that are not used here."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _module(problem: Problem) -> Any:
    """The tables as TorchRec's module, without memory."""
    from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig, PoolingType
    from torchrec.modules.embedding_modules import EmbeddingBagCollection

    configs = [
        EmbeddingBagConfig(
            name=table.name,
            num_embeddings=table.num_embeddings,
            embedding_dim=table.embedding_dim,
            feature_names=[f"{table.name}:{feature}" for feature in range(table.num_features)],
            data_type=DataType[_DATA_TYPE[table.data_type]],
            pooling=PoolingType[_POOLING[table.pooling_mode]],
        )
        for table in problem.tables
    ]
    return EmbeddingBagCollection(tables=configs, device=torch.device("meta"))


def _planner(
    problem: Problem, sharding_types: tuple[str, ...] | None, min_partition: int | None, timeout_s: int | None
) -> Any:
    from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology
    from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
    from torchrec.distributed.planner.shard_estimators import EmbeddingPerfEstimator, EmbeddingStorageEstimator
    from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation

    devices = problem.topology.device_count
    topology = Topology(
        world_size=devices,
        local_world_size=devices if devices % _OF_A_HOST else _OF_A_HOST,
        compute_device="cuda",
        hbm_cap=problem.topology.memory_bytes[0],
        ddr_cap=0,
        ssd_cap=0,
    )
    constraints = {
        table.name: ParameterConstraints(
            sharding_types=list(sharding_types) if sharding_types else None,
            compute_kernels=["fused", "dense"],
            min_partition=min_partition,
            pooling_factors=[table.pooling_factor / table.num_features] * table.num_features,
        )
        for table in problem.tables
    }
    batch_size = max(1, problem.global_batch_size // devices)
    without_buffers = not problem.constraints.count_buffers
    estimators = [
        EmbeddingPerfEstimator(topology, constraints),
        EmbeddingStorageEstimator(topology, constraints, is_inference=without_buffers),
    ]
    return EmbeddingShardingPlanner(
        topology=topology,
        batch_size=batch_size,
        enumerator=EmbeddingEnumerator(topology, batch_size, constraints, estimators),
        storage_reservation=FixedPercentageStorageReservation(0.0),
        constraints=constraints,
        stats=[],
        debug=False,
        timeout_seconds=timeout_s,
    )


def _shards(name: str, sharding: Any) -> Iterator[Shard]:
    for piece, device in zip(sharding.sharding_spec.shards, sharding.ranks, strict=True):
        first = piece.shard_offsets[1]
        yield Shard(name, first, first + piece.shard_sizes[1], device)
