"""How each model is retrained: on which data, and beside the serving version on which held-out data."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

import numpy as np

from service.cost_models.arrays import Arrays
from service.domain.errors import UnknownHardware
from service.domain.launch_ports import ObservationStore
from service.domain.measurements import CommunicationMeasurement, ComputeMeasurement, Kind, Split, comparable
from service.domain.plan import content_hash
from service.domain.ports import CostModels, MeasurementStore, TrainingStore
from service.domain.tables import Table
from service.domain.version_ports import PromotionStore, TrainableModels
from service.domain.versions import COMMUNICATION, COMPUTE, Version
from service.training.communication_dataset import exchanges_fingerprint
from service.training.communication_trainer import CommunicationTraining
from service.training.compute_dataset import data_fingerprint
from service.training.compute_predictions import measured_costs
from service.training.compute_trainer import ComputeTraining
from service.training.gate import MARGIN, Both, Earlier, Verdict, judge_costs, judge_policies
from service.training.judged_rows import judged_combinations, judged_exchanges
from service.training.meters import predicted_times
from service.training.observed_rows import agreeing, observed_rows
from service.training.policy_evaluation import SAMPLED, by_best_heuristics, by_policy, judged
from service.training.policy_kinds import AutoShardKind, DreamShardKind
from service.training.sittings import Sitting, without_factors
from service.usecases.model_versions import serving_version
from service.usecases.train_models import fit_communication, fit_compute
from service.usecases.train_policies import PolicyKind, PolicyTasks, fit_policy, policy_facts

_REWARD = "predicted"
_COMPUTE_COSTS, _EXCHANGE_COSTS = ("total",), ("forward_transfer", "backward")
"""Whose errors the gate goes by."""


@dataclass(frozen=True, slots=True)
class Recipes:
    """How models are trained.

    Attributes:
        pool: tables that the tasks of policies are drawn from.
        compute: of the compute model.
        communication: of the communication model.
        policies: of each algorithm.
        tasks: that policies are trained and judged on.
    """

    pool: Sequence[Table]
    compute: ComputeTraining = field(default_factory=ComputeTraining)
    communication: CommunicationTraining = field(default_factory=CommunicationTraining)
    policies: Mapping[str, PolicyKind] = field(
        default_factory=lambda: {kind.algorithm.value: kind for kind in (DreamShardKind(), AutoShardKind())}
    )
    tasks: PolicyTasks = field(default_factory=PolicyTasks)


@dataclass(frozen=True, slots=True)
class Retraining:
    """What the models of a hardware are retrained with.

    Attributes:
        hardware: what they are for.
        measurements: that cost models are trained on.
        observations: of launchers, that the compute model is trained on too.
        models: the versions that there are, and where new ones go.
        promotions: says which serve.
        trainings: keeps what came of it.
        recipes: how they are trained.
        margin: by how much a version must be better, see ``service.training.gate``.
    """

    hardware: str
    measurements: MeasurementStore
    observations: ObservationStore
    models: TrainableModels
    promotions: PromotionStore
    trainings: TrainingStore
    recipes: Recipes
    margin: float = MARGIN


@dataclass(frozen=True, slots=True)
class Trained:
    """A version that may be written.

    Attributes:
        arrays: what it consists of.
        facts: for its manifest.
        verdict: of the gate.
    """

    arrays: Arrays
    facts: Mapping[str, Any]
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Work:
    """One model to be retrained.

    Attributes:
        basis: hash of all that the result depends on.
        as_serving: whether the serving version was trained on just that.
        train: trains a version and judges it beside the serving one; takes the time.
    """

    basis: str
    as_serving: bool
    train: Callable[[datetime], Trained]


def work(job: Retraining, model: str, serving: Version | None) -> Work:
    """How a model of ``MODELS`` is retrained where a version of it serves, or none does.

    Raises:
        UnknownHardware: there are no cost models to price a policy's placements by.
        DamagedArtifact: a version that serves cannot be read.
        StorageUnavailable: the database cannot be reached.
    """
    if model == COMPUTE:
        return _compute_work(job, serving)
    if model == COMMUNICATION:
        return _communication_work(job, serving)
    return _policy_work(job, job.recipes.policies[model], serving)


def _compute_work(job: Retraining, serving: Version | None) -> Work:
    measured, config, manifest = job.measurements.compute(job.hardware), job.recipes.compute, _manifest(job, serving)
    rows = [*measured, *agreeing(observed_rows(job.observations.observed(job.hardware)), measured)]
    used = [row for row in comparable(rows) if row.split is not None]

    def train(now: datetime) -> Trained:
        fitted = fit_compute(job.hardware, rows, config, now)
        if serving is None:
            return Trained(fitted.arrays, fitted.facts, _first())
        other, held_out = job.models.compute(serving), _held_out(used)

        def both(of_new: list[ComputeMeasurement], of_serving: list[ComputeMeasurement]) -> Both:
            return Both(judged_combinations(fitted.model, of_new), judged_combinations(other, of_serving))

        of_now, earlier = _as_known(fitted.facts, held_out), Earlier(None, _known(manifest))
        if before := _measured_before(manifest, held_out):
            # What a version tells is how long things take in the last sitting that it knew: by that it is judged here.
            now_known, then_known = _as_known(fitted.facts, before), _as_known(manifest, before)
            times = [measured_costs(rows).sum(axis=1) for rows in (now_known, then_known)]
            pace = float(np.median(times[0] / times[1]))
            earlier = Earlier(both(now_known, then_known), _known(manifest), pace)
        verdict = judge_costs(_COMPUTE_COSTS, both(of_now, of_now), earlier, job.margin)
        return Trained(fitted.arrays, fitted.facts, verdict)

    return _cost_work(job, data_fingerprint(used), config, manifest, train)


def _communication_work(job: Retraining, serving: Version | None) -> Work:
    rows, config = job.measurements.communication(job.hardware), job.recipes.communication
    used, manifest = comparable(rows), _manifest(job, serving)

    def train(now: datetime) -> Trained:
        fitted = fit_communication(job.hardware, rows, config, now)
        if serving is None:
            return Trained(fitted.arrays, fitted.facts, _first())
        other, held_out = job.models.communication(serving), _held_out(used)

        def both(part: list[CommunicationMeasurement]) -> Both:
            return Both(judged_exchanges(fitted.model, part), judged_exchanges(other, part))

        before = _measured_before(manifest, held_out)
        earlier = Earlier(both(before) if before else None, _known(manifest))
        verdict = judge_costs(_EXCHANGE_COSTS, both(held_out), earlier, job.margin)
        return Trained(fitted.arrays, fitted.facts, verdict)

    return _cost_work(job, exchanges_fingerprint(used), config, manifest, train)


def _policy_work(job: Retraining, kind: PolicyKind, serving: Version | None) -> Work:
    models, pool, tasks = _serving_cost_models(job), job.recipes.pool, job.recipes.tasks
    facts, manifest = policy_facts(kind, pool, models, _REWARD, tasks), _manifest(job, serving)

    def train(now: datetime) -> Trained:
        fitted = fit_policy(kind, job.hardware, pool, models, predicted_times, _REWARD, tasks, now)
        arrays = dict(fitted.arrays)
        if serving is None:
            return Trained(arrays, fitted.facts, _first())
        place = by_policy(job.models.policy(serving), tasks.samples)
        theirs = {
            family: {**results, SAMPLED: judged(fitted.held_out[family], place)}
            for family, results in fitted.results.items()
        }
        new, served = (
            {family: by_best_heuristics(results, SAMPLED) for family, results in of.items()}
            for of in (fitted.results, theirs)
        )
        return Trained(arrays, fitted.facts, judge_policies(new, served, job.margin))

    as_serving = content_hash(facts) == content_hash({name: manifest.get(name) for name in facts})
    return Work(content_hash({**facts, "margin": job.margin}), as_serving, train)


def _cost_work(
    job: Retraining,
    fingerprint: str,
    config: ComputeTraining | CommunicationTraining,
    manifest: Mapping[str, Any],
    train: Callable[[datetime], Trained],
) -> Work:
    learns = {"data": fingerprint, "training": asdict(config)}
    learnt = {"data": manifest.get("data", {}).get("fingerprint"), "training": manifest.get("training")}
    as_serving = content_hash(learns) == content_hash(learnt)
    return Work(content_hash({**learns, "margin": job.margin}), as_serving, train)


def _serving_cost_models(job: Retraining) -> CostModels:
    """What prices placements now, for the policy that serves and the new one alike."""
    standing, found = job.promotions.standing(), {}
    for kind in (COMPUTE, COMMUNICATION):
        version = serving_version(job.models, standing, (job.hardware, kind))
        if version is None:
            raise UnknownHardware(f"there is no {kind} model of {job.hardware} to price a policy's placements by")
        found[kind] = str(version)
    return job.models.cost_models(job.hardware, found)


def _manifest(job: Retraining, serving: Version | None) -> Mapping[str, Any]:
    """What the serving version says of itself; nothing where it is analytic."""
    return {} if serving is None or serving.analytic else job.models.facts(serving)


def _held_out(rows: Sequence[Kind]) -> list[Kind]:
    return [row for row in rows if row.split is Split.TEST]


def _measured_before(manifest: Mapping[str, Any], held_out: Sequence[Kind]) -> list[Kind]:
    """Those that were there when the serving version was trained; none where it does not say when."""
    created_at = manifest.get("created_at")
    return [row for row in held_out if created_at and row.measured_at <= datetime.fromisoformat(created_at)]


def _known(manifest: Mapping[str, Any]) -> int:
    """Held-out rows that the serving version was judged on."""
    return int(manifest.get("data", {}).get("rows", {}).get(Split.TEST.value, 0))


def _as_known(facts: Mapping[str, Any], rows: Sequence[ComputeMeasurement]) -> list[ComputeMeasurement]:
    """Rows as the last sitting that a version knew would have made them; as they are where it does not say."""
    times = [Sitting.from_dict(sitting) for sitting in facts.get("sittings", [])]
    return without_factors(rows, times) if times else list(rows)


def _first() -> Verdict:
    return Verdict(True, "there was no version to compare it with", {})
