"""Composition root of the service and of the commands that work on its database."""

import contextlib
import gc
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from importlib.metadata import version
from types import FrameType

import uvicorn
from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from sqlalchemy import Engine, exc

from service.api.app import DISTRIBUTION, create_app
from service.api.body import BodyAdmission, BodyLimits
from service.api.http_server import DrainingServer, ImpatientProtocol
from service.api.model_resources import ModelResources
from service.api.model_versions import ModelVersions
from service.api.observing import Observing
from service.api.outages import OutageMemory, RememberingLaunches
from service.api.parsing import Limits
from service.api.planner_pool import PlannerPool
from service.api.planner_worker import SourceSpec
from service.api.planning import Planning
from service.api.profiling import NovelTables, ProfileDesk
from service.api.readiness import Check
from service.api.routes import Services
from service.domain.errors import ShardwrightError, StorageUnavailable
from service.domain.profiles import ProfileTerms
from service.domain.retention import Kept, Retention
from service.domain.trainings import Outcome
from service.domain.version_ports import ModelSource, PromotionStore
from service.jobs.measuring import OPERATOR_BENCH, Device
from service.registry.trained_benches import trained_benches
from service.settings import Settings
from service.storage import migrate
from service.storage.embedded import EmbeddedPostgres
from service.storage.engine import build_engine
from service.storage.launches import LaunchRepository
from service.storage.observations import ObservationRepository
from service.storage.plans import PlanRepository
from service.storage.profiles import ProfileRepository
from service.storage.promotion_watch import PromotionWatch
from service.storage.promotions import PromotionRepository
from service.storage.retention import RetentionRepository
from service.storage.trainings import TrainingRepository
from service.storage.workers import WorkerRepository
from service.supervision import build_supervisor, supervised
from service.telemetry import logging as structured_logging
from service.telemetry.metrics import Metrics
from service.telemetry.queue_metrics import QueueCollector
from service.telemetry.training_metrics import TrainingCollector
from service.usecases import retention
from service.usecases.model_versions import write_down

MODEL_STORE = "service.registry.store:ModelStore"

_BACKLOG = 2_048
_BODIES_PER_THREAD = 4

_EMBEDDED_CHECK_S = 5.0

_log = logging.getLogger(__name__)


class AddressInUse(ShardwrightError):
    """The address to listen on cannot be had."""

    kind = "address_in_use"


class NoDatabaseThere(ShardwrightError):
    """The folder of the embedded database holds none, and the command is not one that begins with an empty one."""

    kind = "no_database_there"


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
    with _stop_signals() as stop, _listening(settings) as listener, running_app(settings, factory, worker) as app:
        host, port = listener.getsockname()[:2]
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            http=ImpatientProtocol,
            timeout_graceful_shutdown=settings.shutdown_timeout_s,
        )
        stop.server = DrainingServer(config, settings.drain_s, app.state.services.stopping)
        # What is loaded now stays: a full collection, which holds up all requests, need not look through it.
        gc.collect()
        gc.freeze()
        if not stop.made:
            _log.info("serving", extra={"fields": {"host": host, "port": port}})
            stop.server.run([listener])


@contextlib.contextmanager
def running_app(settings: Settings, factory: str = MODEL_STORE, worker: str | None = None) -> Iterator[FastAPI]:
    """The application with everything that it needs running: database, schema, planning processes, a worker if wanted.

    Raises:
        ShardwrightError: the database cannot be started, reached or migrated.
    """
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
        engine = stack.enter_context(database(settings, create=True))
        stack.enter_context(pool)
        migrate.upgrade(engine)
        metrics.add(QueueCollector(WorkerRepository(engine, settings.worker_stalled_s).queue_state))
        plans, promotions = OutageMemory(PlanRepository(engine)), PromotionRepository(engine)
        trainings = TrainingRepository(engine)
        metrics.add(TrainingCollector(trainings.last_of_each))
        profiles, terms = ProfileRepository(engine), profile_terms(settings)
        novel = stack.enter_context(NovelTables(profiles, terms, settings.profile_novelty, metrics))
        if worker is not None:
            stack.enter_context(supervised(build_supervisor(settings, engine, worker, [Device("cpu")])))
        planning = Planning(
            models=models,
            planner=pool,
            plans=plans,
            launches=RememberingLaunches(LaunchRepository(engine), plans),
            limits=request_limits(settings),
            metrics=metrics,
            novel=novel,
        )
        threads = settings.planner_processes + settings.planner_queue
        services = Services(
            planning=planning,
            models=ModelResources(models, catalog, promotions, trainings, settings.admin_calls),
            observing=Observing(planning.find, ObservationRepository(engine), metrics),
            profiles=ProfileDesk(profiles, terms, request_limits(settings)),
            metrics=metrics,
            checks={"models": models.check, "database": database_check(engine), "planner": pool.check},
            body_limits=BodyLimits(settings.max_body_bytes, settings.body_timeout_s),
            bodies=BodyAdmission(_BODIES_PER_THREAD * threads),
            threads=threads,
        )
        _decide_what_serves(models, catalog, promotions)
        for name, check in services.checks.items():
            found = check()
            level, message = (logging.INFO, "ready") if found.usable else (logging.WARNING, "not ready")
            store = {"model_store": settings.model_store} if name == "models" else {}
            _log.log(level, message, extra={"fields": {"part": name, "state": found.state, **store}})
        stack.enter_context(PromotionWatch(engine, models.follow, settings.promotion_poll_s))
        yield create_app(services)


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


