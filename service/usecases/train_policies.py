"""Trains the policies of DreamShard and AutoShard and writes them as new versions, judged on tasks of other tables."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from service.domain.errors import DamagedArtifact, InvalidInputFile
from service.domain.measurements import Split
from service.domain.plan import Algorithm, content_hash
from service.domain.policy import PlacementPolicy
from service.domain.ports import CostModels, ModelWriter
from service.domain.tables import Table
from service.domain.versions import Version
from service.policies.table_features import POLICY_FEATURES_VERSION
from service.search.precut import posed
from service.search.workspace import Workspace
from service.training.meters import Meter
from service.training.policy_evaluation import (
    POLICY,
    SAMPLED,
    Results,
    baselines,
    by_best_heuristics,
    by_policy,
    evaluated,
    judged,
)
from service.training.policy_job import PolicyTrainer, run
from service.training.task_families import SHIPPED, TaskFamily, draw_problems, pool_half

_HELD_OUT_SEED = 20_221_130
"""Of the tasks that all versions are judged on: frozen, whatever a run's own seed."""

_WATCHED = 4
"""Held-out tasks of each family that are looked at while training goes on."""

_LOOKS = 20
"""About how often they are looked at, with a checkpoint: a look takes as long as a learner step of AutoShard."""


class PolicyKind(Protocol):
    """An algorithm's way of training and of serving."""

    @property
    def algorithm(self) -> Algorithm:
        """Its name."""

    @property
    def config(self) -> Any:
        """Of the run; a dataclass."""

    def trainer(self, workspaces: Sequence[Workspace], meter: Meter) -> PolicyTrainer:
        """A trainer of the configuration that has done nothing yet."""

    def policy(self, arrays: Mapping[str, NDArray[np.float32]]) -> PlacementPolicy:
        """What serves, of a trainer's arrays."""


class PolicyVersions(ModelWriter, Protocol):
    """Keeps versions of policies."""

    def versions(self, hardware: str, model: str) -> list[Version]:
        """All versions of a model, the oldest first."""

    def read(self, version: Version) -> tuple[dict[str, Any], dict[str, NDArray[np.float32]]]:
        """Manifest and arrays of a version; raises DamagedArtifact where they are not what was written."""


@dataclass(frozen=True, slots=True)
class PolicyTasks:
    """What a policy is trained and judged on.

    Attributes:
        families: that tasks are drawn from.
        train: tasks of each family, of the train half of the pool.
        held_out: tasks of each family, of the other half.
        samples: placements drawn beside the likeliest, where the cheapest is judged.
        seed: of the training tasks.
    """

    families: tuple[TaskFamily, ...] = SHIPPED
    train: int = 60
    held_out: int = 12
    samples: int = 16
    seed: int = 0


@dataclass(frozen=True, slots=True)
class TrainedPolicy:
    """A version that holds what was trained, and what it makes of held-out tasks.

    Attributes:
        version: its name.
        written: whether by this run; False where it was there already.
        seconds: that training took in this run, with checkpoints and looks at held-out tasks.
        results: by family and way of placing.
    """

    version: str
    written: bool
    seconds: float
    results: Mapping[str, Mapping[str, Results]]


@dataclass(frozen=True, slots=True, eq=False)
class FittedPolicy:
    """A policy that was trained and is not written.

    Attributes:
        policy: it.
        arrays: what a version of it consists of.
        facts: for the manifest of such a version.
        seconds: that training took in this run, with checkpoints and looks at held-out tasks.
        held_out: the tasks that it was judged on, by family.
        results: by family and way of placing.
    """

    policy: PlacementPolicy
    arrays: Mapping[str, NDArray[np.float32]]
    facts: dict[str, Any]
    seconds: float
    held_out: Mapping[str, Sequence[Workspace]]
    results: Mapping[str, Mapping[str, Results]]


def train_policy_version(
    kind: PolicyKind,
    hardware: str,
    pool: Sequence[Table],
    models: CostModels,
    store: PolicyVersions,
    meter: Meter,
    reward: str,
    tasks: PolicyTasks,
    now: datetime,
    folder: Path | None = None,
    report: Callable[[int, int], None] = lambda done, of: None,
) -> TrainedPolicy:
    """Trains and judges a policy as ``fit_policy`` does, whose other arguments these are, and writes the next version.

    None is written where one is the same to the last bit: such a run was finished before.

    Raises:
        InvalidInputFile: see ``fit_policy``.
        ModelStoreUnwritable: nothing was trained.
    """
    store.refuse_unwritable()
    fitted = fit_policy(kind, hardware, pool, models, meter, reward, tasks, now, folder, report)
    same = _same(store, hardware, kind.algorithm.value, fitted.arrays)
    version = same or store.write(hardware, kind.algorithm.value, fitted.arrays, fitted.facts)
    return TrainedPolicy(str(version), same is None, fitted.seconds, fitted.results)


