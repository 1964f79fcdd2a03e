"""A service with fake cost models as a process of its own."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.api.processes import clean_environment, wait_for
from tests.telemetry.rules import ROOT

PATIENCE_S = 60


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


class Served:
    """A service that answers, and what it writes to its log."""

    def __init__(self, log: Path, port: int = 0, **settings: str) -> None:
        self.port, self.log = port or free_port(), log
        environment = clean_environment(PORT=str(self.port), SHARDWRIGHT_PLANNER_PROCESSES="1", **settings)
        with log.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.api.serve_fake"], cwd=ROOT, env=environment, stderr=errors
            )
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=PATIENCE_S, trust_env=False)

    def answers(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        try:
            return self.client.get("/healthz").status_code == 200
        except httpx.TransportError:
            return False

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        self.process.terminate()
        return self.process.wait(PATIENCE_S)


@contextmanager
def serving(log: Path, port: int = 0, **settings: str) -> Iterator[Served]:
    """A service that answers; it is stopped at the end, if it was not before."""
    served = Served(log, port, **settings)
    try:
        wait_for(served.answers, PATIENCE_S)
        yield served
    finally:
        served.client.close()
        if served.process.poll() is None:
            served.stop()
