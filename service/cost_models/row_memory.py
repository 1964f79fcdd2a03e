"""What was worked out for single tables, kept: placements that are priced one after the other share their tables."""

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Generic, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from service.domain.tables import KEPT_TABLES, Optimizer, Table

_Key = tuple[object, ...]

Rows = TypeVar("Rows", bound=NDArray[Any])

_nameless = attrgetter(*(name for name in Table.__dataclass_fields__ if name != "name"))


class RowMemory(Generic[Rows]):
    """Rows of numbers by table (without its name), batch size and optimizer; emptied where there would be too many."""

    def __init__(self) -> None:
        """Nothing is known yet."""
        self._rows: dict[_Key, Rows] = {}

    def rows(
        self,
        tables: Sequence[Table],
        batch_size: int,
        optimizer: Optimizer,
        make: Callable[[Sequence[Table]], Rows],
    ) -> Rows:
        """A row for each of T tables; [T, ...].

        Args:
            tables: the tables, or slices as tables of their width.
            batch_size: the global batch.
            optimizer: the fused optimizer.
            make: makes the rows of tables that are not known; each row must depend on its table alone.
        """
        if not tables or len(tables) > KEPT_TABLES:
            return make(tables)
        keys = [(batch_size, optimizer, *_nameless(table)) for table in tables]
        known = self._rows
        missing = {key: table for key, table in zip(keys, tables, strict=True) if key not in known}
        if missing:
            if len(known) + len(missing) > KEPT_TABLES:
                # Another one, rather than an empty one: another thread may be reading this.
                known = self._rows = {key: known[key] for key in keys if key in known}
            known.update(zip(missing, make(list(missing.values())), strict=True))
        return cast(Rows, np.array([known[key] for key in keys]))
