"""From placed pieces to shards: which columns of a table each device gets."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from service.domain.moves import Columns, tiled
from service.domain.plan import Shard
from service.search.catalogue import Integers
from service.search.simulator import merged_pieces
from service.search.workspace import Workspace


def shards_of(
    workspace: Workspace, placement: Integers, before: Mapping[str, Sequence[Columns]] | None = None
) -> tuple[Shard, ...]:
    """Shards of a placement [S], by table and column: what a device holds of a table lies side by side.

    Args:
        workspace: S pieces.
        placement: device of each.
        before: where columns of tables are now, by name, so that many of them stay.
    """
    held: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for piece, device in merged_pieces(workspace, placement):
        for table in workspace.catalogue.tables(piece):
            held[table.name][device].append(table.embedding_dim)
    return tuple(
        Shard(table.name, start, stop, device)
        for table in workspace.problem.tables
        for start, stop, device in tiled((before or {}).get(table.name, ()), held[table.name])
    )
