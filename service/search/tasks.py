"""What an episode places: the pieces of a workspace in an order, with the features that a policy sums."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from service.domain.ports import Floats
from service.search.catalogue import Integers
from service.search.workspace import Workspace


def by_cost(workspace: Workspace) -> Integers:
    """Pieces by descending predicted cost alone, then by descending memory, then as they come; [S]."""
    return np.lexsort((-workspace.memory_bytes, -workspace.single_costs)).astype(np.int64)


def cost_embeddings(workspace: Workspace) -> Floats:
    """Embeddings of the pieces by the compute cost model; [S, H]."""
    return workspace.embeddings.astype(np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """S pieces to be placed one after the other.

    Attributes:
        workspace: the pieces and the devices.
        order: positions of the pieces, in the order in which they are placed; [S].
        features: what is summed over the pieces of a device; [S, F].
    """

    workspace: Workspace = field(repr=False)
    order: Integers
    features: Floats = field(repr=False)

    def __post_init__(self) -> None:
        count = len(self.workspace.pieces)
        if sorted(self.order.tolist()) != list(range(count)):
            raise ValueError(f"order must hold each of the positions 0 to {count - 1} of the task's pieces once")
        if self.features.ndim != 2 or len(self.features) != count:
            raise ValueError(f"features must be one row for each of the {count} pieces, not {self.features.shape}")

    @classmethod
    def of(
        cls,
        workspace: Workspace,
        features: Callable[[Workspace], Floats] = cost_embeddings,
        order: Callable[[Workspace], Integers] = by_cost,
    ) -> "Task":
        """A task of a workspace's pieces, in the order and with the features that these functions make of it."""
        return cls(workspace, order(workspace), features(workspace))
