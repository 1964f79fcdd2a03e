"""SIGTERM under load: what was accepted is answered, readiness ends first, and the process ends in time."""

import asyncio
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import uvicorn
from sqlalchemy import Engine, text
from starlette.types import Message, Receive, Scope, Send

from service.api.problems import UnexpectedErrors
from service.process import Server
from service.registry.store import ModelStore
from service.storage.migrate import LOCK_KEY
from service.storage.promotions import PromotionRepository
from service.usecases.model_versions import promote
from service.wiring import running_app
from tests.api.processes import planning_processes, wait_for
from tests.api.replicas import Replica
from tests.api.small_store import priced, publish, question, small_store
from tests.api.support import FACTORY, GIB, kind, request, settings, table

_PATIENCE_S = 60
_RATE = 50


@pytest.fixture
def models(tmp_path: Path) -> ModelStore:
    return small_store(str(tmp_path / "models"))


class Load:
    """Requests at a steady rate, each on a connection of its own, and what came of each that began before the stop."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._over = threading.Event()
        self.stopped = threading.Event()
        self.answers: list[httpx.Response] = []
        self.lost: list[str] = []

    def _ask(self, number: int) -> None:
        began_before = not self.stopped.is_set()
        try:
            if number % 10:
                body = priced(tables=[table("t0"), table("t1", num_embeddings=1_000 + number)])
                self.answers.append(self._replica.client.post("/estimate", json=body))
            else:
                self.answers.append(self._replica.client.post("/plan", json=question(seed=number)))
        except httpx.TransportError as error:
            if began_before:
                self.lost.append(repr(error))

    def _send(self, pool: ThreadPoolExecutor) -> None:
        number = 0
        while not self._over.wait(1 / _RATE):
            number += 1
            pool.submit(self._ask, number)

    @contextmanager
    def running(self) -> Iterator[None]:
        with ThreadPoolExecutor(32) as pool:
            sender = threading.Thread(target=self._send, args=(pool,))
            sender.start()
            try:
                yield
            finally:
                self._over.set()
                sender.join()


def _refuse_lost(load: Load, engine: Engine) -> None:
    assert load.lost == []
    plans = [answer.json() for answer in load.answers if answer.status_code == 200 and "plan_id" in answer.json()]
    assert {answer.status_code for answer in load.answers} == {200}
    assert len(load.answers) > _RATE
    assert len(plans) >= 4
    with engine.connect() as connection:
        kept = set(connection.scalars(text("SELECT plan_id FROM plans")))
    assert {plan["plan_id"] for plan in plans if plan["saved"]} <= kept


def test_readiness_ends_before_the_connections_do(database_url: str) -> None:
    with running_app(settings(database_url), FACTORY) as app, socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        config = uvicorn.Config(app, log_config=None, access_log=False)
        server = Server(config, app.state.services.stopping, 1.0)
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        with httpx.Client(base_url=f"http://127.0.0.1:{listener.getsockname()[1]}", trust_env=False) as client:
            assert client.get("/readyz").status_code == 200
            server.handle_exit(signal.SIGTERM, None)
            ready = client.get("/readyz")
            assert (ready.status_code, ready.json()["checks"]["process"]) == (503, "stopping")
            assert client.post("/plan", json=request()).status_code == 200
        thread.join(10)
        assert not thread.is_alive()


def test_a_second_ctrl_c_ends_the_wait_and_drops_nothing() -> None:
    server = Server(uvicorn.Config(running_app), threading.Event(), 0.2)
    server.handle_exit(signal.SIGINT, None)
    assert not server.should_exit
    server.handle_exit(signal.SIGINT, None)
    assert server.should_exit
    time.sleep(0.4)
    assert not server.force_exit


def test_a_plan_that_outlasts_the_stop_is_told_to_be_asked_again(database_url: str) -> None:
    # Its process would not end by itself for a while.
    stuck = request(devices={"count": 2, "memory_bytes": GIB, "hardware": "stuck"}, time_limit_ms=20_000)
    with running_app(settings(database_url), FACTORY) as app, socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        config = uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=1)
        server = Server(config, app.state.services.stopping, 0.0)
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with ThreadPoolExecutor(1) as pool, httpx.Client(base_url=url, timeout=30, trust_env=False) as client:
            answer = pool.submit(client.post, "/plan", json=stuck)
            with httpx.Client(base_url=url, trust_env=False) as scraper:
                wait_for(lambda: "shardwright_planner_running 1.0" in scraper.get("/metrics").text)
            server.handle_exit(signal.SIGTERM, None)
            refused = answer.result()
        assert (refused.status_code, kind(refused)) == (503, "planner_busy")
        assert int(refused.headers["retry-after"]) >= 1
        thread.join(10)
        assert not thread.is_alive()


def test_an_answer_that_has_begun_is_not_begun_again_by_the_stop() -> None:
    begun = {"type": "http.response.start", "status": 200, "headers": []}
    sent: list[Message] = []

    async def cancelled(_: Scope, __: Receive, send: Send) -> None:
        await send(begun)
        raise asyncio.CancelledError

    async def receive() -> Message:
        raise AssertionError

    async def note(message: Message) -> None:
        sent.append(message)

    async def answered() -> None:
        with pytest.raises(asyncio.CancelledError):
            await UnexpectedErrors(cancelled)({"type": "http"}, receive, note)

    asyncio.run(answered())
    assert sent == [begun]


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 2])
def test_nothing_that_was_accepted_is_lost(
    engine: Engine, database_url: str, models: ModelStore, tmp_path: Path, times: int
) -> None:
    replica = Replica(database_url, tmp_path / "models", tmp_path / "replica.log", SHARDWRIGHT_DRAIN_S="1.5")
    wait_for(replica.answers, _PATIENCE_S)
    planning, load = planning_processes(replica.process.pid), Load(replica)
    with load.running():
        wait_for(lambda: len(load.answers) > 2 * _RATE, _PATIENCE_S)
        # In the middle of a change of versions.
        promote(models, PromotionRepository(engine), publish(models, 1), "a test", "")
        replica.process.send_signal(signal.SIGTERM)
        wait_for(lambda: replica.client.get("/readyz").status_code == 503, 1.4)
        assert replica.client.get("/readyz").json()["checks"]["process"] == "stopping"
        assert replica.client.get("/healthz").status_code == 200
        # Whoever follows readiness sends nothing more; connections are closed a while after that.
        load.stopped.set()
        for _ in range(times - 1):
            replica.process.send_signal(signal.SIGTERM)
        assert replica.process.wait(_PATIENCE_S) == 0
    _refuse_lost(load, engine)
    assert not any(Path(f"/proc/{pid}").exists() for pid in planning)
    assert "Traceback" not in (tmp_path / "replica.log").read_text()
    replica.end()


@pytest.mark.slow
def test_a_stop_while_another_migrates_is_a_stop(
    empty_engine: Engine, empty_database_url: str, models: ModelStore, tmp_path: Path
) -> None:
    log = tmp_path / "replica.log"
    with empty_engine.connect() as connection, connection.begin():
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": LOCK_KEY})
        replica = Replica(empty_database_url, tmp_path / "models", log)
        wait_for(lambda: len(planning_processes(replica.process.pid)) == 2, _PATIENCE_S)
        time.sleep(1.0)
        replica.process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
    # It migrates, as it began to, and then stops rather than serves.
    assert replica.process.wait(_PATIENCE_S) == 0, log.read_text()
    assert '"message": "serving"' not in log.read_text()
    assert "Traceback" not in log.read_text()
    replica.end()
