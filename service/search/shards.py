"""How many columns of a table may be on one device, and the shards that they are laid out in."""

import math

from service.domain.plan import Constraints, ShardingType
from service.search.cuts import Widths, can_be_cut, even_widths


def shard_widths(constraints: Constraints, dim: int, columns: int) -> Widths:
    """Widths of the fewest shards that hold some columns of a table of ``dim`` on one device, wider ones first.

    One, where that may be so wide. All columns are two where ``table_wise`` is not allowed and the table can be cut.
    """
    multiple = constraints.column_multiple
    whole = columns == dim
    if whole and not can_be_cut(constraints, dim):
        return (columns,)
    count = math.ceil(columns / (max(constraints.max_shard_dim // multiple, 1) * multiple))
    if whole and columns <= constraints.max_shard_dim:
        count = 1
    if whole and ShardingType.TABLE_WISE not in constraints.sharding_types:
        count = max(count, 2)
    return even_widths(columns, count, multiple)


def may_hold(constraints: Constraints, dim: int, columns: int) -> bool:
    """Whether a device may hold so many columns of a table of ``dim``, from 1 to all."""
    multiple, cuttable = constraints.column_multiple, ShardingType.COLUMN_WISE in constraints.sharding_types
    widths = shard_widths(constraints, dim, columns)
    if widths == (dim,):
        return columns <= constraints.max_shard_dim
    if not cuttable or dim % multiple or columns % multiple:
        return False
    return constraints.min_shard_dim <= widths[-1] and widths[0] <= constraints.max_shard_dim
