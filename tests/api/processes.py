"""Looks at processes through /proc, so that tests need no package for it."""

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path


def clean_environment(**settings: str) -> dict[str, str]:
    """This process's environment with just these settings of the service; its nights come only where they are set."""
    inherited = {name: value for name, value in os.environ.items() if not _is_setting(name)}
    return inherited | {"SHARDWRIGHT_NIGHTLY_CRON": ""} | settings


def setting_names() -> list[str]:
    """The settings of the service that this process's environment has."""
    return [name for name in os.environ if _is_setting(name)]


def _is_setting(name: str) -> bool:
    return name.startswith("SHARDWRIGHT_") or name in ("DATABASE_URL", "PORT")


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _command(pid: str) -> str:
    """The command line of a process; one that was spawned a moment ago has none for as long as it is not run."""
    for _ in range(500):
        command = Path(f"/proc/{pid}/cmdline").read_text()
        if command or Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
            return command
        time.sleep(0.01)
    return ""


def planning_processes(parent: int) -> set[int]:
    """Spawned children of a process, by id."""
    found = set()
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            stat = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            if int(stat[1]) == parent and "spawn_main" in _command(pid):
                found.add(int(pid))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def kill(pid: int) -> None:
    """SIGKILL, and a wait for its effect."""
    os.kill(pid, signal.SIGKILL)
    # Its parent sees the end only once the last of its threads is gone.
    wait_for(lambda: not is_alive(pid) and len(list(Path("/proc").glob(f"{pid}/task/*"))) < 2)


def mapped_files(pid: int) -> str:
    """What a process has mapped into its memory, libraries among it."""
    return Path(f"/proc/{pid}/maps").read_text()


def logged_port(log: Path, start: int = 0) -> int | None:
    """The port that a service says it serves on, in what its log has after so many bytes; None before it does."""
    lines = log.read_bytes()[start:].decode().splitlines(keepends=True)
    serving = (json.loads(line) for line in lines if '"message": "serving"' in line and line.endswith("\n"))
    return next((int(line["port"]) for line in serving), None)


def resident_bytes(pid: int) -> int:
    """Memory of a process."""
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) * 1024


def peak_resident_bytes(pid: int) -> int:
    """The most memory that a process ever had."""
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


def thread_count(pid: int) -> int:
    """Threads of a process."""
    return len(os.listdir(f"/proc/{pid}/task"))


def wait_for(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Waits until a condition holds; fails where it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
