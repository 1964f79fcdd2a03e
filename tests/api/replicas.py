"""Two services on one database and one model store, each a process of its own."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx

from service.domain.versions import Version
from tests.api.processes import clean_environment, logged_port, planning_processes, resident_bytes, wait_for
from tests.api.small_store import priced

CONVERGED_S = 20.0
"""Seconds within which all replicas serve what was promoted, also on a machine that is busy."""

_ROOT = Path(__file__).resolve().parents[2]
_PATIENCE_S = 60


class Replica:
    """A service of its own process with two planning processes, on a database and a model store that others share."""

    def __init__(self, database_url: str, models: Path, log: Path, port: int = 0, **settings: str) -> None:
        self._log = log.open("w")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "service", "serve"],
            cwd=_ROOT,
            env=clean_environment(
                DATABASE_URL=database_url,
                # By itself one that the system gives it: what was free a moment ago may be another's by now.
                PORT=str(port),
                SHARDWRIGHT_MODEL_STORE=str(models),
                SHARDWRIGHT_PLANNER_PROCESSES="2",
                SHARDWRIGHT_DEFAULT_TIME_LIMIT_MS="30000",
                **settings,
            ),
            stderr=self._log,
        )
        self.client = httpx.Client(
            timeout=_PATIENCE_S,
            trust_env=False,
            # Each request on a connection of its own: none is tied to what an earlier one met.
            headers={"Connection": "close"},
        )

    def answers(self) -> bool:
        log = Path(self._log.name)
        assert self.process.poll() is None, log.read_text()
        port = logged_port(log)
        if port is None:
            return False
        self.client.base_url = f"http://127.0.0.1:{port}"
        try:
            return self.client.get("/readyz").status_code == 200
        except httpx.ConnectError:
            return False

    def serves(self, version: Version) -> bool:
        return bool(self.client.post("/estimate", json=priced()).json()["models"][version.model] == str(version))

    def metric(self, series: str) -> float:
        lines = self.client.get("/metrics").text.splitlines()
        return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(series)), 0.0)

    def memory(self) -> list[int]:
        """Bytes of its process and of its planning processes."""
        return [resident_bytes(pid) for pid in (self.process.pid, *sorted(planning_processes(self.process.pid)))]

    def end(self) -> None:
        self.client.close()
        self.process.terminate()
        self.process.wait(_PATIENCE_S)
        self._log.close()


@contextmanager
def two_replicas(database_url: str, models: Path) -> Iterator[list[Replica]]:
    """Two that answer; they write their logs beside the model store."""
    with ExitStack() as stack:
        started = []
        for number in range(2):
            started.append(Replica(database_url, models, models.with_name(f"replica-{number}.log")))
            stack.callback(started[-1].end)
        for replica in started:
            wait_for(replica.answers, _PATIENCE_S)
        yield started


def converge(replicas: list[Replica], version: Version) -> None:
    """Waits until all of them serve a version; fails where they do not in time."""
    wait_for(lambda: all(replica.serves(version) for replica in replicas), CONVERGED_S)
