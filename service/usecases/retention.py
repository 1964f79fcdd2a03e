"""Pruning: deletes what has been kept long enough and is needed by nothing that stays."""

from collections.abc import Callable, Collection
from typing import Final

from service.domain.ports import RetentionStore
from service.domain.retention import Kept, Retention, TrainedBench

_BATCH: Final = 500
"""Rows deleted in one transaction."""


def prune(
    store: RetentionStore, keep: Retention, trained: Callable[[], Collection[TrainedBench]], dry_run: bool = False
) -> dict[Kept, int]:
    """Deletes what is kept no longer, in short transactions; how many rows of each kind that were.

    Safe at any time, several at a time, and while everything is in use; one that is interrupted has done part of it.

    Args:
        store: of what is pruned.
        keep: how long.
        trained: looks up the benches that versions which exist were trained on.
        dry_run: deletes nothing and says what would be deleted.

    Raises:
        StorageUnavailable: the database cannot be reached.
        DamagedArtifact: a version does not say what it was trained on; nothing was deleted.
    """
    needed = trained()
    if dry_run:
        return store.prunable(keep, needed)

    def deleted(kind: Kept) -> int:
        total = 0
        while count := store.prune(kind, keep, needed, _BATCH):
            total += count
        return total

    return {kind: deleted(kind) for kind in Kept}
