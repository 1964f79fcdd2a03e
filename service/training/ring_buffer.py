"""The newest shards of which the compute is known, for AutoShard's cost model."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from service.domain.ports import Floats
from service.search.catalogue import Integers


@dataclass(frozen=True, slots=True, eq=False)
class Shards:
    """What N devices held, and what it took.

    Attributes:
        tables: of all of them, one device after the other; [M].
        counts: tables of each; [N].
        costs: [N].
        means: mean cost of the devices of the placement that each is of; [N].
        settings: number of what else the costs depend on; [N].
    """

    tables: Integers
    counts: Integers
    costs: Floats
    means: Floats
    settings: Integers


class RingBuffer:
    """Keeps so many shards; a new one takes the place of the oldest."""

    def __init__(self, capacity: int) -> None:
        """Starts empty.

        Raises:
            ValueError: the capacity is not positive.
        """
        if capacity < 1:
            raise ValueError(f"capacity is {capacity}, it must be at least 1")
        self._capacity = capacity
        self._tables: list[Integers] = []
        self._facts: list[tuple[float, float, int]] = []
        self._oldest = 0

    def __len__(self) -> int:
        return len(self._facts)

    def add(self, tables: Integers, cost: float, mean: float, setting: int) -> None:
        """Keeps a shard: its tables by number, [M], and its cost, mean and setting as in ``Shards``."""
        facts = (cost, mean, setting)
        if len(self) < self._capacity:
            self._tables.append(tables)
            self._facts.append(facts)
            return
        self._tables[self._oldest], self._facts[self._oldest] = tables, facts
        self._oldest = (self._oldest + 1) % self._capacity

    def sample(self, count: int, generator: np.random.Generator) -> Shards:
        """So many shards, each drawn from all.

        Raises:
            ValueError: there are none.
        """
        if not self._facts:
            raise ValueError("nothing can be drawn from an empty buffer: add shards first")
        return self._shards(generator.integers(len(self), size=count))

    def state(self) -> dict[str, Any]:
        """All shards as they lie, so that the same are drawn again."""
        kept = self._shards(np.arange(len(self)))
        return {
            "tables": torch.from_numpy(kept.tables),
            "counts": torch.from_numpy(kept.counts),
            "costs": torch.from_numpy(kept.costs),
            "means": torch.from_numpy(kept.means),
            "settings": torch.from_numpy(kept.settings),
            "oldest": self._oldest,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes back to a state of a buffer of the same capacity."""
        ends = np.cumsum(state["counts"].numpy())
        self._tables = np.split(state["tables"].numpy(), ends[:-1]) if len(ends) else []
        facts = (state[name].tolist() for name in ("costs", "means", "settings"))
        self._facts = list(zip(*facts, strict=True))
        self._oldest = state["oldest"]

    def _shards(self, positions: NDArray[np.intp]) -> Shards:
        tables = [self._tables[i] for i in positions]
        return Shards(
            np.concatenate([np.zeros(0, dtype=np.int64), *tables]),
            np.array([len(here) for here in tables], dtype=np.int64),
            np.array([self._facts[i][0] for i in positions], dtype=np.float64),
            np.array([self._facts[i][1] for i in positions], dtype=np.float64),
            np.array([self._facts[i][2] for i in positions], dtype=np.int64),
        )
