"""``shardwright serve --worker``: one command that plans, and measures what is new."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx

from tests.api.processes import clean_environment, is_alive, wait_for
from tests.api.support import table
from tests.jobs.supervised import QUICK, ROOT

BODY = {
    "tables": [table("small", embedding_dim=8)],
    "hardware": "cpu-fbgemm",
    "global_batch_size": 64,
    "optimizer": "sgd",
}


def _get(client: httpx.Client, path: str) -> Any:
    try:
        return client.get(path)
    except httpx.ConnectError:
        return httpx.Response(0)


def _children(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(child) for child in (task / "children").read_text().split()]
    return found + [pid for child in found for pid in _children(child)]


def test_a_service_with_a_worker_measures_what_it_is_asked_to_and_stops_as_a_whole(server_folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = clean_environment(
        SHARDWRIGHT_DATA_DIR=str(server_folder / "var"),
        PORT=str(port),
        SHARDWRIGHT_PLANNER_PROCESSES="1",
        SHARDWRIGHT_WORKER_MEMORY_GIB="0.2",
        **QUICK,
    )
    log = server_folder / "log"
    with (
        log.open("w") as errors,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False) as client,
    ):
        command = [sys.executable, "-m", "service", "serve", "--worker"]
        served = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=errors, start_new_session=True)
        try:
            live = 'shardwright_workers_live{hardware="cpu-fbgemm"} 1.0'
            wait_for(lambda: live in _get(client, "/metrics").text, 90)
            where = client.post("/profiles", json=BODY).headers["location"]
            wait_for(lambda: client.get(where).json()["done"], 90)
            (done,) = client.get(where).json()["profiles"]
            assert done["state"] == "measured", done
            assert [result["width"] for result in done["results"]] == [8, 4]
            family = _children(served.pid)
            assert len(family) >= 3
            with socket.create_connection(("127.0.0.1", port)) as slow:
                # A request that the API lets finish, while the worker has been told to stop as well.
                slow.sendall(
                    b"POST /profiles HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n"
                    b"Content-Type: application/json\r\n\r\n{"
                )
                time.sleep(0.5)
                # Ctrl-C goes to all of them at once.
                os.killpg(served.pid, signal.SIGINT)
                time.sleep(2)
                # What ended with it is not started again.
                assert "a worker ended" not in log.read_text()
                assert served.poll() is None
                slow.sendall(b"x" * 8)
                assert served.wait(60) == 0, log.read_text()
            assert "is started again" not in log.read_text()
            wait_for(lambda: not any(map(is_alive, family)))
            assert "Traceback" not in log.read_text()
        finally:
            if served.poll() is None:
                served.terminate()
                served.wait(60)
