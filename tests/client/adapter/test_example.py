"""The example trains on the service's plan and reports what it measured, and trains on TorchRec's plan too."""

import json
import os
import runpy
import subprocess
import sys
from typing import Any

import pytest
from sqlalchemy import Engine, text

from tests.client.adapter.conftest import NOWHERE
from tests.client.conftest import ROOT, RealService

pytestmark = pytest.mark.slow

STEPS = 20


def _run(ranks: int, *options: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(ranks), "examples/train_dlrm.py", "--steps", str(STEPS), "--max-rows", "1000"]
    paths = os.pathsep.join((str(ROOT), str(ROOT / "client")))
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, *options], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


@pytest.mark.parametrize("ranks", [2, 4])
def test_it_trains_on_the_services_plan(ranks: int, real_service: RealService, service_engine: Engine) -> None:
    planned, trained = _run(ranks, "--url", real_service.url, "--hardware", "fake")
    assert planned["planner"] == "shardwright"
    assert trained["last_loss"] < trained["first_loss"]
    with service_engine.connect() as connection:
        query = text("SELECT rank FROM observations WHERE plan_id = :plan ORDER BY rank")
        assert connection.execute(query, {"plan": planned["plan_id"]}).scalars().all() == list(range(ranks))


def test_it_trains_on_torchrecs_plan() -> None:
    planned, trained = _run(2, "--planner", "torchrec")
    assert (planned["planner"], planned["plan_id"]) == ("torchrec", None)
    assert trained["last_loss"] < trained["first_loss"]


def test_a_single_step_where_no_service_is() -> None:
    planned, trained = _run(1, "--fallback", "--url", NOWHERE, "--timeout", "0.1", "--steps", "1")
    assert (planned["planner"], planned["plan_id"]) == ("torchrec", None)
    assert (trained["steps"], trained["first_loss"]) == (1, trained["last_loss"])


def test_a_table_that_few_samples_look_up_is_drawn_too() -> None:
    example = runpy.run_path(str(ROOT / "examples" / "train_dlrm.py"))
    tables = [{"name": "rare", "num_embeddings": 9, "pooling_factor": 0.3}]
    assert next(example["_batches"](tables, 4, 1)).sparse.lengths().tolist() == [1] * 4
