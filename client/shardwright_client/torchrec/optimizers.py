"""The optimizer that TorchRec fuses into the backward pass."""

from collections.abc import Sequence
from typing import Any

from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torchrec.distributed.utils import optimizer_type_to_emb_opt_type

from shardwright_client.tables import Optimizer
from shardwright_client.torchrec.errors import NotModelled
from shardwright_client.torchrec.modules import ModuleTable

_OPTIMIZERS: dict[Any, Optimizer] = {
    EmbOptimType.SGD: "sgd",
    EmbOptimType.EXACT_SGD: "sgd",
    EmbOptimType.EXACT_ROWWISE_ADAGRAD: "rowwise_adagrad",
    EmbOptimType.ROWWISE_ADAGRAD: "rowwise_adagrad",
    EmbOptimType.EXACT_ADAGRAD: "adagrad",
    EmbOptimType.ADAM: "adam",
}


def fused_optimizer(tables: Sequence[ModuleTable]) -> Optimizer:
    """The optimizer of all tables: what ``apply_optimizer_in_backward`` gave them, else the sharder's ``fused_params``.

    TorchRec's precedence; without either FBGEMM's operator trains by SGD.

    Raises:
        NotModelled: it is none of the modelled ones, or tables have different ones.
    """
    kinds = {table.name: _optimizer(table) for table in tables}
    if len(set(kinds.values())) > 1:
        examples = ", ".join(f"{name} has {kind}" for name, kind in sorted(kinds.items())[:4])
        raise NotModelled(
            f"the tables of a plan must have one optimizer, but {examples}: give all the same, or pass optimizer"
        )
    return next(iter(kinds.values()))


def _optimizer(table: ModuleTable) -> Optimizer:
    kind = _declared(table)
    if kind not in _OPTIMIZERS:
        raise NotModelled(f"{table.told} is trained by {kind}: modelled are sgd, rowwise_adagrad, adagrad and adam")
    return _OPTIMIZERS[kind]


def _declared(table: ModuleTable) -> Any:
    """FBGEMM's name of a table's optimizer, or the class where it has none."""
    fused = getattr(table.sharder, "fused_params", None) or {}
    kinds = getattr(table.parameter, "_optimizer_classes", [None])
    if len(kinds) != 1:
        named = ", ".join(kind.__name__ for kind in kinds)
        raise NotModelled(
            f"{table.told} has {len(kinds)} optimizers in backward ({named}): TorchRec shards it with one"
        )
    (kind,), (arguments,) = kinds, getattr(table.parameter, "_optimizer_kwargs", [{}])
    if kind is None or "optimizer" in arguments:
        return _checked(table, arguments.get("optimizer", fused.get("optimizer", EmbOptimType.EXACT_SGD)))
    try:
        return optimizer_type_to_emb_opt_type(kind)
    except ValueError:
        return kind.__name__


def _checked(table: ModuleTable, given: Any) -> Any:
    if not isinstance(given, EmbOptimType):
        raise NotModelled(
            f"{table.told} is given optimizer={given!r}: give an EmbOptimType, for example EmbOptimType.EXACT_SGD"
        )
    return given
