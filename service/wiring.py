"""Composition root of the service and of the commands that work on its database."""

import contextlib
import gc
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version

import uvicorn
from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from sqlalchemy import Engine, exc

from service.api.access import Access
from service.api.app import DISTRIBUTION, create_app
from service.api.body import BodyAdmission, BodyLimits
from service.api.http_server import ImpatientProtocol
from service.api.idempotency import IdempotentCalls
from service.api.model_resources import ModelResources
from service.api.model_versions import ModelVersions
from service.api.observing import Observing
from service.api.outages import OutageMemory, RememberingLaunches, RememberingUnderWay
from service.api.parsing import Limits
from service.api.plan_listing import PlanListing
from service.api.planner_pool import PlannerPool
from service.api.planner_worker import SourceSpec
from service.api.planning import Planning
from service.api.plans_under_way import Patience, PlansUnderWay
from service.api.profiling import NovelTables, ProfileDesk
from service.api.readiness import Check
from service.api.routes import Services
from service.database import database
from service.domain.access import Allowance
from service.domain.errors import StorageUnavailable
from service.domain.profiles import ProfileTerms
from service.domain.version_ports import ModelSource, PromotionStore
from service.jobs.measuring import OPERATOR_BENCH, Device
from service.process import Server, listening, stop_signals
from service.profiling.host import most_memory
from service.settings import Settings
from service.storage import api_keys, migrate, promotions
from service.storage.api_keys import ApiKeyRepository
from service.storage.audit import AuditTrail
from service.storage.idempotency import IdempotencyRepository, note_effect
from service.storage.launches import LaunchRepository
from service.storage.observations import ObservationRepository
from service.storage.plans import PlanRepository
from service.storage.plans_under_way import UnderWayRepository
from service.storage.profiles import ProfileRepository
from service.storage.promotions import PromotionRepository
from service.storage.table_watch import TableWatch
from service.storage.trainings import TrainingRepository
from service.storage.workers import WorkerRepository
from service.supervision import RETRAIN, beside_serving, build_supervisor, nightly, supervised
from service.telemetry import logging as structured_logging
from service.telemetry import tracing
from service.telemetry.logging import current_request_id
from service.telemetry.metrics import Metrics
from service.telemetry.prompt import PromptReads
from service.telemetry.queue_metrics import QueueCollector
from service.telemetry.state_metrics import MemoryCollector, ReadinessCollector
from service.telemetry.training_metrics import TrainingCollector
from service.usecases.model_versions import write_down

MODEL_STORE = "service.registry.store:ModelStore"

_BODIES_PER_THREAD = 4
_MAX_HEADERS_BYTES = 128 * 1024

_LEASE_SPARE_S = 60.0
"""Seconds that a call may take beyond the largest time limit before its idempotency key is free for another try."""

_log = logging.getLogger(__name__)


def serve(settings: Settings, factory: str = MODEL_STORE, worker: str | None = None) -> None:
    """Serves until SIGTERM or SIGINT, then lets running requests finish.

    Args:
        settings: of the service.
        factory: of the source of cost models, ``module:callable``; called with ``settings.model_store``.
        worker: hardware that this machine's CPU measures beside serving; None for no worker.

    Raises:
        AddressInUse: before anything else was started.
        ShardwrightError: the database cannot be started, reached or migrated.
    """
    structured_logging.configure(settings.log_level)
    with (
        stop_signals() as stop,
        listening(settings) as listener,
        running_app(settings, factory, worker, stop.wanted) as app,
    ):
        host, port = listener.getsockname()[:2]
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            # A key of 64 KiB is answered as any wrong one, not by the server before the service sees it.
            h11_max_incomplete_event_size=_MAX_HEADERS_BYTES,
            http=ImpatientProtocol,
            timeout_graceful_shutdown=settings.shutdown_timeout_s,
        )
        stop.server = Server(config, stop.wanted, settings.drain_s)
        # What is loaded now stays: a full collection, which holds up all requests, need not look through it.
        gc.collect()
        gc.freeze()
        if not stop.made:
            _log.info("serving", extra={"fields": {"host": host, "port": port}})
            stop.server.run([listener])


