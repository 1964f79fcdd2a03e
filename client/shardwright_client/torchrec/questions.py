"""From the tables of a model, TorchRec's topology and constraints to a request of the service."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from fbgemm_gpu.split_embedding_configs import SparseType
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.planner.constants import POOLING_FACTOR
from torchrec.distributed.planner.types import ParameterConstraints, Topology
from torchrec.distributed.types import CommOp
from torchrec.modules.embedding_configs import DataType

from shardwright_client.errors import InvalidArgument
from shardwright_client.json_values import Json, encoded
from shardwright_client.tables import Constraints, Devices, Optimizer, ShardingType, Table
from shardwright_client.torchrec.errors import NotModelled, together
from shardwright_client.torchrec.modules import ModuleTable
from shardwright_client.torchrec.optimizers import fused_optimizer
from shardwright_client.torchrec.placements import COLUMN_WISE, TABLE_WISE
from shardwright_client.torchrec.samples import Lookups

logger = logging.getLogger(__name__)

_EXCHANGE = CommOp.POOLED_EMBEDDINGS_ALL_TO_ALL.name
_GPUS = ("v100", "a100", "h100", "h200", "b200", "l4")
"""What names of GPUs among the service's hardware begin with; those of processors begin with ``cpu``."""

TableConstraints = Mapping[str, ParameterConstraints]


@dataclass(frozen=True, slots=True)
class Question:
    """What the service is asked about a model.

    Attributes:
        tables: of the model, in the request's order.
        request: JSON of POST /plan.
    """

    tables: tuple[ModuleTable, ...]
    request: Json


def model_question(
    tables: Sequence[ModuleTable],
    topology: Topology,
    batch_size: int,
    hardware: str,
    *,
    constraints: TableConstraints | None = None,
    lookups: Mapping[str, Lookups] | None = None,
    optimizer: Optimizer | None = None,
    further: Json | None = None,
) -> Question:
    """The question where the tables of a model go.

    Args:
        tables: of the model.
        topology: the ranks, with the memory that embeddings may use.
        batch_size: samples of a rank in a step.
        hardware: key of the cost models.
        constraints: by the table's name in its module. Sharding types that they leave, and the widest of their
            ``min_partition``, hold for all tables: the service knows no such rule for one.
        lookups: measured, by the table's name in requests; None for the constraints' pooling factors.
        optimizer: None for what the tables and sharders say.
        further: members of the request to add or to replace; those of ``constraints`` one by one.

    Raises:
        NotModelled: something is asked for that Shardwright has no model of.
        InvalidArgument: there are no tables, no memory is left for them, or ``further`` is none.
    """
    if not tables:
        raise InvalidArgument("there is no table to ask about: find_tables found none that a sharder is for")
    by_table = constraints or {}
    rules = [(table, by_table[table.table]) for table in tables if table.table in by_table]
    for table, rule in rules:
        _check_modelled(table, rule, topology.compute_device)
    own = dict(further or {})
    added = own.pop("constraints", {})
    if not isinstance(added, Mapping):
        raise InvalidArgument(f"constraints of a request must be a mapping of members, not {type(added).__name__}")
    _tell_unpriced(tables, by_table, topology.compute_device, hardware)
    if optimizer:
        _tell_other_optimizer(tables, optimizer)
    request = {
        "tables": [
            encoded(_table(table, by_table.get(table.table), (lookups or {}).get(table.name))) for table in tables
        ],
        "devices": encoded(_devices(topology, hardware)),
        "global_batch_size": batch_size * topology.world_size,
        "optimizer": optimizer or fused_optimizer(tables),
        "constraints": encoded(_plan_constraints(rules)) | added,
    }
    _check_operator(tables, request["optimizer"], topology.compute_device)
    return Question(tuple(tables), request | own)


def _tell_unpriced(
    tables: Sequence[ModuleTable], constraints: TableConstraints, compute_device: str, hardware: str
) -> None:
    """Logs what is not as costs are predicted."""
    weighted = [table.name for table in tables if table.weighted]
    if weighted:
        logger.warning("costs are predicted as if lookups had no weights, but %s have", together(weighted))
    narrow = [table.name for table in tables if _narrow(table, constraints.get(table.table))]
    if narrow:
        logger.warning(
            "costs are predicted as if outputs and exchanges were fp32, but output_dtype or qcomm_codecs_registry say "
            "otherwise of %s", together(narrow),
        )  # fmt: skip
    if str(hardware).startswith(_GPUS if compute_device == "cpu" else "cpu"):
        logger.warning(
            "the topology's compute_device is %s, but costs are predicted for hardware %s", compute_device, hardware
        )


