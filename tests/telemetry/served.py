"""A service with fake cost models as a process of its own."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.api.processes import clean_environment, logged_port, wait_for
from tests.telemetry.rules import ROOT

PATIENCE_S = 60


class Served:
    """A service that answers, and what it writes to its log."""

    def __init__(self, log: Path, port: int = 0, **settings: str) -> None:
        self.port, self.log = port, log
        # By itself one that the system gives it: what was free a moment ago may be another's by now.
        environment = clean_environment(PORT=str(port), SHARDWRIGHT_PLANNER_PROCESSES="1", **settings)
        with log.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.api.serve_fake"], cwd=ROOT, env=environment, stderr=errors
            )
        self.client = httpx.Client(timeout=PATIENCE_S, trust_env=False)

    def answers(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        port = logged_port(self.log)
        if port is None:
            return False
        self.port = port
        self.client.base_url = f"http://127.0.0.1:{port}"
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
