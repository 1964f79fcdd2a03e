"""Loading of checkpoints in which slices of a table have unlike widths.

TorchRec 1.8 takes the width of a table's first slice for that of all when a ShardedEmbeddingBagCollection loads its
state: ranks whose slices have another width fail, and the others go on.
"""

from collections.abc import Iterator
from functools import cache, wraps
from typing import Any

import torch
from torchrec.distributed.embeddingbag import ShardedEmbeddingBagCollection
from torchrec.distributed.types import ShardedTensor

_HOOK = "_pre_load_state_dict_hook"
"""TorchRec's name of what turns sharded tensors of a state into those that this rank's parameters take."""


@cache
def load_unlike_widths() -> None:
    """Lets collections that are sharded from now on load slices of any width; all else is loaded as before."""
    hook = getattr(ShardedEmbeddingBagCollection, _HOOK, None)
    if hook is None:
        return

    @wraps(hook)
    def loading(module: Any, state: dict[str, Any], prefix: str, *further: Any) -> None:
        slices = dict(_unlike_slices(state, f"{prefix}embedding_bags."))
        for name in slices:
            del state[name]
        hook(module, state, prefix, *further)
        state.update(slices)

    setattr(ShardedEmbeddingBagCollection, _HOOK, staticmethod(loading))


def _unlike_slices(state: dict[str, Any], prefix: str) -> Iterator[tuple[str, torch.Tensor]]:
    """What this rank has of the tables whose slices have unlike widths; its own of a table are all as wide."""
    for name, value in state.items():
        if name.startswith(prefix) and isinstance(value, ShardedTensor):
            widths = {piece.shard_sizes[1] for piece in value.metadata().shards_metadata}
            own = [shard.tensor for shard in value.local_shards()]
            if len(widths) > 1 and own:
                yield name, torch.cat(own)
