"""From placed pieces to shards: which columns of a table each device gets."""

from collections import defaultdict

from service.domain.plan import Shard
from service.search.catalogue import Integers
from service.search.simulator import merged_pieces
from service.search.workspace import Workspace


def shards_of(workspace: Workspace, placement: Integers) -> tuple[Shard, ...]:
    """Shards of a placement [S], by table and column: what a device holds of a table lies side by side."""
    problem, catalogue = workspace.problem, workspace.catalogue
    held: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for piece, device in merged_pieces(workspace, placement):
        for table in catalogue.tables(piece):
            held[table.name].append((device, table.embedding_dim))
    shards = []
    for table in problem.tables:
        start = 0
        for device, width in held[table.name]:
            shards.append(Shard(table.name, start, start + width, device))
            start += width
    return tuple(shards)
