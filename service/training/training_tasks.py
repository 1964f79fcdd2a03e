"""The tables of the tasks that a policy is trained on, each distinct one once."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from service.domain.ports import Floats
from service.policies.table_features import policy_features
from service.search.catalogue import Integers
from service.search.policy_placement import ordered
from service.search.tasks import Task
from service.search.workspace import Workspace


class Embedding(Protocol):
    """Networks that embed tables."""

    def embed(self, features: Floats) -> Floats:
        """Embeddings of tables with these ``policy_features``; [T, 21] -> [T, F]."""

    def single_costs(self, embeddings: Floats) -> Floats:
        """Costs of pieces alone, milliseconds; [S, F] -> [S]."""


class TrainingTasks:
    """Workspaces, and the tables, or shards of tables, that their pieces consist of.

    Attributes:
        workspaces: the tasks.
        features: ``policy_features`` of the distinct tables, at their task's batch size; [U, 21].
        settings: number of each task's batch size and optimizer, which no feature tells.
    """

    def __init__(self, workspaces: Sequence[Workspace]) -> None:
        """Looks at all pieces.

        Raises:
            ValueError: there is no workspace, one has no pieces, or one's piece may be on none of its devices.
        """
        if not workspaces:
            raise ValueError("workspaces is empty: a policy is trained on at least one task")
        for number, workspace in enumerate(workspaces):
            _check(number, workspace)
        self.workspaces = tuple(workspaces)
        pairs = [(space.problem.global_batch_size, space.problem.optimizer) for space in workspaces]
        known = list(dict.fromkeys(pairs))
        self.settings = tuple(map(known.index, pairs))
        rows, self._counts = [], []
        for workspace in workspaces:
            held = [workspace.catalogue.tables(piece) for piece in workspace.keys]
            batch_size = workspace.problem.global_batch_size
            rows.append(policy_features([table for tables in held for table in tables], batch_size))
            self._counts.append(np.array([len(tables) for tables in held]))
        self.features: Floats
        self.features, numbers = np.unique(np.concatenate(rows), axis=0, return_inverse=True)
        self._tables = np.split(numbers.ravel(), np.cumsum([len(part) for part in rows[:-1]]))
        self._begins = [np.cumsum(counts) - counts for counts in self._counts]

    def tables(self, task: int, pieces: NDArray[np.integer]) -> tuple[Integers, Integers]:
        """Numbers of the tables of P pieces of a task, one piece after the other, [M]; and how many each has, [P]."""
        counts, begins = self._counts[task][pieces], self._begins[task][pieces]
        # Within its piece, each table's place is its place among all minus that of the piece's first.
        first = np.repeat(np.cumsum(counts) - counts, counts)
        return self._tables[task][np.repeat(begins, counts) + np.arange(counts.sum()) - first], counts

    def all_tables(self, task: int) -> tuple[Integers, Integers]:
        """Numbers of the M tables of a task, and the piece that each is of, ascending; [M] each."""
        counts = self._counts[task]
        return self._tables[task], np.repeat(np.arange(len(counts)), counts)

    def posed(self, task: int, networks: Embedding) -> Task:
        """A task as ``service.search.policy_placement.policy_task`` poses it to these networks."""
        embedded = networks.embed(self.features[self._tables[task]])
        pieces: Floats = np.add.reduceat(embedded, self._begins[task], axis=0)
        return ordered(self.workspaces[task], pieces, networks.single_costs)


def _check(number: int, workspace: Workspace) -> None:
    if not len(workspace.pieces):
        raise ValueError(f"workspaces[{number}] has no tables to place: leave it out")
    rules = workspace.catalogue.rules
    fits = workspace.memory_bytes[:, None] <= workspace.limits
    alone = (fits & rules.allowed[workspace.units]).any(axis=1)
    if not alone.all():
        table = workspace.problem.tables[rules.units[workspace.units[int(alone.argmin())]][0]].name
        raise ValueError(
            f"workspaces[{number}]: table {table} fits on none of the devices that may take it: cut it first, or leave "
            "the task out"
        )