def work(settings: Settings, hardware: str, devices: Sequence[Device], bench: str = OPERATOR_BENCH) -> None:
    """Supervises one worker a device until SIGTERM or SIGINT, then has them finish or give back their jobs.

    Args:
        settings: of the service.
        hardware: whose profiles they measure.
        devices: what they measure on.
        bench: ``module:callable`` that makes the bench, see ``MeasuringSpec``.

    Raises:
        NoDatabaseThere: see ``database``; no request would ever come to a database that this worker made.
        ShardwrightError: the database cannot be started, reached or migrated.
    """
    structured_logging.configure(settings.log_level)
    with _stop_signals() as stop, database(settings) as engine:
        migrate.upgrade(engine)
        build_supervisor(settings, engine, hardware, devices, bench).run(stop.wanted)


@contextlib.contextmanager
def database(settings: Settings, create: bool = False) -> Iterator[Engine]:
    """An engine on the database of the settings, the embedded one started where they name none.

    Args:
        settings: of the service.
        create: whether an embedded one may be made where there is none.

    Raises:
        NoDatabaseThere: there is no embedded one yet, and none may be made.
        ShardwrightError: the embedded one does not start, or the URL is malformed.
    """
    with contextlib.ExitStack() as stack:
        server = EmbeddedPostgres(settings.data_dir)
        if not (settings.database_url or create or server.exists):
            raise NoDatabaseThere(
                f"there is no database in {settings.data_dir.absolute()}: give the folder that `shardwright serve` or "
                "`shardwright profile` had as --data-dir, or set DATABASE_URL; `shardwright db upgrade` makes a new one"
            )
        url = settings.database_url or stack.enter_context(_embedded(server))
        engine = build_engine(url)
        stack.callback(engine.dispose)
        yield engine


@contextlib.contextmanager
def _embedded(server: EmbeddedPostgres) -> Iterator[str]:
    """The URL of the embedded server, which is started again if it is killed meanwhile."""
    with server as url:
        over = threading.Event()

        def watch() -> None:
            while not over.wait(_EMBEDDED_CHECK_S):
                try:
                    server.start()
                except ShardwrightError as error:
                    _log.error("the embedded database does not start", extra={"fields": {"cause": error.detail}})

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield url
        finally:
            over.set()
            watcher.join()


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


def prune(settings: Settings, engine: Engine, dry_run: bool = False) -> dict[Kept, int]:
    """Deletes what the settings keep no longer, or says what that would be; see ``usecases.retention``.

    Raises:
        StorageUnavailable: the database cannot be reached.
        DamagedArtifact: a version in the model store does not say what it was trained on; nothing was deleted.
    """
    keep = Retention(
        plans=timedelta(days=settings.keep_plans_days),
        observations=timedelta(days=settings.keep_observations_days),
        measurements=timedelta(days=settings.keep_measurements_days),
    )
    return retention.prune(
        RetentionRepository(engine), keep, lambda: trained_benches(settings.model_store), dry_run=dry_run
    )


def retrain(
    settings: Settings,
    engine: Engine,
    hardware: str,
    models: Sequence[str] | None = None,
    report: Callable[[Outcome], None] = lambda outcome: None,
) -> list[Outcome]:
    """Retrains models of a hardware, all without a name, and promotes what is better; see ``usecases.retrain``.

    Raises:
        RetrainingUnderWay: another process does.
        UnknownHardware: there is neither a model nor a measurement of it.
        StorageUnavailable: the database cannot be reached.
    """
    # Not above: whoever serves needs no torch.
    import torch

    from service.profiling.pools import generated_pool
    from service.registry.store import ModelStore
    from service.storage.measurements import MeasurementRepository
    from service.usecases.retrain import retrain as retrain_models
    from service.usecases.retraining_works import MODELS, Recipes, Retraining

    # The networks are small: more threads would wait for each other, and keep others from the cores.
    torch.set_num_threads(1)
    job = Retraining(
        hardware=hardware,
        measurements=MeasurementRepository(engine),
        observations=ObservationRepository(engine),
        models=ModelStore(settings.model_store),
        promotions=PromotionRepository(engine),
        trainings=TrainingRepository(engine),
        recipes=Recipes(generated_pool()),
        margin=settings.nightly_margin,
    )
    return retrain_models(job, models or MODELS, report)


def request_limits(settings: Settings) -> Limits:
    """What the requests of a service with these settings may ask."""
    return Limits(settings.default_time_limit_ms, settings.max_time_limit_ms, settings.max_tables)


def profile_terms(settings: Settings) -> ProfileTerms:
    """What callers of a service with these settings may have measured."""
    return ProfileTerms(settings.profile_quota, settings.profile_expires_days, settings.worker_alive_s)


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
        self.wanted = threading.Event()
        self.server: uvicorn.Server | None = None

    @property
    def made(self) -> bool:
        return self.wanted.is_set()

    def __call__(self, _: int, __: FrameType | None) -> None:
        self.wanted.set()
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