def _narrow(table: ModuleTable, rule: ParameterConstraints | None) -> bool:
    """Whether outputs, or what of them is exchanged, have fewer bits than 32."""
    fused = getattr(table.sharder, "fused_params", None) or {}
    output = (rule and rule.output_dtype) or fused.get("output_dtype")
    codecs = (getattr(table.sharder, "qcomm_codecs_registry", None) or {}).get(_EXCHANGE)
    exchanged = [getattr(way, "quantized_dtype", None) for way in (codecs.forward, codecs.backward)] if codecs else []
    # What encodes nothing has a method of this name.
    encoded_as = {kind for kind in exchanged if isinstance(kind, torch.dtype)}
    return output not in (None, DataType.FP32, SparseType.FP32) or bool(encoded_as - {torch.float32})


def _tell_other_optimizer(tables: Sequence[ModuleTable], optimizer: Optimizer) -> None:
    try:
        said = fused_optimizer(tables)
    except NotModelled:
        return
    if said != optimizer:
        logger.warning(
            "costs are predicted for optimizer %s, as given, but tables and sharders say %s (sgd where they say none)",
            optimizer, said,
        )  # fmt: skip


def _table(table: ModuleTable, rule: ParameterConstraints | None, lookups: Lookups | None) -> Table:
    return Table(
        name=table.name,
        num_embeddings=table.num_embeddings,
        embedding_dim=table.embedding_dim,
        pooling_factor=lookups.pooling_factor if lookups else _pooling_factor(table, rule),
        num_features=len(table.features),
        pooling_mode=table.pooling_mode,
        data_type=table.data_type,
        distinct_rows=lookups.distinct_rows if lookups else None,
        reuse_histogram=lookups.histogram if lookups else None,
    )


def _pooling_factor(table: ModuleTable, rule: ParameterConstraints | None) -> float:
    """Lookups a sample over all features, by TorchRec's constraints: one factor for each feature, or one for all."""
    factors, features = rule.pooling_factors if rule else [POOLING_FACTOR], len(table.features)
    if len(factors) == 1:
        return float(factors[0] * features)
    if len(factors) != features:
        raise NotModelled(f"{table.told} has {features} features but constraints with {len(factors)} pooling_factors")
    return float(sum(factors))


def _devices(topology: Topology, hardware: str) -> Devices:
    on_gpu = topology.compute_device != "cpu"
    memory = [int(device.storage.hbm if on_gpu else device.storage.ddr) for device in topology.devices]
    without = [rank for rank, left in enumerate(memory) if left < 1]
    if without:
        raise InvalidArgument(
            f"no memory of rank {without[0]} is left for tables: the storage reservation takes all that the topology "
            f"gives, for inputs and the dense part. Give it more ({'hbm' if on_gpu else 'ddr'}_cap), a smaller batch, "
            "or another storage_reservation"
        )
    return Devices(topology.world_size, memory[0] if len(set(memory)) == 1 else memory, hardware)


def _plan_constraints(rules: Sequence[tuple[ModuleTable, ParameterConstraints]]) -> Constraints:
    left: set[str] = {TABLE_WISE, COLUMN_WISE}
    for table, rule in rules:
        if rule.sharding_types and not left & set(rule.sharding_types):
            raise NotModelled(
                f"constraints allow {table.told} to be sharded {', '.join(rule.sharding_types)}; what Shardwright and "
                f"other tables leave is {', '.join(sorted(left))}: allow one of these, or plan with TorchRec"
            )
        left &= set(rule.sharding_types or left)
    narrowest = [rule.min_partition for _, rule in rules if rule.min_partition]
    both: tuple[ShardingType, ...] = (TABLE_WISE, COLUMN_WISE)
    types = [kind for kind in both if kind in left]
    return Constraints(sharding_types=types, min_shard_dim=max(narrowest, default=Constraints().min_shard_dim))


def _check_modelled(table: ModuleTable, rule: ParameterConstraints, compute_device: str) -> None:
    kernel = EmbeddingComputeKernel.FUSED.value
    refusals: dict[str, Any] = {
        f"compute_kernels without {kernel!r}: allow it": rule.compute_kernels and kernel not in rule.compute_kernels,
        "num_poolings or batch_sizes: variable batches are not modelled": rule.num_poolings or rule.batch_sizes,
        "key_value_params: tables outside of device memory are not modelled": rule.key_value_params,
        f"a device_group other than {compute_device!r}": rule.device_group and rule.device_group != compute_device,
        "use_virtual_table: virtual tables are not modelled": rule.use_virtual_table,
    }
    for refusal, asked in refusals.items():
        if asked:
            raise NotModelled(f"constraints give {table.told} {refusal}, or plan with TorchRec")


def _check_operator(tables: Sequence[ModuleTable], optimizer: str, compute_device: str) -> None:
    """FBGEMM's operator can do less on a CPU, and says so only when training runs."""
    if compute_device != "cpu":
        return
    if optimizer == "adam":
        raise NotModelled("FBGEMM's operator has no adam on a CPU: train by sgd, rowwise_adagrad or adagrad")
    unable = [f"{table.told} has data_type bf16" for table in tables if table.data_type == "bf16"]
    if unable:
        raise NotModelled(f"{together(unable)}: FBGEMM's operator has none on a CPU, give it fp32 or fp16")
