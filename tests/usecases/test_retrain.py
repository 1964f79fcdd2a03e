"""Retraining on a real database: what is better serves, what is not changes nothing, and all of it is written down."""

import errno
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import Engine

from service.domain.callers import WITHOUT_KEY
from service.domain.deadline import Deadline
from service.domain.errors import RetrainingUnderWay, UnknownHardware
from service.domain.measurements import ComputeMeasurement, Split
from service.domain.observations import Observation
from service.domain.plan import Algorithm, Problem
from service.domain.ports import ComputeCostModel, StoredPlan
from service.domain.tables import Optimizer
from service.domain.topology import Topology
from service.domain.trainings import Ended, Outcome
from service.domain.versions import COMMUNICATION, COMPUTE, Version
from service.registry.store import ModelStore
from service.storage.observations import ObservationRepository
from service.storage.plans import PlanRepository
from service.training.compute_predictions import metrics_on
from service.training.compute_trainer import ComputeTraining
from service.training.dreamshard_trainer import DreamShardTraining
from service.training.policy_kinds import DreamShardKind
from service.training.task_families import FAMILIES
from service.usecases.make_plan import make_plan
from service.usecases.model_versions import promote, rollback, serving_version
from service.usecases.retrain import retrain
from service.usecases.retraining_works import Retraining
from service.usecases.train_policies import PolicyTasks
from tests.training.data_sheet_machine import pool_by_part
from tests.usecases.made_up_nights import (
    ENVIRONMENT,
    HARDWARE,
    RECIPES,
    WIDE,
    Night,
    combinations,
    earlier,
    exchanges,
    inverted,
    later,
    night,
)

MODEL = (HARDWARE, COMPUTE)
FIRST, SECOND = (f"{HARDWARE}/{COMPUTE}/{number}" for number in (1, 2))
GIB = 1 << 30


@pytest.fixture
def first(engine: Engine, tmp_path: Path) -> Night:
    """A night after which the first compute version serves, trained on narrow tables."""
    found = night(engine, tmp_path)
    found.measurements.add_compute_many(combinations("first", 250, earlier()))
    (outcome,) = retrain(found.job, [COMPUTE])
    assert (outcome.ended, outcome.trained, outcome.serving) == (Ended.PROMOTED, FIRST, None)
    return found


def _serves(of: Night, model: tuple[str, str] = MODEL) -> str:
    return str(serving_version(of.store, of.promotions.standing(), model))


def _again(of: Night, models: Sequence[str] = (COMPUTE,)) -> Outcome:
    (outcome,) = retrain(of.job, models)
    assert of.trainings.of_model(HARDWARE, outcome.model, 1) == [outcome]
    return outcome


def test_a_night_of_new_tables_is_promoted_and_the_next_plan_errs_less(first: Night) -> None:
    first.measurements.add_communication_many(exchanges("first", 150, earlier()))
    (outcome,) = retrain(first.job, [COMMUNICATION])
    assert outcome.ended is Ended.PROMOTED, outcome.reason
    new = combinations("second", 250, later(), WIDE, seed=1)
    first.measurements.add_compute_many(new)
    outcome = _again(first)
    assert (outcome.ended, outcome.trained, outcome.serving) == (Ended.PROMOTED, SECOND, FIRST), outcome.reason
    assert outcome.comparison is not None
    told = {who: outcome.comparison["held_out"][who]["total"]["mape"] for who in ("new", "serving")}
    assert told["new"] < 0.99 * told["serving"]
    assert outcome.started_at < outcome.finished_at
    assert _serves(first) == SECOND
    (promotion, before) = first.promotions.history(*MODEL, 10)
    assert (promotion.comparison, promotion.reason, before.number) == (outcome.comparison, outcome.reason, 1)

    held_out = [row for row in new if row.split is Split.TEST]
    errors = [metrics_on(first.store.compute(Version.parse(name)), held_out)["total"].mape for name in (FIRST, SECOND)]
    assert errors[1] < errors[0] / 2
    tables = tuple(replace(t, name=f"t{i}", embedding_dim=128) for i, t in enumerate(pool_by_part()[Split.TEST][:6]))
    problem = Problem(tables, Topology(HARDWARE, (64 * GIB,) * 2), 8192, Optimizer.SGD)
    serving = {kind: _serves(first, (HARDWARE, kind)) for kind in (COMPUTE, COMMUNICATION)}
    plan = make_plan(problem, first.store.cost_models(HARDWARE, serving), Algorithm.DIM_GREEDY, 0, Deadline())
    assert plan.models == {COMPUTE: SECOND, COMMUNICATION: f"{HARDWARE}/{COMMUNICATION}/1"}


