"""Planning without a server, a database or further processes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from prometheus_client import CollectorRegistry

from service.api.model_versions import ModelVersions
from service.api.parsing import Limits
from service.api.planner_pool import Planner
from service.api.planning import Planning
from service.api.plans_under_way import PlansUnderWay
from service.api.profiling import NoSink, NoveltySink
from service.domain.deadline import Deadline
from service.domain.launch_ports import LaunchStore
from service.domain.plan import Algorithm, Problem, Running, Shard
from service.domain.ports import PlanStore
from service.domain.waiting import Waiting
from service.telemetry.metrics import Metrics
from service.usecases.estimate import Estimate, estimate
from service.usecases.make_plan import PlanResult, PlanStatus, make_plan
from tests.api.fake_store import FakeStore
from tests.fakes import fake_models


class Clock:
    """Stands still unless told otherwise."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class HerePlanner(Planner):
    """Plans in this process; notes what it is given, and does as it is told.

    Attributes:
        deadlines: of the calls, in their order.
        running: the plans that were said to be running, in their order.
        status: of the plans that it makes.
        error: raised instead, where there is one.
    """

    def __init__(self) -> None:
        self.deadlines: list[Deadline] = []
        self.running: list[Running | None] = []
        self.status = PlanStatus.COMPLETE
        self.error: Exception | None = None

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
        self.deadlines.append(deadline)
        self.running.append(running)
        if self.error:
            raise self.error
        return replace(make_plan(problem, fake_models(), algorithm, seed, Deadline(), running), status=self.status)

    def estimate(
        self, problem: Problem, versions: Mapping[str, str], shards: Sequence[Shard], deadline: Deadline
    ) -> Estimate:
        self.deadlines.append(deadline)
        return estimate(problem, fake_models(), shards)


def planning_with(
    plans: PlanStore,
    planner: HerePlanner,
    clock: Clock | None = None,
    metrics: Metrics | None = None,
    source: FakeStore | None = None,
    launches: LaunchStore | None = None,
    novel: NoveltySink | None = None,
    under_way: PlansUnderWay | None = None,
) -> Planning:
    """Planning with fake cost models over what is given, of which a test needs parts only."""
    metrics = metrics or fresh_metrics()
    return Planning(
        models=ModelVersions(source or FakeStore(""), metrics),
        planner=planner,
        plans=plans,
        launches=launches,
        limits=Limits(default_time_limit_ms=2_000, max_time_limit_ms=60_000, max_tables=100),
        metrics=metrics,
        novel=novel or NoSink(),
        under_way=under_way,
        clock=clock or Clock(),
    )


def fresh_metrics() -> Metrics:
    """Metrics in a registry of their own."""
    return Metrics(CollectorRegistry(), "test")
