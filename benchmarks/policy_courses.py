"""The training runs whose learning curves are shown: DreamShard's and AutoShard's, on the papers' own tasks."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from benchmarks.policy_curves import Course
from benchmarks.policy_families import autoshard_problems, dreamshard_problems
from service.domain.plan import Algorithm, Problem
from service.domain.ports import CostModels
from service.search.precut import posed
from service.search.workspace import Workspace
from service.training.autoshard_trainer import AutoShardTraining
from service.training.dreamshard_trainer import DreamShardTraining
from service.training.meters import predicted_times
from service.training.policy_job import PolicyTrainer
from service.training.policy_kinds import SHIPPED_AUTOSHARD, SHIPPED_DREAMSHARD, AutoShardKind, DreamShardKind

_LOOKS = 10

_MOST_HELD_OUT = 20
"""AutoShard's tasks that are looked at: they are larger, and its LSTM takes its time."""

Build = Callable[[CostModels, int, float], Course]
"""Models, number of held-out tasks and part of the steps to a course."""


def dreamshard_course(config: DreamShardTraining, said: str, models: CostModels, held_out: int, share: float) -> Course:
    """DreamShard on its own tasks of 20 tables.

    Args:
        config: of the run, but for the seed.
        said: of the configuration, in the course's name.
        models: price all placements.
        held_out: number of held-out tasks.
        share: part of the steps to train for.
    """
    config = replace(config, iterations=max(1, round(config.iterations * share)))

    def trainer(workspaces: Sequence[Workspace], seed: int) -> PolicyTrainer:
        return DreamShardKind(replace(config, seed=seed)).trainer(workspaces, predicted_times)

    train, test = dreamshard_problems("T20", "train"), dreamshard_problems("T20", "test", count=held_out)
    name, policy = f"dreamshard, T20 x 4{said}", DreamShardKind().policy
    return Course(name, _posed(train, models), _posed(test, models), trainer, policy, _LOOKS)


def autoshard_course(config: AutoShardTraining, said: str, models: CostModels, held_out: int, share: float) -> Course:
    """AutoShard on tasks of 80 tables for 8 devices, see ``dreamshard_course``."""
    config = replace(config, environment_steps=max(1, round(config.environment_steps * share)))

    def trainer(workspaces: Sequence[Workspace], seed: int) -> PolicyTrainer:
        return AutoShardKind(replace(config, seed=seed)).trainer(workspaces, predicted_times)

    train, test = autoshard_problems("train"), autoshard_problems("test", count=min(held_out, _MOST_HELD_OUT))
    name, policy = f"autoshard, 80 x 8{said}", AutoShardKind().policy
    return Course(name, _posed(train, models), _posed(test, models), trainer, policy, _LOOKS)


def _posed(problems: Sequence[Problem], models: CostModels) -> list[Workspace]:
    return [posed(problem, models) for problem in problems]


_AS_IN_PAPER = ", the paper's run"

COURSES: dict[str, tuple[Algorithm, Build]] = {
    "dreamshard": (Algorithm.DREAMSHARD, partial(dreamshard_course, SHIPPED_DREAMSHARD, "")),
    "dreamshard-paper": (Algorithm.DREAMSHARD, partial(dreamshard_course, DreamShardTraining(), _AS_IN_PAPER)),
    "autoshard": (Algorithm.AUTOSHARD, partial(autoshard_course, SHIPPED_AUTOSHARD, "")),
    "autoshard-paper": (Algorithm.AUTOSHARD, partial(autoshard_course, AutoShardTraining(), _AS_IN_PAPER)),
}
"""By the name of their plots; the first of each algorithm with the hyper-parameters of shipped versions."""

PAPERS = ("dreamshard-paper", "autoshard-paper")
"""Those with the papers' hyper-parameters."""
