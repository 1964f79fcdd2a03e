"""Composition root of planning on the command line: in its own process and without a database."""

from collections.abc import Mapping, Sequence
from importlib.metadata import version

from prometheus_client import CollectorRegistry

from service.api.app import DISTRIBUTION
from service.api.model_versions import ModelVersions
from service.api.planner_pool import Planner
from service.api.planner_worker import SourceSpec
from service.api.planning import Planning
from service.api.profiling import NoSink
from service.domain.callers import Caller
from service.domain.deadline import Deadline
from service.domain.errors import StorageUnavailable
from service.domain.plan import Algorithm, Problem, Running, Shard
from service.domain.ports import CostModels, PlanStore, StoredPlan
from service.domain.version_ports import ModelSource
from service.domain.waiting import Waiting
from service.settings import Settings
from service.telemetry.metrics import Metrics
from service.usecases.estimate import Estimate, estimate
from service.usecases.make_plan import PlanResult, make_plan
from service.wiring import MODEL_STORE, request_limits


def local_models(settings: Settings, hardware: str, factory: str = MODEL_STORE) -> CostModels:
    """The newest cost models of some hardware, for the command line.

    Raises:
        UnknownHardware: there are none.
        DamagedArtifact: they cannot be trusted.
    """
    return SourceSpec(factory, settings.model_store).build().cost_models(hardware)


def local_planning(settings: Settings, factory: str = MODEL_STORE) -> Planning:
    """Planning in this process and without a database, for the command line."""
    source = SourceSpec(factory, settings.model_store).build()
    metrics = Metrics(CollectorRegistry(), version(DISTRIBUTION))
    return Planning(
        models=ModelVersions(source, metrics),
        planner=_LocalPlanner(source),
        plans=_NoPlans(),
        launches=None,
        limits=request_limits(settings),
        metrics=metrics,
        novel=NoSink(),
    )


class _LocalPlanner(Planner):
    """Plans in this process."""

    def __init__(self, source: ModelSource) -> None:
        self._source = source

    def plan(
        self,
        problem: Problem,
        versions: Mapping[str, str],
        algorithm: Algorithm,
        seed: int,
        deadline: Deadline,
        running: Running | None,
        waiting: Waiting,
    ) -> PlanResult:
        models = self._source.cost_models(problem.topology.hardware, versions)
        return make_plan(problem, models, algorithm, seed, deadline, running)

    def estimate(
        self, problem: Problem, versions: Mapping[str, str], shards: Sequence[Shard], deadline: Deadline
    ) -> Estimate:
        return estimate(problem, self._source.cost_models(problem.topology.hardware, versions), shards)


class _NoPlans(PlanStore):
    """A store that is always away."""

    def get(self, plan_id: str, caller: Caller) -> StoredPlan | None:
        raise StorageUnavailable(
            "the command line keeps no plans: ask a service that does, or price tables and shards themselves"
        )

    def ask(self, plan_id: str, caller: Caller) -> StoredPlan | None:
        raise StorageUnavailable("the command line keeps no plans")

    def put(self, plan: StoredPlan, caller: Caller) -> StoredPlan:
        raise StorageUnavailable("the command line keeps no plans")

    def delete(self, plan_id: str, caller: Caller) -> None:
        raise StorageUnavailable("the command line keeps no plans")