@contextlib.contextmanager
def running_app(
    settings: Settings,
    factory: str = MODEL_STORE,
    worker: str | None = None,
    stopping: threading.Event | None = None,
) -> Iterator[FastAPI]:
    """The application with everything that it needs running: database, schema, planning processes, a worker if wanted.

    Once ``stopping`` is set, it is not ready any more and the worker stops, while requests still finish.

    Raises:
        ShardwrightError: the database cannot be started, reached or migrated.
    """
    stopping = stopping or threading.Event()
    source = SourceSpec(factory, settings.model_store)
    metrics = Metrics(CollectorRegistry(), version(DISTRIBUTION))
    catalog = source.build()
    models = ModelVersions(catalog, metrics)
    pool = PlannerPool(
        source,
        settings.planner_processes,
        settings.planner_queue,
        metrics.planner_running,
        metrics.planner_waiting,
        metrics.planner_deaths,
    )
    with contextlib.ExitStack() as stack:
        traces = stack.enter_context(_traces())
        restarted = metrics.embedded_restarts.inc
        engine = stack.enter_context(database(settings, create=True, restarted=restarted, prompt=True))
        stack.enter_context(pool)
        migrate.upgrade(engine)
        prompt = PromptReads()
        metrics.add(QueueCollector(prompt.of(WorkerRepository(engine, settings.worker_stalled_s).queue_state)))
        trail = AuditTrail(engine, current_request_id, note_effect)
        repository = PlanRepository(engine, trail)
        plans, decisions = OutageMemory(repository), PromotionRepository(engine, trail)
        keys = ApiKeyRepository(engine, trail)
        access = _access(settings, keys, metrics)
        trainings = TrainingRepository(engine)
        metrics.add(TrainingCollector(prompt.of(trainings.last_of_each)))
        profiles, terms = ProfileRepository(engine), profile_terms(settings)
        novel = stack.enter_context(NovelTables(profiles, terms, settings.profile_novelty, metrics))
        if worker is not None:
            supervisor = build_supervisor(
                beside_serving(settings), engine, worker, [Device("cpu")], nightly(settings, engine)
            )
            stack.enter_context(supervised(supervisor, stopping))
        patience = Patience(settings.plan_poll_timeout_s, settings.drain_s + settings.shutdown_timeout_s)
        under_way = PlansUnderWay(RememberingUnderWay(UnderWayRepository(engine), plans), patience, stopping)
        planning = Planning(
            models=models,
            planner=pool,
            plans=plans,
            launches=RememberingLaunches(LaunchRepository(engine), plans),
            limits=request_limits(settings),
            metrics=metrics,
            novel=novel,
            under_way=stack.enter_context(under_way),
        )
        threads = settings.planner_processes + settings.planner_queue
        services = Services(
            access=access,
            planning=planning,
            plan_listing=PlanListing(repository),
            models=ModelResources(models, catalog, decisions, trainings),
            observing=Observing(planning.find, ObservationRepository(engine), metrics),
            profiles=ProfileDesk(profiles, terms, request_limits(settings)),
            metrics=metrics,
            checks={"models": models.check, "database": database_check(engine), "planner": pool.check},
            keyed_calls=IdempotentCalls(
                IdempotencyRepository(engine, settings.max_time_limit_ms / 1000 + _LEASE_SPARE_S)
            ),
            body_limits=BodyLimits(settings.max_body_bytes, settings.body_timeout_s),
            bodies=BodyAdmission(_BODIES_PER_THREAD * threads),
            threads=threads,
            stopping=stopping,
        )
        _decide_what_serves(models, catalog, decisions)
        _log_readiness(services.checks, settings.model_store)
        stack.enter_context(_followed_tables(engine, models, access, settings.promotion_poll_s))
        metrics.add(ReadinessCollector({**services.checks, "database": prompt.of(services.checks["database"])}))
        limit = settings.memory_limit_gib
        metrics.add(MemoryCollector(pool.pids, most_memory() if limit is None else int(limit * 2**30)))
        app = create_app(services)
        if traces:
            traces.watch_requests(app)
        yield app


