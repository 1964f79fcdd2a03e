"""What is looked at once a scrape: processes and the queue."""

import os
import subprocess
import sys

import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import Engine

from service.api.readiness import Check
from service.profiling.host import most_memory
from service.storage.workers import WorkerRepository
from service.telemetry.queue_metrics import QueueCollector
from service.telemetry.state_metrics import MemoryCollector, ReadinessCollector
from tests.storage.live_worker import live_worker


def test_memory_is_that_of_the_processes_that_live() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    registry = CollectorRegistry()
    registry.register(MemoryCollector(lambda: [os.getpid(), ended.pid], most_memory()))
    resident = registry.get_sample_value("shardwright_planner_resident_memory_bytes")
    limit = registry.get_sample_value("shardwright_memory_limit_bytes")
    assert registry.get_sample_value("shardwright_planner_processes") == 1
    assert resident is not None
    assert limit is not None
    assert 10 * 2**20 < resident < limit


def test_the_limit_of_memory_is_the_one_that_is_set() -> None:
    registry = CollectorRegistry()
    registry.register(MemoryCollector(list, 2**30))
    assert registry.get_sample_value("shardwright_memory_limit_bytes") == 2**30
    assert registry.get_sample_value("shardwright_planner_resident_memory_bytes") == 0


def test_the_last_heartbeat_of_a_hardware_is_that_of_its_freshest_worker(engine: Engine) -> None:
    live_worker(engine, "made-up", age_s=500)
    live_worker(engine, "made-up", age_s=100)
    registry = CollectorRegistry()
    registry.register(QueueCollector(WorkerRepository(engine, 30).queue_state))
    age = registry.get_sample_value("shardwright_worker_heartbeat_age_seconds", {"hardware": "made-up"})
    assert age == pytest.approx(100, abs=30)
    assert registry.get_sample_value("shardwright_workers_live", {"hardware": "made-up"}) == 0


def test_a_part_that_cannot_be_looked_at_is_not_ready() -> None:
    def fails() -> Check:
        raise TimeoutError

    registry = CollectorRegistry()
    registry.register(ReadinessCollector({"models": lambda: Check(True), "planner": lambda: Check(False), "db": fails}))
    ready = {
        part: registry.get_sample_value("shardwright_ready", {"part": part}) for part in ("models", "planner", "db")
    }
    assert ready == {"models": 1, "planner": 0, "db": 0}