def _same(
    store: PolicyVersions, hardware: str, model: str, arrays: Mapping[str, NDArray[np.float32]]
) -> Version | None:
    """The newest version with these arrays, or None."""
    for version in reversed(store.versions(hardware, model)):
        with suppress(DamagedArtifact):
            _, held = store.read(version)
            if held.keys() == arrays.keys() and all(np.array_equal(held[name], arrays[name]) for name in arrays):
                return version
    return None


def fit_policy(
    kind: PolicyKind,
    hardware: str,
    pool: Sequence[Table],
    models: CostModels,
    meter: Meter,
    reward: str,
    tasks: PolicyTasks,
    now: datetime,
    folder: Path | None = None,
    report: Callable[[int, int], None] = lambda done, of: None,
) -> FittedPolicy:
    """Trains a policy on tasks of the train half of a pool and judges it on the other half; writes no version.

    Args:
        kind: what is trained, and how.
        hardware: that it is for.
        pool: tables that tasks are drawn from.
        models: price placements, of the tasks that are trained on where ``meter`` predicts, of held-out ones always.
        meter: finds out what placements cost.
        reward: what the meter is, for the manifest.
        tasks: to train and judge on.
        now: the time.
        folder: where checkpoints and event files are; a run goes on from the checkpoint that is there.
        report: told how many steps are done, and of how many.

    Raises:
        InvalidInputFile: the tasks cannot be drawn from the pool, or the checkpoint is damaged or of another run.
    """
    training = _workspaces(tasks, pool_half(pool, Split.TRAIN), hardware, models, tasks.train, tasks.seed)
    held_out = held_out_tasks(tasks, pool, hardware, models)
    trainer = kind.trainer([space for spaces in training.values() for space in spaces], meter)
    facts = policy_facts(kind, pool, models, reward, tasks)
    beside = {name: baselines(spaces[:_WATCHED]) for name, spaces in held_out.items()} if folder else {}

    def watched() -> dict[str, float]:
        place, found = by_policy(kind.policy(trainer.arrays()), 0), {}
        for name, others in beside.items():
            results = {**others, POLICY: judged(held_out[name][:_WATCHED], place)}
            found[f"held_out_cost_by_best_heuristics/{name}"] = by_best_heuristics(results, POLICY)
        return found

    began = time.monotonic()
    # What is drawn depends on the order of the pool, too, which its fingerprint does not.
    identity = content_hash({**facts, "in_order": [repr(table) for table in pool]})
    every = max(1, trainer.steps // _LOOKS)
    run(trainer, identity, folder, every, lambda done: report(done, trainer.steps), watched)
    seconds = time.monotonic() - began
    arrays = trainer.arrays()
    policy = kind.policy(arrays)
    results = {name: evaluated(spaces, policy, tasks.samples) for name, spaces in held_out.items()}
    told = {
        name: {way: found.as_dict() for way, found in by_way.items()}
        | {"cost_by_best_heuristics": {way: round(by_best_heuristics(by_way, way), 4) for way in (POLICY, SAMPLED)}}
        for name, by_way in results.items()
    }
    facts |= {"created_at": now.isoformat(timespec="seconds"), "seconds": round(seconds, 1), "held_out": told}
    return FittedPolicy(policy, arrays, facts, seconds, held_out, results)


def held_out_tasks(
    tasks: PolicyTasks, pool: Sequence[Table], hardware: str, models: CostModels
) -> dict[str, list[Workspace]]:
    """The tasks of each family that versions are judged on, whatever a run's seed.

    Raises:
        InvalidInputFile: they cannot be drawn from the pool.
    """
    return _workspaces(tasks, pool_half(pool, Split.TEST), hardware, models, tasks.held_out, _HELD_OUT_SEED)


def policy_facts(
    kind: PolicyKind, pool: Sequence[Table], models: CostModels, reward: str, tasks: PolicyTasks
) -> dict[str, Any]:
    """What a training depends on, for the manifest; the arguments are those of ``fit_policy``."""
    return {
        "algorithm": kind.algorithm.value,
        "features_version": POLICY_FEATURES_VERSION,
        "priced_by": {"versions": models.versions, "digest": models.digest},
        "reward": reward,
        "tasks": {**asdict(tasks), "pool": {"tables": len(pool), "fingerprint": _fingerprint(pool)}},
        "training": asdict(kind.config),
    }


def _workspaces(
    tasks: PolicyTasks, pool: Sequence[Table], hardware: str, models: CostModels, count: int, seed: int
) -> dict[str, list[Workspace]]:
    """Tasks of each family, posed."""
    try:
        drawn = {family.name: draw_problems(family, pool, hardware, count, seed) for family in tasks.families}
    except ValueError as fault:
        raise InvalidInputFile(
            f"tasks cannot be drawn from this half of the tables, {len(pool)} here: {fault}"
        ) from fault
    return {name: [posed(problem, models) for problem in problems] for name, problems in drawn.items()}


def _fingerprint(pool: Sequence[Table]) -> str:
    return content_hash({"tables": sorted(repr(table) for table in pool)})
