"""Two replicas and two supervisors on one database, each a process of its own."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine

from service.storage.promotions import PromotionRepository
from service.usecases.model_versions import promote
from tests.api.processes import wait_for
from tests.api.replicas import Replica, converge, two_replicas
from tests.api.small_store import HARDWARE, publish, question, small_store
from tests.api.support import kind, table
from tests.jobs.supervised import PATIENCE_S, all_is_right, begun, is_done, states, supervised, worker_pids

ASKED, NEW = 50, 20
NIGHT = {"launch_id": "night"}
# Planning takes all cores: heartbeats may be late, and must not have a table measured twice.
STALLED_S = "60"


def planned(replica: Replica, **changes: Any) -> httpx.Response:
    """The answer to a question about new tables, asked again while there is no room."""
    tables = [table(f"t{i}", num_embeddings=5_000 + i) for i in range(NEW)]
    while True:
        answer = replica.client.post("/plan", json=question(tables=tables, time_limit_ms=30_000, **changes))
        if answer.status_code != 503:
            return answer
        assert kind(answer) == "planner_busy"
        time.sleep(int(answer.headers["retry-after"]))


@pytest.mark.slow
def test_new_tables_are_measured_once_and_a_launch_keeps_its_plan_when_a_version_is_promoted(
    engine: Engine, database_url: str, tmp_path: Path
) -> None:
    models = small_store(str(tmp_path / "models"))
    with (
        two_replicas(database_url, tmp_path / "models") as replicas,
        supervised(database_url, tmp_path, hardware=HARDWARE, SHARDWRIGHT_WORKER_STALLED_S=STALLED_S) as supervisor,
        supervised(database_url, tmp_path, hardware=HARDWARE, SHARDWRIGHT_WORKER_STALLED_S=STALLED_S),
        ThreadPoolExecutor(ASKED) as threads,
    ):
        wait_for(lambda: len(worker_pids(engine)) == 2, PATIENCE_S)
        asked = [
            threads.submit(planned, replicas[i // 2 % 2], **(NIGHT if i % 2 else {"seed": i + 1})) for i in range(ASKED)
        ]
        answers = [each.result() for each in asked]
        assert {answer.status_code for answer in answers} == {200}
        (launched,) = {answer.text for answer in answers[1::2]}
        wait_for(lambda: is_done(engine), PATIENCE_S)
        assert states(engine) == {"measured": NEW}
        assert len(begun(supervisor.notes)) == NEW

        version = publish(models, 1)
        promote(models, PromotionRepository(engine), version, "a test", "")
        converge(replicas, version)
        assert {planned(replica, **NIGHT).text for replica in replicas} == {launched}
        assert planned(replicas[0], launch_id="next night").json()["models"]["compute"] == str(version)
    all_is_right(engine)
