"""Training tasks whose tables' features are computed once, however often a policy embeds them anew."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from service.domain.ports import Floats
from service.policies.dreamshard import DreamShardNetworks
from service.policies.table_features import policy_features
from service.search.catalogue import TICKS_PER_MS, Integers
from service.search.policy_placement import ordered
from service.search.simulator import simulate
from service.search.tasks import Task
from service.search.workspace import Workspace


@dataclass(frozen=True, slots=True, eq=False)
class TrainingTask:
    """A workspace of S pieces that consist of M tables.

    Attributes:
        workspace: what is placed.
        features: ``policy_features`` of the tables; [M, 21].
        piece_of: the piece that each table is of; [M], ascending.
        together_ms: predicted cost of a step with everything on one device: about the most that a placement can cost.
    """

    workspace: Workspace
    features: Floats
    piece_of: Integers
    together_ms: float

    @classmethod
    def of(cls, workspace: Workspace) -> "TrainingTask":
        """The training task of a workspace."""
        held = [workspace.catalogue.tables(piece) for piece in workspace.keys]
        tables = [table for tables in held for table in tables]
        together = simulate(workspace, np.zeros((1, len(held)), dtype=np.int64)).plan[0] / TICKS_PER_MS
        return cls(
            workspace,
            policy_features(tables, workspace.problem.global_batch_size),
            np.repeat(np.arange(len(held)), [len(tables) for tables in held]),
            float(together),
        )

    @property
    def fair_ms(self) -> float:
        """A device's fair part of that: the size of what the task's placements cost, milliseconds."""
        return self.together_ms / self.workspace.device_count

    def posed(self, networks: DreamShardNetworks) -> Task:
        """The task as ``service.search.policy_placement.policy_task`` poses it to these networks."""
        begins = np.searchsorted(self.piece_of, np.arange(len(self.workspace.pieces)))
        embeddings: Floats = np.add.reduceat(networks.embed(self.features), begins, axis=0)
        return ordered(self.workspace, embeddings, networks.single_costs)


def first_tables(tasks: Sequence[TrainingTask]) -> Integers:
    """Position of each task's first table among the tables of all; [K]."""
    return np.cumsum([0, *(len(task.features) for task in tasks[:-1])], dtype=np.int64)
