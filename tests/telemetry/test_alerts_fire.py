"""Every alert fires when its cause happens, in a real Prometheus that scrapes real services, and none did before."""

import os
import resource
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine, text

from service.domain.trainings import Ended, Outcome
from service.domain.versions import Version
from service.storage.embedded import EmbeddedPostgres
from service.storage.engine import build_engine
from service.storage.profiles import ProfileRepository
from service.storage.promotions import PromotionRepository
from service.storage.trainings import TrainingRepository
from tests.api.processes import kill, planning_processes, wait_for
from tests.api.support import GIB, request
from tests.jobs.supervised import TERMS, profile
from tests.storage.live_worker import live_worker
from tests.telemetry.prometheus import Prometheus, prometheus
from tests.telemetry.rules import alert_rules, needs_prometheus
from tests.telemetry.served import Served, serving

PATIENCE_S = 90.0
OF_ALL_HARDWARE = "broken fake slow stuck"

_seeds = count(1)


@dataclass
class Watch:
    """Sees alerts fire, one cause after the other."""

    prometheus: Prometheus
    fired: set[str] = field(default_factory=set)

    def quiet(self) -> None:
        """Fails where an alert fires though nothing has happened yet."""
        scrapes = 'min(count_over_time(up{job="shardwright"}[1m]))'
        wait_for(lambda: (self.prometheus.value(scrapes) or 0) >= 5, PATIENCE_S)
        assert self.prometheus.value("count(shardwright_ready == 1)") == 6
        assert self.prometheus.firing() == set()

    def fires(self, alert: str, cause: Callable[[], object]) -> None:
        """Fails where an alert does not begin to fire while its cause happens again and again."""
        name, deadline = f"Shardwright{alert}", time.monotonic() + PATIENCE_S
        assert name not in self.prometheus.firing()
        while name not in self.prometheus.firing():
            assert time.monotonic() < deadline, f"{name} does not fire, {self.prometheus.firing()} do"
            cause()
            time.sleep(0.5)
        self.fired.add(name)

    def ends(self, alert: str) -> None:
        """Fails where an alert goes on firing."""
        wait_for(lambda: f"Shardwright{alert}" not in self.prometheus.firing(), PATIENCE_S)


def _ask(served: Served, hardware: str, **changes: Any) -> httpx.Response:
    devices = {"count": 2, "memory_bytes": GIB, "hardware": hardware}
    return served.client.post("/plan", json=request(devices=devices, seed=next(_seeds), **changes))


def _crowd(served: Served) -> None:
    with ThreadPoolExecutor(6) as threads:
        list(threads.map(lambda _: _ask(served, "slow"), range(6)))


def _kill_planner(served: Served) -> None:
    for pid in planning_processes(served.process.pid):
        with suppress(ProcessLookupError):
            kill(pid)


def _observe_twice_the_cost(served: Served, plan: dict[str, Any]) -> None:
    cost = plan["devices"][0]["cost_ms"]
    times = {f"{part}_ms": 2 * cost[part] for part in ("forward_compute", "backward_compute")}
    begins = [10 * next(_seeds) for _ in range(30)]
    observations = [{"rank": 0, "steps": [begin, begin + 5], **times} for begin in begins]
    posted = served.client.post(f"/plans/{plan['plan_id']}/observations", json={"observations": observations})
    assert posted.status_code == 201, posted.text


def _plant(engine: Engine, statement: str, **values: Any) -> None:
    with engine.begin() as connection:
        connection.execute(text(statement), values)


def _trained(engine: Engine, hardware: str, ended: Ended, days_ago: int) -> None:
    trainings = TrainingRepository(engine)
    at = trainings.now() - timedelta(days=days_ago)
    trainings.add(Outcome(hardware, "compute", ended, "as the test says", at, at))


def _nothing() -> None:
    """The cause has happened already."""


def _what_requests_do(watch: Watch, served: Served, store: Path, engine: Engine) -> None:
    watch.fires("PlannersDying", lambda: _kill_planner(served))
    watch.fires("SlowPlans", lambda: _ask(served, "stuck", time_limit_ms=200))
    watch.fires("HighErrorRate", lambda: _ask(served, "broken"))
    watch.fires("Shedding", lambda: _crowd(served))
    wait_for(lambda: _ask(served, "fake").status_code == 200, PATIENCE_S)
    plan = _ask(served, "fake").json()
    watch.fires("PredictionDrift", lambda: _observe_twice_the_cost(served, plan))
    (store / "latest").write_text("2")
    (store / "damaged").write_text("fake")
    with PromotionRepository(engine).changing() as promotions:
        promotions.add(Version("fake", "compute", 2), "a test", "")
    watch.fires("ModelLoadFailing", _nothing)
    (store / "damaged").unlink()


