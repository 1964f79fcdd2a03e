"""Series: as many as before, whatever is asked; and counters that are what happened, whatever dies meanwhile."""

import os
import random
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from string import ascii_letters

import httpx

from tests.api.processes import kill, planning_processes
from tests.api.support import GIB, request

ASKED = 60


def _exposition(client: httpx.Client) -> dict[str, float]:
    lines = client.get("/metrics").text.splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


def _hostile(client: httpx.Client, word: str) -> None:
    devices = {"count": 2, "memory_bytes": GIB, "hardware": word}
    client.get(f"/{word}")
    client.get(f"/plans/{word}/diff/{word}")
    client.request(word, f"/{word}")
    client.request(word, "/plan")
    client.get(f"/models/{word}/{word}")
    client.post("/plan", json=request(devices=devices))
    client.post("/plan", json=request(models={"compute": f"fake/compute/{word}"}))
    client.post("/plan", json=request(algorithm=word))
    client.post("/profiles", json={"tables": [], "hardware": word, "global_batch_size": 1, "optimizer": word})
    client.get("/healthz", headers={"X-Request-ID": word, "Authorization": f"Bearer {word}"})


def test_paths_methods_and_names_of_a_stranger_add_no_series(client: httpx.Client) -> None:
    rng = random.Random(0)
    _hostile(client, "First")
    client.get("/metrics")
    before = _exposition(client)
    for _ in range(ASKED):
        _hostile(client, "".join(rng.choices(ascii_letters, k=12)))
    after = _exposition(client)
    assert after.keys() == before.keys()
    counted = 'shardwright_http_requests_total{method="GET",route="unmatched",status="404"}'
    assert after[counted] == before[counted] + ASKED
    other = 'shardwright_http_requests_total{method="other",route="unmatched",status="404"}'
    assert after[other] == before[other] + ASKED


def test_counters_are_what_happened_and_never_fall_while_a_planning_process_dies(
    client: httpx.Client, others: set[int]
) -> None:
    asked = 'shardwright_http_requests_total{method="GET",route="/healthz",status="200"}'
    client.get("/healthz")
    before = _exposition(client)
    seen = [before]
    with ThreadPoolExecutor(8) as threads:
        answers = [threads.submit(client.get, "/healthz") for _ in range(ASKED)]
        kill(min(planning_processes(os.getpid()) - others))
        seen += [_exposition(client) for _ in range(10)]
        assert {answer.result().status_code for answer in answers} == {200}
    assert client.get("/readyz").status_code == 200
    seen.append(_exposition(client))
    assert seen[-1][asked] == before[asked] + ASKED
    assert seen[-1]["shardwright_planner_deaths_total"] == before["shardwright_planner_deaths_total"] + 1
    assert seen[-1]["shardwright_planner_processes"] == 2
    for earlier, later in pairwise(seen):
        falling = {name for name in earlier if "_total" in name and later[name] < earlier[name]}
        assert not falling
    new = {name for name in seen[-1].keys() - before.keys() if "/readyz" not in name and "/metrics" not in name}
    assert not new


def test_what_is_shed_or_refused_is_counted_by_kind(client: httpx.Client) -> None:
    before = _exposition(client)
    client.get("/plans/none")
    client.post("/plan", json={})
    client.post("/plan", content=b"x", headers={"Content-Type": "text/plain"})
    client.get("/nothing")
    after = _exposition(client)
    grown = {name for name in after if "problems" in name and after[name] == before[name] + 1}
    kinds = ("plan_not_found", "invalid_request", "unsupported_media_type", "not_found")
    assert grown == {f'shardwright_problems_total{{kind="{kind}"}}' for kind in kinds}
