"""Ranks that go on asking while another version is promoted: one launch, one plan, one set of versions."""

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
from sqlalchemy import Engine

from service.storage.plans import PlanRepository
from service.storage.promotions import PromotionRepository
from service.usecases.model_versions import Old, promote, prune
from tests.api.replicas import converge, two_replicas
from tests.api.small_store import publish, question, small_store

RANKS = 16


def test_sixteen_ranks_at_two_replicas_keep_one_plan_while_versions_are_promoted(
    engine: Engine, database_url: str, tmp_path: Path
) -> None:
    models, promotions = small_store(str(tmp_path / "models")), PromotionRepository(engine)
    asked, over = question(launch_id="night"), threading.Event()

    with two_replicas(database_url, tmp_path / "models") as replicas:

        def rank(number: int) -> list[httpx.Response]:
            """What it is answered, the last time after the promotions."""
            answers, turns = [], itertools.count(number)
            while True:
                last = over.is_set()
                answers.append(replicas[next(turns) % 2].client.post("/plan", json=asked))
                if last:
                    return answers
                over.wait(0.05)

        # One rank is first, so that what the launch is answered is of the version before all promotions.
        replicas[0].client.post("/plan", json=asked)
        with ThreadPoolExecutor(RANKS) as threads:
            ranks = [threads.submit(rank, number) for number in range(RANKS)]
            try:
                for seed in (1, 2):
                    version = publish(models, seed)
                    promote(models, promotions, version, "a test", "")
                    converge(replicas, version)
            finally:
                over.set()
            answers = [answer for each in ranks for answer in each.result()]
        first, fresh = answers[0].json(), replicas[0].client.post("/plan", json=question(launch_id="next night")).json()
        assert replicas[1].client.post("/plan", json=question()).json() == fresh
        assert replicas[1].client.get(f"/plans/{first['plan_id']}").json() == first

    assert {answer.status_code for answer in answers} == {200}
    assert {answer.text for answer in answers} == {answers[0].text}
    assert first["models"]["compute"] == "cpu-x/compute/1"
    assert fresh["models"]["compute"] == str(version) == "cpu-x/compute/3"
    assert fresh["plan_id"] != first["plan_id"]
    assert fresh["max_cost_ms"] != first["max_cost_ms"]

    named = PlanRepository(engine).models_named(0)
    assert prune(models, promotions, named, keep=1, dry_run=True) == [
        Old("cpu-x/compute/1", "named by a stored plan"),
        Old("cpu-x/compute/2", "a rollback would bring it back"),
    ]
