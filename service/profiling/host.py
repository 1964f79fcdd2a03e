"""What this process may use of its host: control groups (containers, batch systems) may allow less than there is.

The files are those of cgroups(7), version 2 and version 1, of the process's own group and of all above it.
"""

import math
import os
from collections.abc import Iterator
from pathlib import Path

_HOST = Path("/")
_WITHOUT_LIMIT = ("max", "-1")
_PAGE_CACHE = ("inactive_file", "active_file")
_MEMORY_LIMITS = {
    "memory.max": ("memory.current", ""),
    "memory.limit_in_bytes": ("memory.usage_in_bytes", "total_"),
}
"""Files with a group's limit, by version of cgroups: the file with its use, and what its statistics begin with."""


def usable_cores(root: Path = _HOST) -> int:
    """Processor cores that this process can keep busy: those it may run on, or fewer by a quota, rounded up.

    Args:
        root: where ``proc`` and ``sys`` are.
    """
    quotas = [max(1, math.ceil(quota)) for folder in _groups(root, "cpu") for quota in _quotas(folder)]
    return min([len(os.sched_getaffinity(0)), *quotas])


def oversubscribed(ranks: int, device: str) -> bool:
    """Whether so many ranks on ``cpu`` or ``cuda`` outnumber the cores that they can have; those on GPUs never do."""
    return not device.startswith("cuda") and ranks > usable_cores()


def free_memory(root: Path = _HOST) -> int:
    """Bytes of memory that can be had: Linux's MemAvailable (all free pages elsewhere), or less by a group's limit.

    Args:
        root: where ``proc`` and ``sys`` are.
    """
    available = _memory(root, "MemAvailable:", "SC_AVPHYS_PAGES")
    return min([available, *(left for folder in _groups(root, "memory") for left in _left(folder))])


def most_memory(root: Path = _HOST) -> int:
    """Bytes of memory that this process and those of its group may take: the machine's, or less by a group's limit.

    Args:
        root: where ``proc`` and ``sys`` are.
    """
    limits = (_limit(folder, name) for folder in _groups(root, "memory") for name in _MEMORY_LIMITS)
    return min([_memory(root, "MemTotal:", "SC_PHYS_PAGES"), *(limit for limit in limits if limit is not None)])


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Folders of the groups that limit this process, its own first; not all of them need be there."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mounted = root / "sys/fs/cgroup" / (controller if controllers else "")
        names = [name for name in path.split("/") if name not in ("", "..")]
        yield from (mounted.joinpath(*names[:count]) for count in range(len(names), -1, -1))


def _quotas(group: Path) -> Iterator[float]:
    """Cores' worth of time that a group may take, where it is limited."""
    of_version_1 = f"{_text(group / 'cpu.cfs_quota_us')} {_text(group / 'cpu.cfs_period_us')}"
    for text in (_text(group / "cpu.max"), of_version_1):
        words = text.split()
        if len(words) == 2 and words[0] not in _WITHOUT_LIMIT:
            yield int(words[0]) / int(words[1])


def _left(group: Path) -> Iterator[int]:
    """Bytes that a group may still take, where it is limited; its page cache gives way, so it is not in use."""
    for name, (used, prefix) in _MEMORY_LIMITS.items():
        allowed, taken = _limit(group, name), _text(group / used).strip()
        if allowed is not None and taken:
            words = _text(group / "memory.stat").split()
            stat = dict(zip(words[::2], words[1::2], strict=False))
            cache = sum(int(stat.get(f"{prefix}{kind}", 0)) for kind in _PAGE_CACHE)
            yield max(0, allowed - int(taken) + cache)


def _limit(group: Path, name: str) -> int | None:
    """Bytes that a group may take by one of its files; None where it is not limited there."""
    allowed = _text(group / name).strip()
    return int(allowed) if allowed and allowed not in _WITHOUT_LIMIT else None


def _memory(root: Path, field: str, pages: str) -> int:
    """Bytes by a line of Linux's meminfo; by the system's count of pages where there is none."""
    words = _text(root / "proc/meminfo").split()
    if field in words:
        return int(words[words.index(field) + 1]) * 1024
    return os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE")


def _text(path: Path) -> str:
    """Content of a file, empty where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
