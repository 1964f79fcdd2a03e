"""What a service's processes have, and whether it grows."""

import os
import statistics
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.servers import Server

_GROWTH = 0.05
"""Memory is flat where its median over the last quarter is above that over the first one by this at most."""

_MORE = 8
"""Descriptors and threads: as many more may be open for a moment."""

_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Sample:
    """One look.

    Attributes:
        at_s: seconds since the start.
        memory: bytes that the processes of a kind have resident, of their own (shared pages in part), by kind.
        descriptors: files and connections that the API's process has open.
        threads: of the API's process.
        connections: processes that the database has, one a connection and a few of its own.
        database: bytes of its files.
    """

    at_s: float
    memory: Mapping[str, int]
    descriptors: int
    threads: int
    connections: int
    database: int

    def line(self) -> str:
        """For people."""
        memory = ", ".join(f"{kind} {size / _MIB:.0f} MiB" for kind, size in self.memory.items())
        return (
            f"{self.at_s:6.0f} s: {memory}; {self.descriptors} descriptors, {self.threads} threads, "
            f"{self.connections} database processes, database {self.database / _MIB:.0f} MiB"
        )


def sample(server: Server, at_s: float) -> Sample:
    """A look at a server's processes."""
    processes = server.processes()
    data = server.data_dir or Path("/nowhere")
    return Sample(
        at_s=at_s,
        memory={kind: sum(map(_resident, pids)) for kind, pids in processes.items() if kind in ("api", "planning")},
        descriptors=len(os.listdir(f"/proc/{server.pid}/fd")),
        threads=len(os.listdir(f"/proc/{server.pid}/task")),
        connections=len(processes.get("database", [])),
        database=sum(_size(path) for path in data.rglob("*")),
    )


def verdict(samples: Sequence[Sample], errors: int) -> tuple[str, bool]:
    """What grew between the first and the last quarter of some samples, and whether all is well.

    Args:
        samples: after the warm-up.
        errors: requests that came to something else than they were to.
    """
    quarter = max(1, len(samples) // 4)
    first, last = samples[:quarter], samples[-quarter:]
    said, good = [f"{errors} errors"], errors == 0
    for kind in first[0].memory:
        before, after = (statistics.median(one.memory[kind] for one in part) for part in (first, last))
        said.append(f"memory of {kind} {before / _MIB:.1f} to {after / _MIB:.1f} MiB ({after / before - 1:+.1%})")
        good = good and after <= (1 + _GROWTH) * before
    for name in ("descriptors", "threads", "connections"):
        before, after = (max(getattr(one, name) for one in part) for part in (first, last))
        said.append(f"{name} {before} to {after}")
        good = good and after <= before + _MORE
    grown = (last[-1].database - first[0].database) / _MIB
    said.append(f"database {grown:+.1f} MiB, which plans and observations are expected to add")
    return f"{'flat' if good else 'NOT FLAT'}: " + "; ".join(said), good


def _resident(pid: int) -> int:
    with suppress(OSError):
        (line,) = [line for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines() if line[:4] == "Pss:"]
        return int(line.split()[1]) * 1024
    return 0


def _size(path: Path) -> int:
    with suppress(OSError):
        return path.lstat().st_size
    return 0