def _what_the_queue_does(watch: Watch, engine: Engine) -> None:
    live_worker(engine, "made-up")
    ProfileRepository(engine).queue_new([profile()], "a test", TERMS)
    watch.fires("ProfileQueueOld", lambda: _plant(engine, "UPDATE profiles SET queued_at = now() - interval '7 hours'"))
    watch.fires(
        "NoLiveWorker",
        lambda: _plant(engine, "UPDATE procrastinate_workers SET last_heartbeat = now() - interval '1h'"),
    )
    watch.fires("ProfilesStalled", lambda: _plant(engine, "DELETE FROM procrastinate_jobs"))
    parked = "UPDATE profiles SET state = 'parked', claim = NULL, finished_at = now() - make_interval(days => :days)"
    watch.fires("ProfilesParked", lambda: _plant(engine, parked, days=0))
    _plant(engine, parked, days=2)
    watch.ends("ProfilesParked")
    watch.fires("TrainingMissing", lambda: _plant(engine, "UPDATE profiles SET state = 'measured', rounds = 1"))
    for alert in ("ProfileQueueOld", "NoLiveWorker", "ProfilesStalled"):
        watch.ends(alert)
    watch.fires("TrainingFailed", lambda: _trained(engine, "failing", Ended.FAILED, 0))
    watch.fires("TrainingOverdue", lambda: _trained(engine, "forgotten", Ended.REFUSED, 3))


def _what_machines_do(watch: Watch, served: Served, data_dir: Path) -> None:
    note = data_dir / "postgres" / "postmaster.pid"
    os.kill(int(note.read_text().splitlines()[0]), signal.SIGKILL)
    watch.fires("EmbeddedDatabaseRestarted", _nothing)
    descriptors, hard = len(os.listdir(f"/proc/{served.process.pid}/fd")), resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.prlimit(served.process.pid, resource.RLIMIT_NOFILE, (descriptors + 4, hard))
    watch.fires("FileDescriptorsHigh", _nothing)
    served.process.kill()
    served.process.wait()
    watch.fires("Down", _nothing)


@pytest.fixture
def data_dir(server_folder: Path) -> Iterator[Path]:
    """Of the service with a database of its own, which a service that is killed leaves running."""
    folder = server_folder / "var"
    yield folder
    with EmbeddedPostgres(folder):
        pass


@pytest.mark.slow
@needs_prometheus
def test_every_alert_fires_when_its_cause_happens(server_folder: Path, data_dir: Path, tmp_path: Path) -> None:
    database, store = EmbeddedPostgres(server_folder / "theirs"), tmp_path / "store"
    store.mkdir()
    url = database.start()
    engine = build_engine(url)
    try:
        with (
            serving(
                tmp_path / "a.log", DATABASE_URL=url, SHARDWRIGHT_MODEL_STORE=str(store), SHARDWRIGHT_PLANNER_QUEUE="1"
            ) as served,
            serving(tmp_path / "b.log", SHARDWRIGHT_DATA_DIR=str(data_dir)) as other,
            prometheus(tmp_path, {"a": served.port, "b": other.port}) as scraping,
        ):
            assert _ask(served, "fake").status_code == 200
            watch = Watch(scraping)
            watch.quiet()
            _what_requests_do(watch, served, store, engine)
            _what_the_queue_does(watch, engine)
            watch.fires("DatabaseAway", database.stop)
            url = database.start()
            watch.ends("DatabaseAway")
            _what_machines_do(watch, other, data_dir)
            damaged = tmp_path / "damaged"
            damaged.mkdir()
            (damaged / "damaged").write_text(OF_ALL_HARDWARE)
            with serving(
                tmp_path / "c.log",
                other.port,
                SHARDWRIGHT_DATA_DIR=str(data_dir),
                SHARDWRIGHT_MODEL_STORE=str(damaged),
                SHARDWRIGHT_MEMORY_LIMIT_GIB="0.1",
            ):
                watch.fires("NotReady", _nothing)
                wait_for(lambda: "ShardwrightMemoryHigh" in scraping.firing(), PATIENCE_S)
                watch.fired.add("ShardwrightMemoryHigh")
                watch.ends("Down")
            assert watch.fired == {rule["alert"] for rule in alert_rules()}
    finally:
        engine.dispose()
        database.stop()
