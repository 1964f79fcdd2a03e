"""Versions change under load, on two replicas: nothing fails, nothing is mixed, and memory does not grow."""

import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine, text

from service.api.conversion import given_shards, posed_problem
from service.api.schemas import PlanRequest, ShardsEstimateRequest
from service.domain.plan import Shard
from service.domain.ports import CostModels
from service.domain.versions import Version
from service.registry.store import ModelStore
from service.storage.promotions import PromotionRepository
from service.storage.table_watch import application_name
from service.usecases.estimate import estimate
from service.usecases.model_versions import promote, rollback
from tests.api.processes import wait_for
from tests.api.replicas import CONVERGED_S, Replica, converge, two_replicas
from tests.api.small_store import COMPUTE_MODEL, HARDWARE, priced, publish, question, small_store
from tests.cost_models.small_model import COMMUNICATION_FACTS, exchange_weights

PADDING = 2**20
"""Bytes that each version's file has; a loaded one holds twice as many."""


@dataclass
class Load:
    """Asks replicas without a pause, and notes what they answer.

    Attributes:
        replicas: to be asked in turn.
        answers: request, path and response of each.
    """

    replicas: list[Replica]
    answers: list[tuple[dict[str, Any], str, httpx.Response]] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)

    def _ask(self, first: int) -> None:
        number = first
        while not self._over.is_set():
            replica = self.replicas[number % len(self.replicas)]
            if number % 3:
                path, body = "/estimate", priced(optimizer=("sgd", "adagrad")[number % 2])
            else:
                path, body = "/plan", question(algorithm="size_greedy", seed=number)
            self.answers.append((body, path, replica.client.post(path, json=body)))
            number += 7
            time.sleep(0.02)

    @contextmanager
    def running(self, threads: int) -> Iterator[None]:
        with ThreadPoolExecutor(threads) as pool:
            asking = [pool.submit(self._ask, first) for first in range(threads)]
            try:
                yield
            finally:
                self._over.set()
            for asked in asking:
                asked.result()


@pytest.fixture
def models(tmp_path: Path) -> ModelStore:
    return small_store(str(tmp_path / "models"))


@pytest.fixture
def replicas(database_url: str, models: ModelStore, tmp_path: Path) -> Iterator[list[Replica]]:
    with two_replicas(database_url, tmp_path / "models") as started:
        yield started


def _cut_what_listens(engine: Engine) -> None:
    query = (
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name = :name"
    )
    with engine.connect() as connection:
        assert list(connection.scalars(text(query), {"name": application_name("promotions")})) == [True, True]


def _refuse_mixed(models: ModelStore, answers: list[tuple[dict[str, Any], str, httpx.Response]]) -> None:
    """Every answer's cost is what the versions that it names cost, and no others."""

    @cache
    def loaded(compute: str, communication: str) -> CostModels:
        return models.cost_models(HARDWARE, {"compute": compute, "communication": communication})

    @cache
    def estimated(optimizer: str, compute: str, communication: str) -> float:
        request = ShardsEstimateRequest.model_validate(priced(optimizer=optimizer))
        return estimate(posed_problem(request), loaded(compute, communication), given_shards(request)).max_cost_ms

    for body, path, response in answers:
        assert response.status_code == 200, response.text
        answer: Mapping[str, Any] = response.json()
        names = (answer["models"]["compute"], answer["models"]["communication"])
        if path == "/estimate":
            wanted = estimated(body["optimizer"], *names)
        else:
            problem = posed_problem(PlanRequest.model_validate(body))
            shards = [Shard(s["table"], s["columns"][0], s["columns"][1], s["device"]) for s in answer["shards"]]
            wanted = estimate(problem, loaded(*names), shards).max_cost_ms
        assert answer["max_cost_ms"] == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize("published", [6, pytest.param(50, marks=pytest.mark.slow)])
def test_versions_a_broken_one_and_rollbacks_under_load(
    engine: Engine, models: ModelStore, replicas: list[Replica], tmp_path: Path, published: int
) -> None:
    promotions, load = PromotionRepository(engine), Load(replicas)
    memory: list[list[list[int]]] = []
    with load.running(threads=3):
        for number in range(1, published + 1):
            if number % 5 == 0:
                exchanges = models.write(HARDWARE, "communication", exchange_weights(number), COMMUNICATION_FACTS)
                promote(models, promotions, exchanges, "a test", "")
            version = publish(models, number, PADDING)
            if number % 20 == 4:
                _cut_what_listens(engine)
            promote(models, promotions, version, "a test", "")
            converge(replicas, version)
            if number in (published - 12, published):
                memory.append([replica.memory() for replica in replicas])

        broken = publish(models, published + 1)
        (tmp_path / "models" / HARDWARE / "compute" / str(broken.number) / "weights.safetensors").write_bytes(b"")
        with promotions.changing() as change:
            change.add(broken, "another machine, where it is sound", "")
        failures = f'shardwright_model_load_failures_total{{hardware="{HARDWARE}",kind="compute"}}'
        wait_for(lambda: all(replica.metric(failures) >= 2 for replica in replicas), 2 * CONVERGED_S)
        assert all(replica.serves(version) for replica in replicas)

        for wanted in (version.number, version.number - 1, version.number - 2):
            assert rollback(models, promotions, COMPUTE_MODEL, "a test", "").number == wanted
            converge(replicas, Version(*COMPUTE_MODEL, wanted))

    _refuse_mixed(models, load.answers)
    named = {response.json()["models"]["compute"] for _, _, response in load.answers}
    assert str(broken) not in named
    assert len(named) > published / 2
    followed = f'shardwright_promotions_followed_total{{hardware="{HARDWARE}",kind="compute"}}'
    assert all(replica.metric(followed) == published + 2 for replica in replicas)
    # Were all twelve kept that came between, each planning process would have grown by 24 MiB.
    for before, after in pairwise(memory):
        for earlier, later in zip(before, after, strict=True):
            assert len(earlier) == len(later) == 3
            assert all(new - old < 8 * 2**20 for old, new in zip(earlier, later, strict=True)), memory
