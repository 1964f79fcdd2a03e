"""Composition root: the only place where adapters meet ports."""

import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from types import FrameType

import uvicorn
from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from sqlalchemy import Engine

from service.api.app import DISTRIBUTION, create_app
from service.api.body import BodyLimits
from service.api.parsing import Limits
from service.api.planner_pool import Planner, PlannerPool
from service.api.planner_worker import ModelSource, SourceSpec
from service.api.planning import ModelVersions, Planning
from service.api.routes import Services
from service.domain.deadline import Deadline
from service.domain.errors import ShardwrightError, StorageUnavailable
from service.domain.plan import Algorithm, Problem, Shard
from service.domain.ports import PlanStore, StoredPlan
from service.settings import Settings
from service.storage import migrate
from service.storage.embedded import EmbeddedPostgres
from service.storage.engine import build_engine
from service.storage.plans import PlanRepository
from service.telemetry import logging as structured_logging
from service.telemetry.metrics import Metrics
from service.usecases.estimate import Estimate, estimate
from service.usecases.make_plan import PlanResult, make_plan

MODEL_STORE = "service.registry.store:ModelStore"

_BACKLOG = 2_048

_log = logging.getLogger(__name__)


class AddressInUse(ShardwrightError):
    """The address to listen on cannot be had."""

    kind = "address_in_use"


def serve(settings: Settings, factory: str = MODEL_STORE) -> None:
    """Serves until SIGTERM or SIGINT, then lets running requests finish.

    Args:
        settings: of the service.
        factory: of the source of cost models, ``module:callable``; called with ``settings.model_store``.

    Raises:
        AddressInUse: before anything else was started.
        ShardwrightError: the database cannot be started, reached or migrated.
    """
    structured_logging.configure(settings.log_level)
    with _stop_signals() as stop, _listening(settings) as listener, running_app(settings, factory) as app:
        host, port = listener.getsockname()[:2]
        _log.info("serving", extra={"fields": {"host": host, "port": port}})
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=settings.shutdown_timeout_s,
        )
        stop.server = uvicorn.Server(config)
        if not stop.made:
            stop.server.run([listener])


@contextlib.contextmanager
def running_app(settings: Settings, factory: str = MODEL_STORE) -> Iterator[FastAPI]:
    """The application with everything that it needs running: database, schema, planning processes.

    Raises:
        ShardwrightError: the database cannot be started, reached or migrated.
    """
    source = SourceSpec(factory, settings.model_store)
    metrics = Metrics(CollectorRegistry(), version(DISTRIBUTION))
    models = ModelVersions(source.build(), metrics)
    pool = PlannerPool(
        source, settings.planner_processes, settings.planner_queue, metrics.planner_running, metrics.planner_waiting
    )
    with database(settings) as engine, pool:
        migrate.upgrade(engine)
        planning = Planning(
            models=models, planner=pool, plans=PlanRepository(engine), limits=_limits(settings), metrics=metrics
        )
        services = Services(
            planning=planning,
            metrics=metrics,
            checks={"models": models.check, "database": database_check(engine)},
            body_limits=BodyLimits(settings.max_body_bytes, settings.body_timeout_s),
            threads=settings.planner_processes + settings.planner_queue,
        )
        for name, check in services.checks.items():
            _log.info("ready", extra={"fields": {"part": name, "state": check()}})
        yield create_app(services)


@contextlib.contextmanager
def database(settings: Settings) -> Iterator[Engine]:
    """An engine on the database of the settings, the embedded one started where they name none.

    Raises:
        ShardwrightError: the embedded one does not start, or the URL is malformed.
    """
    with contextlib.ExitStack() as stack:
        url = settings.database_url or stack.enter_context(EmbeddedPostgres(settings.data_dir))
        engine = build_engine(url)
        stack.callback(engine.dispose)
        yield engine


def database_check(engine: Engine) -> Callable[[], str]:
    """A readiness check: ``ok``, or what is wrong with the database."""
    wanted = migrate.head()

    def check() -> str:
        try:
            revision = migrate.current(engine)
        except StorageUnavailable:
            return "not reachable"
        return "ok" if revision == wanted else f"the schema is at {revision}, not at {wanted}"

    return check


def local_planning(settings: Settings, factory: str = MODEL_STORE) -> Planning:
    """Planning in this process and without a database, for the command line."""
    source = SourceSpec(factory, settings.model_store).build()
    metrics = Metrics(CollectorRegistry(), version(DISTRIBUTION))
    return Planning(
        models=ModelVersions(source, metrics),
        planner=_LocalPlanner(source),
        plans=_NoPlans(),
        limits=_limits(settings),
        metrics=metrics,
    )


class _LocalPlanner(Planner):
    """Plans in this process."""

    def __init__(self, source: ModelSource) -> None:
        self._source = source

    def plan(self, problem: Problem, algorithm: Algorithm, seed: int, deadline: Deadline) -> PlanResult:
        return make_plan(problem, self._source.cost_models(problem.topology.hardware), algorithm, seed, deadline)

    def estimate(self, problem: Problem, shards: Sequence[Shard]) -> Estimate:
        return estimate(problem, self._source.cost_models(problem.topology.hardware), shards)


class _NoPlans(PlanStore):
    """A store that is always away."""

    def get(self, plan_id: str) -> StoredPlan | None:
        raise StorageUnavailable("the command line keeps no plans; give the tables and shards themselves")

    def put(self, plan: StoredPlan) -> StoredPlan:
        raise StorageUnavailable("the command line keeps no plans")


def _limits(settings: Settings) -> Limits:
    return Limits(settings.default_time_limit_ms, settings.max_time_limit_ms, settings.max_tables)


@contextlib.contextmanager
def _listening(settings: Settings) -> Iterator[socket.socket]:
    """A socket that listens, taken before anything slow or lasting is started."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # The protocol by name: asyncio switches Nagle's algorithm off only where it is told that this is TCP.
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((settings.host, settings.port))
            listener.listen(_BACKLOG)
        except OSError as error:
            where = f"{settings.host}:{settings.port}"
            raise AddressInUse(f"cannot listen on {where}: {error.strerror or error}") from error
        yield listener


class _StopRequest:
    """Notes SIGTERM and SIGINT, and tells the server where there is one.

    Nothing is interrupted: what has been started is stopped in order, and an interrupted start could leave a database
    behind. While it serves, uvicorn handles the signals; it raises them again when it is through.
    """

    def __init__(self) -> None:
        self.made = False
        self.server: uvicorn.Server | None = None

    def __call__(self, _: int, __: FrameType | None) -> None:
        self.made = True
        if self.server:
            self.server.should_exit = True


@contextlib.contextmanager
def _stop_signals() -> Iterator[_StopRequest]:
    stop = _StopRequest()
    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