def _inverted_unless_held_out(rows: Sequence[ComputeMeasurement]) -> list[ComputeMeasurement]:
    return [row if row.split is Split.TEST else bad for row, bad in zip(rows, inverted(rows), strict=True)]


def _slower(rows: Sequence[ComputeMeasurement]) -> list[ComputeMeasurement]:
    return [replace(row, forward_ms=3 * row.forward_ms, backward_ms=3 * row.backward_ms) for row in rows]


@pytest.mark.parametrize(
    ("planted", "said"),
    [
        (_inverted_unless_held_out, "held-out rows is"),
        (inverted, "when the serving version was trained is"),
        (_slower, "the machine is said to take"),
    ],
)
def test_a_planted_bad_training_set_is_refused(
    planted: Callable[[Sequence[ComputeMeasurement]], list[ComputeMeasurement]], said: str, first: Night
) -> None:
    first.measurements.add_compute_many(planted(combinations("planted", 500, later(), seed=1)))
    outcome = _again(first)
    assert (outcome.ended, outcome.trained, outcome.serving) == (Ended.REFUSED, None, FIRST)
    assert said in outcome.reason
    assert outcome.comparison is not None
    if planted is not _inverted_unless_held_out:
        errors = {who: outcome.comparison["held_out"][who]["total"]["mape"] for who in ("new", "serving")}
        # On all held-out rows together, the planted ones among them, it is better.
        assert errors["new"] < errors["serving"]
    assert _serves(first) == FIRST
    assert [str(version) for version in first.store.versions(*MODEL)] == [FIRST]


def test_measurements_of_another_device_do_not_take_over(first: Night) -> None:
    others = [replace(row, environment={**ENVIRONMENT, "device": "other"}) for row in
              combinations("other", 250, later(), seed=1)]  # fmt: skip
    first.measurements.add_compute_many(others)
    outcome = _again(first)
    assert outcome.ended is Ended.REFUSED
    assert "0 can still be compared" in outcome.reason
    assert _serves(first) == FIRST


def test_without_anything_new_nothing_is_trained(first: Night) -> None:
    outcome = _again(first)
    assert (outcome.ended, outcome.reason) == (Ended.NOTHING_NEW, "the serving version was trained on the same")
    first.measurements.add_compute_many(inverted(combinations("planted", 500, later(), seed=1)))
    assert _again(first).ended is Ended.REFUSED
    assert _again(first).ended is Ended.NOTHING_NEW
    assert _again(first).ended is Ended.NOTHING_NEW
    (outcome,) = retrain(replace(first.job, margin=0.02), [COMPUTE])
    assert outcome.ended is Ended.REFUSED
    assert [o.ended.value for o in first.trainings.of_model(*MODEL, 10)] == [
        "refused", "nothing_new", "nothing_new", "refused", "nothing_new", "promoted",
    ]  # fmt: skip


