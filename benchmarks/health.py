"""How quick /healthz answers while four large plans run, against a real service with the shipped models.

Run: python -m benchmarks.health
"""

import json
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import numpy as np

PLANS = 4
_TABLES, _DEVICES = 1_500, 64
_START_S = 60


def request_body(seed: int) -> dict[str, object]:
    """A question that no stored plan answers: many tables of random sizes on 64 devices."""
    rng = np.random.default_rng(seed)
    tables = [
        {
            "name": f"t{i}",
            "num_embeddings": int(10 ** rng.uniform(3, 6.5)),
            "embedding_dim": int(rng.choice([16, 32, 64, 128])),
            "pooling_factor": float(round(rng.uniform(0.5, 40), 2)),
        }
        for i in range(_TABLES)
    ]
    devices = {"count": _DEVICES, "memory_bytes": 80 * 2**30, "hardware": "cpu-fbgemm"}
    return {"tables": tables, "devices": devices, "global_batch_size": 32_768, "optimizer": "sgd",
            "time_limit_ms": 60_000, "seed": seed}  # fmt: skip


@contextmanager
def running_service() -> Iterator[str]:
    """A service of its own, on a free port, with an embedded database in a temporary folder; its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        command = [sys.executable, "-m", "service", "serve", "--port", str(port), "--data-dir", folder]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        address = f"http://127.0.0.1:{port}"
        try:
            _wait_until_ready(address)
            yield address
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=_START_S)


def _wait_until_ready(address: str) -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        try:
            if httpx.get(f"{address}/readyz").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    sys.exit("the service did not become ready")


def main() -> None:
    """Prints the latency of /healthz while the plans run, and how long they took."""
    with running_service() as address:
        took: list[float] = []

        def plan(seed: int) -> None:
            started = time.perf_counter()
            answer = httpx.post(f"{address}/plan", content=json.dumps(request_body(seed)), timeout=120,
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
                client.get(f"{address}/healthz").raise_for_status()
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
