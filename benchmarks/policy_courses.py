"""The training runs whose learning curves are shown: DreamShard's and AutoShard's, on the papers' own tasks."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from benchmarks.policy_curves import Course
from benchmarks.policy_families import autoshard_problems, dreamshard_problems
from benchmarks.policy_quality import posed
from service.domain.plan import Algorithm
from service.domain.ports import CostModels
from service.policies.autoshard import AutoShardNetworks
from service.policies.dreamshard import DreamShardNetworks
from service.policies.table_features import POLICY_FEATURES_VERSION
from service.search.workspace import Workspace
from service.training.autoshard_trainer import AutoShardTrainer, AutoShardTraining
from service.training.dreamshard_trainer import DreamShardTrainer, DreamShardTraining
from service.training.meters import predicted_times
from service.training.policy_job import PolicyTrainer

_LOOKS = 10

_DREAMSHARD = DreamShardTraining(
    iterations=40, placements=20, cost_updates=150, policy_updates=40, policy_tasks=4, relative_costs=True
)
"""Longer than the paper's run, since costs are predicted and not measured."""

_AUTOSHARD = AutoShardTraining()


def dreamshard_course(models: CostModels, held_out: int, share: float) -> Course:
    """DreamShard on its own tasks of 20 tables.

    Args:
        models: price all placements.
        held_out: number of held-out tasks.
        share: part of the steps to train for.
    """
    config = replace(_DREAMSHARD, iterations=max(1, round(_DREAMSHARD.iterations * share)))

    def trainer(workspaces: Sequence[Workspace], seed: int) -> PolicyTrainer:
        return DreamShardTrainer(workspaces, replace(config, seed=seed), predicted_times)

    return Course(
        "dreamshard, T20 x 4",
        [posed(problem, models) for problem in dreamshard_problems("T20", "train")],
        [posed(problem, models) for problem in dreamshard_problems("T20", "test", count=held_out)],
        trainer,
        partial(DreamShardNetworks, "in training", features_version=POLICY_FEATURES_VERSION),
        _LOOKS,
    )


def autoshard_course(models: CostModels, held_out: int, share: float) -> Course:
    """AutoShard on tasks of 80 tables for 8 devices; arguments as ``dreamshard_course``'s."""
    config = replace(_AUTOSHARD, environment_steps=max(1, round(_AUTOSHARD.environment_steps * share)))

    def trainer(workspaces: Sequence[Workspace], seed: int) -> PolicyTrainer:
        return AutoShardTrainer(workspaces, replace(config, seed=seed), predicted_times)

    return Course(
        "autoshard, 80 x 8",
        [posed(problem, models) for problem in autoshard_problems("train")],
        [posed(problem, models) for problem in autoshard_problems("test", count=held_out)],
        trainer,
        partial(AutoShardNetworks, "in training", features_version=POLICY_FEATURES_VERSION),
        _LOOKS,
    )


COURSES: dict[Algorithm, Callable[[CostModels, int, float], Course]] = {
    Algorithm.DREAMSHARD: dreamshard_course,
    Algorithm.AUTOSHARD: autoshard_course,
}
"""By algorithm: models, number of held-out tasks and part of the steps to a course."""
