"""POST /plan with every algorithm on the shipped models, from one table on two devices to 500 on 64."""

from collections.abc import Iterator

import httpx
import numpy as np
import pytest
from sqlalchemy import URL

from service.domain.plan import LEARNED, Algorithm
from service.profiling.pools import generated_pool
from service.settings import Settings
from service.wiring import running_app
from tests.api.support import listening
from tests.conftest import Databases

GIB = 1 << 30


@pytest.fixture(scope="module")
def client(databases: Databases, migrated_template: URL) -> Iterator[httpx.Client]:
    url = databases.create(migrated_template)
    settings = Settings(database_url=url.render_as_string(hide_password=False), planner_processes=1, planner_queue=4)
    with running_app(settings) as app, listening(app) as served:
        yield served
    databases.drop(url)


def _request(tables: int, devices: int, algorithm: Algorithm) -> dict[str, object]:
    generator = np.random.default_rng(tables)
    return {
        "tables": [
            {
                "name": table.name,
                "num_embeddings": table.num_embeddings,
                "embedding_dim": int(generator.choice([8, 16, 32, 64, 128])),
                "pooling_factor": table.pooling_factor,
            }
            for table in generated_pool(tables)
        ],
        "devices": {"count": devices, "memory_bytes": 64 * GIB, "hardware": "cpu-fbgemm"},
        "global_batch_size": 8_192,
        "optimizer": "sgd",
        "algorithm": algorithm.value,
        # A placement by a policy takes half a second: one that a busy machine has time for within the default is none.
        "time_limit_ms": 4_000 if algorithm in LEARNED else 2_000,
    }


@pytest.mark.parametrize(("tables", "devices"), [(1, 2), (40, 8), (500, 64)])
@pytest.mark.parametrize("algorithm", list(Algorithm))
def test_every_algorithm_plans(client: httpx.Client, algorithm: Algorithm, tables: int, devices: int) -> None:
    asked = _request(tables, devices, algorithm)
    response = client.post("/plan", json=asked)
    assert response.status_code == 200, response.text
    plan = response.json()
    assert not [said for said in plan["assumptions"] if "found no placement" in said]
    assert (algorithm.value in plan["models"]) == (algorithm in LEARNED)
    widths = {table["name"]: table["embedding_dim"] for table in asked["tables"]}  # type: ignore[attr-defined]
    held = dict.fromkeys(widths, 0)
    for shard in plan["shards"]:
        held[shard["table"]] += shard["columns"][1] - shard["columns"][0]
    assert held == widths
    assert all(d["memory_bytes"]["total"] <= d["memory_limit_bytes"] for d in plan["devices"])
    assert plan["lower_bound_ms"] <= plan["max_cost_ms"]
