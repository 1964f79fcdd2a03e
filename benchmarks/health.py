"""How quick /healthz answers while four large plans run, against a real service with the shipped models.

Run: python -m benchmarks.health
"""

import json
import sys
import tempfile
import threading
import time
from pathlib import Path

import httpx
import numpy as np

from benchmarks.random_bodies import tables
from benchmarks.servers import service

PLANS = 4
_TABLES, _DEVICES = 1_500, 64


def request_body(seed: int) -> dict[str, object]:
    """A question that no stored plan answers: many tables on 64 devices."""
    devices = {"count": _DEVICES, "memory_bytes": 80 * 2**30, "hardware": "cpu-fbgemm"}
    return {"tables": tables(seed, _TABLES), "devices": devices, "global_batch_size": 32_768, "optimizer": "sgd",
            "time_limit_ms": 60_000, "seed": seed}  # fmt: skip


def main() -> None:
    """Prints the latency of /healthz while the plans run, and how long they took."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, service(Path(folder)) as server:
        took: list[float] = []

        def plan(seed: int) -> None:
            started = time.perf_counter()
            answer = httpx.post(f"{server.address}/plan", content=json.dumps(request_body(seed)), timeout=120,
                                headers={"content-type": "application/json"})  # fmt: skip
            answer.raise_for_status()
            took.append(time.perf_counter() - started)

        threads = [threading.Thread(target=plan, args=(seed,)) for seed in range(PLANS)]
        for thread in threads:
            thread.start()
        latencies = []
        with httpx.Client() as client:
            while any(thread.is_alive() for thread in threads):
                started = time.perf_counter()
                client.get(f"{server.address}/healthz").raise_for_status()
                latencies.append((time.perf_counter() - started) * 1e3)
                time.sleep(0.01)
    if len(took) < PLANS:
        sys.exit(f"only {len(took)} of {PLANS} plans were answered")
    low, high = min(took), max(took)
    print(
        f"/healthz while {PLANS} plans of {_TABLES} tables on {_DEVICES} devices run ({low:.1f} to {high:.1f} s each): "
        f"{len(latencies)} calls, median {np.median(latencies):.1f} ms, largest {max(latencies):.1f} ms"
    )


if __name__ == "__main__":
    main()