def _log_readiness(checks: Mapping[str, Callable[[], Check]], model_store: str) -> None:
    for name, check in checks.items():
        found = check()
        level, message = (logging.INFO, "ready") if found.usable else (logging.WARNING, "not ready")
        store = {"model_store": model_store} if name == "models" else {}
        _log.log(level, message, extra={"fields": {"part": name, "state": found.state, **store}})


@contextlib.contextmanager
def _followed_tables(engine: Engine, models: ModelVersions, access: Access, poll_s: float) -> Iterator[None]:
    """What serves, and who may call, as the database says it at any time."""
    with (
        TableWatch(engine, "promotions", promotions.CHANNEL, promotions.standing_promotions, models.follow, poll_s),
        TableWatch(engine, "API keys", api_keys.CHANNEL, api_keys.keys, access.follow, poll_s),
    ):
        yield


@contextlib.contextmanager
def _traces() -> Iterator[tracing.Tracing | None]:
    """Spans of the database's statements and of what else is watched, where the environment asks for traces."""
    traces = tracing.start()
    if traces is None:
        yield None
        return
    traces.watch_database()
    try:
        yield traces
    finally:
        traces.end()


def _access(settings: Settings, keys: ApiKeyRepository, metrics: Metrics) -> Access:
    allowance = Allowance(settings.key_requests_per_minute, settings.key_burst)
    access = Access(keys, metrics, required=settings.require_keys, default=allowance)
    access.follow(keys.all())
    if access.locked_out:
        _log.warning("API keys are required and there is none: run `shardwright keys create NAME --scope admin`")
    return access


def _decide_what_serves(models: ModelVersions, catalog: ModelSource, promotions: PromotionStore) -> None:
    """What was promoted serves, and what serves without that is promoted: the same on all replicas from now on."""
    try:
        models.follow(promotions.standing())
        models.check()
        write_down(catalog, promotions, models.serving, "the service")
        # Another replica may have been faster.
        models.follow(promotions.standing())
    except StorageUnavailable as error:
        _log.warning("which versions were promoted is not known yet", extra={"fields": {"cause": error.detail}})


def work(
    settings: Settings,
    hardware: str,
    devices: Sequence[Device],
    bench: str = OPERATOR_BENCH,
    retrain_with: str = RETRAIN,
) -> None:
    """Supervises one worker a device until SIGTERM or SIGINT, then has them finish or give back their jobs.

    Args:
        settings: of the service.
        hardware: whose profiles they measure.
        devices: what they measure on.
        bench: ``module:callable`` that makes the bench, see ``MeasuringSpec``.
        retrain_with: ``module:callable`` that retrains, see ``Nightly``.

    Raises:
        NoDatabaseThere: see ``database``; no request would ever come to a database that this worker made.
        ShardwrightError: the database cannot be started, reached or migrated.
    """
    structured_logging.configure(settings.log_level)
    with stop_signals() as stop, database(settings, prompt=True) as engine:
        migrate.upgrade(engine)
        at_night = nightly(settings, engine, retrain_with)
        build_supervisor(settings, engine, hardware, devices, at_night, bench).run(stop.wanted)


def database_check(engine: Engine) -> Callable[[], Check]:
    """A readiness check of the database and its schema."""
    wanted, known = migrate.head(), migrate.known()

    def check() -> Check:
        try:
            revision = migrate.current(engine)
        except StorageUnavailable as error:
            _log.warning("the database is not reachable", extra={"fields": {"cause": error.detail}})
            return Check(False, "not reachable")
        except exc.SQLAlchemyError as error:
            _log.warning("the schema's revision cannot be read", extra={"fields": {"cause": str(error)}})
            return Check(False, "the schema's revision cannot be read")
        if revision is not None and revision not in known:
            # Another replica runs a newer version, whose schema serves this one too while they change places.
            return Check(True, "the schema is newer")
        return Check(True) if revision == wanted else Check(False, f"the schema is at {revision}, not at {wanted}")

    return check


def request_limits(settings: Settings) -> Limits:
    """What the requests of a service with these settings may ask."""
    return Limits(settings.default_time_limit_ms, settings.max_time_limit_ms, settings.max_tables)


def profile_terms(settings: Settings) -> ProfileTerms:
    """What callers of a service with these settings may have measured."""
    return ProfileTerms(settings.profile_quota, settings.profile_expires_days, settings.worker_alive_s)
