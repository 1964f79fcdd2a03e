"""The training runs whose learning curves are shown: DreamShard's and AutoShard's, on the papers' own tasks."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from benchmarks.policy_curves import Course
from benchmarks.policy_families import autoshard_problems, dreamshard_problems
from benchmarks.policy_quality import posed
from service.domain.plan import Algorithm, Problem
from service.domain.ports import CostModels
from service.search.workspace import Workspace
from service.training.autoshard_trainer import AutoShardTraining
from service.training.dreamshard_trainer import DreamShardTraining
from service.training.meters import predicted_times
from service.training.policy_job import PolicyTrainer
from service.training.policy_kinds import AutoShardKind, DreamShardKind

_LOOKS = 10

_DREAMSHARD = DreamShardTraining(
    iterations=40, placements=20, cost_updates=150, policy_updates=40, policy_tasks=4, relative_costs=True
)
"""Longer than the paper's run, since costs are predicted and not measured."""

_AUTOSHARD = AutoShardTraining()

_MOST_HELD_OUT = 20
"""AutoShard's tasks that are looked at: they are larger, and its LSTM takes its time."""


def dreamshard_course(models: CostModels, held_out: int, share: float) -> Course:
    """DreamShard on its own tasks of 20 tables.

    Args:
        models: price all placements.
        held_out: number of held-out tasks.
        share: part of the steps to train for.
    """
    config = replace(_DREAMSHARD, iterations=max(1, round(_DREAMSHARD.iterations * share)))

    def trainer(workspaces: Sequence[Workspace], seed: int) -> PolicyTrainer:
        return DreamShardKind(replace(config, seed=seed)).trainer(workspaces, predicted_times)

    train, test = dreamshard_problems("T20", "train"), dreamshard_problems("T20", "test", count=held_out)
    name, policy = "dreamshard, T20 x 4", DreamShardKind().policy
    return Course(name, _posed(train, models), _posed(test, models), trainer, policy, _LOOKS)


def autoshard_course(models: CostModels, held_out: int, share: float) -> Course:
    """AutoShard on tasks of 80 tables for 8 devices, see ``dreamshard_course``."""
    config = replace(_AUTOSHARD, environment_steps=max(1, round(_AUTOSHARD.environment_steps * share)))

    def trainer(workspaces: Sequence[Workspace], seed: int) -> PolicyTrainer:
        return AutoShardKind(replace(config, seed=seed)).trainer(workspaces, predicted_times)

    train, test = autoshard_problems("train"), autoshard_problems("test", count=min(held_out, _MOST_HELD_OUT))
    name, policy = "autoshard, 80 x 8", AutoShardKind().policy
    return Course(name, _posed(train, models), _posed(test, models), trainer, policy, _LOOKS)


def _posed(problems: Sequence[Problem], models: CostModels) -> list[Workspace]:
    return [posed(problem, models) for problem in problems]


COURSES: dict[Algorithm, Callable[[CostModels, int, float], Course]] = {
    Algorithm.DREAMSHARD: dreamshard_course,
    Algorithm.AUTOSHARD: autoshard_course,
}
"""By algorithm: models, number of held-out tasks and part of the steps to a course."""
