"""Servers that benchmarks ask, whatever the environment sets; all processes of one may share a core."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx

_START_S = 60
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Server:
    """A server that answers.

    Attributes:
        address: its URL.
        pid: of its first process.
        data_dir: where its database is; None where it has none.
    """

    address: str
    pid: int
    data_dir: Path | None = None

    def processes(self) -> dict[str, list[int]]:
        """Ids of its processes by what they are: ``api``, ``planning``, ``helper`` and ``database``."""
        below = descendants(self.pid)
        planning = [pid for pid in below if "spawn_main" in _command(pid)]
        found = {"api": [self.pid], "planning": planning, "helper": [pid for pid in below if pid not in planning]}
        note = self.data_dir / "postgres" / "postmaster.pid" if self.data_dir else None
        if note is not None and note.exists():
            postmaster = int(note.read_text().splitlines()[0])
            found["database"] = [postmaster, *descendants(postmaster)]
        return found

    def cpu_s(self) -> float:
        """Processor time that all of its processes have had so far, those that ended included, seconds."""
        return sum(_cpu_s(pid) for pids in self.processes().values() for pid in pids)


@contextmanager
def service(folder: Path, core: int | None = None) -> Iterator[Server]:
    """The service with the shipped models and an embedded database.

    Args:
        folder: for its data, and for its log, ``service.log``.
        core: that all its processes share; None for the cores that this process may use.
    """
    log = folder / "service.log"
    command = [sys.executable, "-m", "service", "serve", "--port", "0", "--data-dir", str(folder / "var")]
    with log.open("w") as written, _process(command, core, stderr=written.fileno()) as process:
        address = f"http://127.0.0.1:{_until(process, lambda: _logged_port(log))}"
        _until(process, lambda: _ready(f"{address}/readyz"))
        yield Server(address, process.pid, folder / "var")


@contextmanager
def bare_routes(folder: Path, core: int) -> Iterator[Server]:
    """The routes that the service is compared with."""
    command = [sys.executable, "-m", "benchmarks.load_bare", str(folder)]
    with _process(command, core, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        address = f"http://127.0.0.1:{int(process.stdout.readline())}"
        _until(process, lambda: _ready(f"{address}/healthz"))
        yield Server(address, process.pid)


def descendants(pid: int) -> list[int]:
    """Ids of all processes below one."""
    children: dict[int, list[int]] = {}
    for other in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(OSError):
            children.setdefault(int(_stat(int(other))[1]), []).append(int(other))
    found, left = list[int](), [pid]
    while left:
        below = children.get(left.pop(), [])
        found += below
        left += below
    return found


@contextmanager
def _process(
    command: list[str], core: int | None, stdout: int | None = None, stderr: int | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SHARDWRIGHT_")}
    environment.pop("DATABASE_URL", None)
    pinned = [] if core is None else ["taskset", "-c", str(core)]
    process = subprocess.Popen([*pinned, *command], stdout=stdout, stderr=stderr, env=environment)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(_START_S)


def _until(process: subprocess.Popen[bytes], found: Callable[[], int]) -> int:
    """What a look at a server that starts comes to, once that is not 0."""
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline and process.poll() is None:
        if value := found():
            return value
        time.sleep(0.1)
    sys.exit("a server did not become ready")


def _logged_port(log: Path) -> int:
    for line in log.read_text().splitlines():
        with suppress(ValueError):
            entry = json.loads(line)
            if entry["message"] == "serving":
                return int(entry["port"])
    return 0


def _ready(url: str) -> bool:
    try:
        return httpx.get(url, trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()


def _command(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""


def _cpu_s(pid: int) -> float:
    with suppress(OSError):
        return sum(map(int, _stat(pid)[11:15])) / _TICKS
    return 0.0
