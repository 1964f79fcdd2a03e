"""The two policies that can be trained, and the configurations of their shipped versions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.domain.plan import Algorithm
from service.policies.autoshard import AutoShardNetworks
from service.policies.dreamshard import DreamShardNetworks
from service.policies.table_features import POLICY_FEATURES_VERSION
from service.search.workspace import Workspace
from service.training.autoshard_trainer import AutoShardTrainer, AutoShardTraining
from service.training.dreamshard_trainer import DreamShardTrainer, DreamShardTraining
from service.training.meters import Meter

SHIPPED_DREAMSHARD = DreamShardTraining(
    slowest_device=True, relative_costs=True, policy_updates=100, policy_tasks=8, placements=30
)
"""More of what costs no measurement, and episodes that are judged by their slowest device; see docs/methods."""

SHIPPED_AUTOSHARD = AutoShardTraining(environment_steps=112_000, learning_rate=1.5e-3, cost_decay=0.3)
"""A few more steps, and a cost model that cannot learn its tables by heart; see docs/methods."""


@dataclass(frozen=True, slots=True)
class DreamShardKind:
    """DreamShard.

    Attributes:
        config: of the run.
        algorithm: its name.
    """

    config: DreamShardTraining = SHIPPED_DREAMSHARD
    algorithm: Algorithm = Algorithm.DREAMSHARD

    def trainer(self, workspaces: Sequence[Workspace], meter: Meter) -> DreamShardTrainer:
        """A trainer that has done nothing yet."""
        return DreamShardTrainer(workspaces, self.config, meter)

    def policy(self, arrays: Mapping[str, NDArray[np.float32]]) -> DreamShardNetworks:
        """What serves, of a trainer's arrays."""
        return DreamShardNetworks("in training", arrays, POLICY_FEATURES_VERSION)


@dataclass(frozen=True, slots=True)
class AutoShardKind:
    """AutoShard.

    Attributes:
        config: of the run.
        algorithm: its name.
    """

    config: AutoShardTraining = SHIPPED_AUTOSHARD
    algorithm: Algorithm = Algorithm.AUTOSHARD

    def trainer(self, workspaces: Sequence[Workspace], meter: Meter) -> AutoShardTrainer:
        """A trainer that has done nothing yet."""
        return AutoShardTrainer(workspaces, self.config, meter)

    def policy(self, arrays: Mapping[str, NDArray[np.float32]]) -> AutoShardNetworks:
        """What serves, of a trainer's arrays."""
        return AutoShardNetworks("in training", arrays, POLICY_FEATURES_VERSION)