def test_where_nothing_can_be_written_nothing_is_trained(first: Night, monkeypatch: pytest.MonkeyPatch) -> None:
    first.measurements.add_compute_many(combinations("second", 250, later(), WIDE, seed=1))

    def read_only(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    with monkeypatch.context() as patched:
        patched.setattr("fsspec.implementations.local.LocalFileSystem.pipe_file", read_only)
        patched.setattr("service.usecases.retraining_works.fit_compute", pytest.fail)
        outcome = _again(first)
    assert outcome.ended is Ended.FAILED
    assert "cannot be written to: [Errno 30] Read-only file system" in outcome.reason
    assert _again(first).trained == SECOND


def test_what_was_rolled_back_is_not_promoted_again_from_the_same_data(first: Night) -> None:
    first.measurements.add_compute_many(combinations("second", 250, later(), WIDE, seed=1))
    assert _again(first).trained == SECOND
    rollback(first.store, first.promotions, MODEL, "a person", "it is worse")
    assert _again(first).ended is Ended.NOTHING_NEW
    assert _serves(first) == FIRST


def test_observations_are_trained_on(first: Night, engine: Engine) -> None:
    table = {"name": "t", "num_embeddings": 7_000, "embedding_dim": 32, "pooling_factor": 3.0}
    request = {"tables": [table], "global_batch_size": 2048, "optimizer": "sgd"}
    answer = {"models": {COMPUTE: FIRST}, "shards": [{"table": "t", "columns": [0, 32], "device": 0}]}
    PlanRepository(engine).put(
        StoredPlan("p", HARDWARE, "auto", 1.0, request, {**answer, "status": "complete"}), WITHOUT_KEY
    )
    assert _again(first).ended is Ended.NOTHING_NEW
    observation = Observation("", 0, 0, 100, 0.5, 1.25, None, None, None, ENVIRONMENT)
    ObservationRepository(engine).add(
        "p", [replace(observation, environment={**ENVIRONMENT, "bench": "9"})], WITHOUT_KEY
    )
    assert _again(first).ended is Ended.NOTHING_NEW
    ObservationRepository(engine).add("p", [replace(observation, start=100, stop=200)], WITHOUT_KEY)
    outcome = _again(first)
    assert outcome.ended in (Ended.PROMOTED, Ended.REFUSED)
    assert outcome.comparison is not None


def test_failures_change_nothing_but_their_row(first: Night) -> None:
    first.measurements.add_compute_many(combinations("second", 60, later(), seed=1))
    outcome = _again(first, [COMMUNICATION])
    assert (outcome.ended, outcome.serving, outcome.trained) == (Ended.FAILED, None, None)
    assert "100 are needed" in outcome.reason
    broken = replace(first.job, recipes=replace(RECIPES, compute=ComputeTraining(epochs=1, batch_size=0)))
    (outcome,) = retrain(broken, [COMPUTE])
    assert (outcome.ended, outcome.serving) == (Ended.FAILED, FIRST)
    assert "Error" in outcome.reason
    assert _serves(first) == FIRST
    assert len(first.promotions.history(*MODEL, 10)) == 1
    assert [str(version) for version in first.store.versions(*MODEL)] == [FIRST]
    # What failed is tried again.
    assert _again(first).ended is not Ended.NOTHING_NEW


def test_a_version_that_was_promoted_meanwhile_is_not_overruled(first: Night, tmp_path: Path) -> None:
    first.measurements.add_compute_many(combinations("second", 250, later(), WIDE, seed=1))
    manifest, arrays = first.store.read(Version(*MODEL, 1))
    facts = {name: manifest[name] for name in ("hardware", "features_version", "measured")}

    class Meanwhile(ModelStore):
        """While a version is judged beside the one that serves, a person promotes another."""

        def compute(self, version: Version) -> ComputeCostModel:
            promote(first.store, first.promotions, first.store.write(*MODEL, arrays, facts), "a person", "")
            return super().compute(version)

    meanwhile = Meanwhile(str(tmp_path / "models"))
    outcome = retrain(replace(first.job, models=meanwhile), [COMPUTE])[0]
    assert (outcome.ended, outcome.serving) == (Ended.REFUSED, FIRST)
    assert f"{SECOND} serves since" in outcome.reason
    assert _serves(first) == SECOND
    assert _again(first).ended is not Ended.NOTHING_NEW


def test_two_at_once_exclude_each_other(first: Night) -> None:
    with first.trainings.alone(HARDWARE), pytest.raises(RetrainingUnderWay, match="another process retrains"):
        retrain(first.job, [COMPUTE])
    assert len(first.trainings.of_model(*MODEL, 10)) == 1
    assert _again(first).ended is Ended.NOTHING_NEW


def test_a_mistyped_hardware_gets_no_outcome(first: Night) -> None:
    with pytest.raises(UnknownHardware, match="cpu-y"):
        retrain(replace(first.job, hardware="cpu-y"))
    assert first.trainings.all(None, 10) == first.trainings.of_model(*MODEL, 10)


def _policies(engine: Engine, folder: Path, seed: int) -> Retraining:
    config = DreamShardTraining(
        iterations=2, placements=3, cost_updates=4, cost_batch=4, policy_updates=2, seed=seed
    )  # fmt: skip
    tasks = PolicyTasks((FAMILIES["dreamshard-20"],), train=2, held_out=2, samples=2)
    recipes = replace(RECIPES, policies={"dreamshard": DreamShardKind(config)}, tasks=tasks)
    return night(engine, folder, "h100", recipes).job


def test_policies_are_judged_under_the_cost_models_that_serve(engine: Engine, tmp_path: Path) -> None:
    first, second = (_policies(engine, tmp_path, seed) for seed in (0, 1))
    (outcome,) = retrain(first, ["dreamshard"])
    assert (outcome.ended, outcome.trained) == (Ended.PROMOTED, "h100/dreamshard/1")
    assert retrain(first, ["dreamshard"])[0].ended is Ended.NOTHING_NEW
    (outcome,) = retrain(second, ["dreamshard"])
    assert outcome.comparison is not None
    means, better = outcome.comparison["mean"], outcome.ended is Ended.PROMOTED
    assert outcome.ended in (Ended.PROMOTED, Ended.REFUSED)
    assert better == (means["new"] < 0.99 * means["serving"])
    assert outcome.trained == ("h100/dreamshard/2" if better else None)
    manifest = first.models.facts(Version("h100", "dreamshard", 1))
    stated = manifest["held_out"]["dreamshard-20"]["cost_by_best_heuristics"]["policy_sampled"]
    assert means["serving"] == pytest.approx(stated, abs=1e-4)
    assert np.isfinite(means["new"])
