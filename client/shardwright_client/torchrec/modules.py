"""Which tables of a model TorchRec would shard, under the names that they have in a request."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from torchrec.distributed.planner.utils import sharder_name
from torchrec.modules.embedding_configs import DataType, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from shardwright_client import tables as client_tables
from shardwright_client.torchrec.errors import NotModelled, together

_PLANNED = sharder_name(EmbeddingBagCollection)
_DATA_TYPES: dict[Any, client_tables.DataType] = {DataType.FP32: "fp32", DataType.FP16: "fp16", DataType.BF16: "bf16"}
_POOLING_MODES: dict[Any, client_tables.PoolingMode] = {PoolingType.SUM: "sum", PoolingType.MEAN: "mean"}
_COLUMN_MULTIPLE = 4


@dataclass(frozen=True, slots=True)
class ModuleTable:
    """A table of an EmbeddingBagCollection.

    Attributes:
        name: in requests and plans; unique in the model.
        path: of its module in the model; empty for the model itself.
        table: its name in the module, which constraints and TorchRec's plans know it by.
        num_embeddings: rows.
        embedding_dim: columns.
        features: names of those that look it up.
        pooling_mode: how the rows of a sample are combined.
        data_type: of the weights.
        weighted: whether lookups have weights.
        parameter: its weights, perhaps without memory; None where it is sharded.
        sharder: TorchRec's, which will shard the module; None where it is sharded.
    """

    name: str
    path: str
    table: str
    num_embeddings: int
    embedding_dim: int
    features: tuple[str, ...]
    pooling_mode: client_tables.PoolingMode
    data_type: client_tables.DataType
    weighted: bool
    parameter: nn.Parameter | None
    sharder: Any

    @property
    def told(self) -> str:
        """What to call it in an error."""
        return told_table(self.path, self.table)


def told_table(path: str, table: str) -> str:
    """What to call a table of a module in an error."""
    return f"table {table!r} of {_told_module(path)}"


def _told_module(path: str) -> str:
    return f"module {path or '(the model)'!r}"


def find_tables(module: nn.Module, sharders: Sequence[Any]) -> tuple[ModuleTable, ...]:
    """The tables of a model's EmbeddingBagCollections at any depth, whose types the sharders name, as TorchRec looks.

    A table is named as in its module; where several modules have the name, as ``path/table``.

    Raises:
        NotModelled: TorchRec would shard what Shardwright does not plan; names every table at fault.
    """
    by_type = {sharder_name(sharder.module_type): sharder for sharder in sharders}
    return named_tables(
        [
            (path, config, parameter, bool(collection.is_weighted()), sharder)
            for path, collection, sharder in _sharded(module, by_type)
            for config, parameter in _planned(path, collection, sharder)
        ]
    )


def named_tables(found: Sequence[tuple[str, Any, nn.Parameter | None, bool, Any]]) -> tuple[ModuleTable, ...]:
    """Tables under the names of ``find_tables``.

    Args:
        found: of each the module's path, its configuration, its weights, whether lookups have weights, and the sharder.

    Raises:
        NotModelled: Shardwright does not plan such tables; names every table at fault.
    """
    faults = [fault for path, config, *_ in found for fault in _faults(told_table(path, config.name), config)]
    if faults:
        raise NotModelled(together(faults))
    names = _unique_names([(path, config.name) for path, config, *_ in found])
    return tuple(_table(name, *each) for name, each in zip(names, found, strict=True))


def _sharded(module: nn.Module, by_type: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Path, module and sharder of all that TorchRec would shard; it does not look below what it shards."""
    waiting = [("", module)]
    while waiting:
        path, found = waiting.pop(0)
        sharder = by_type.get(sharder_name(type(found)))
        if sharder is not None and sharder.shardable_parameters(found):
            yield path, found, sharder
        elif sharder is None:
            waiting += [(f"{path}.{name}" if path else name, child) for name, child in found.named_children()]


def _planned(path: str, module: Any, sharder: Any) -> Iterator[tuple[Any, nn.Parameter]]:
    """Configurations and weights of a module's tables."""
    if sharder_name(type(module)) != _PLANNED:
        raise NotModelled(
            f"{_told_module(path)} is a {type(module).__name__}: Shardwright plans pooled tables, those of "
            "EmbeddingBagCollection. Leave out its sharder, so that it stays replicated, or plan with TorchRec"
        )
    shardable = sharder.shardable_parameters(module)
    configs = module.embedding_bag_configs()
    yield from ((config, shardable[config.name]) for config in configs if config.name in shardable)


def _unique_names(keys: Sequence[tuple[str, str]]) -> list[str]:
    times, names = Counter(table for _, table in keys), list[str]()
    for path, table in keys:
        name = table if times[table] == 1 else f"{path}/{table}"
        while name in names:
            name += "'"
        names.append(name)
    return names


def _faults(told: str, config: Any) -> Iterator[str]:
    """What no model describes about a table."""
    if config.data_type not in _DATA_TYPES:
        yield f"{told} has data_type {config.data_type.value}: modelled are fp32, fp16 and bf16"
    if config.pooling not in _POOLING_MODES:
        yield f"{told} has pooling {config.pooling.value}: modelled are sum and mean"
    if config.embedding_dim % _COLUMN_MULTIPLE:
        yield f"{told} has {config.embedding_dim} columns: modelled are multiples of {_COLUMN_MULTIPLE}, make it wider"
    if config.use_virtual_table or config.num_embeddings_post_pruning is not None:
        yield f"{told} is a virtual or pruned table: only tables that hold all their rows are modelled"


def _table(
    name: str, path: str, config: Any, parameter: nn.Parameter | None, weighted: bool, sharder: Any
) -> ModuleTable:
    return ModuleTable(
        name,
        path,
        config.name,
        config.num_embeddings,
        config.embedding_dim,
        tuple(config.feature_names),
        _POOLING_MODES[config.pooling],
        _DATA_TYPES[config.data_type],
        weighted,
        parameter,
        sharder,
    )
