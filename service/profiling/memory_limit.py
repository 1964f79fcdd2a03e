"""A limit on this process's own memory, so that what takes more than it said fails alone."""

import resource
from pathlib import Path

_SLACK_BYTES = 2**30


def limit_own_memory(allowed_bytes: int) -> None:
    """Lets this process take so much more memory than it has now, and a GiB for what a bench needs besides.

    An allocation beyond it fails: as a MemoryError, or as the end of this process where the code that asked does not
    handle it. Counted is private, writable memory (RLIMIT_DATA), also where it was not touched yet.
    """
    limit = _data_bytes() + allowed_bytes + _SLACK_BYTES
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard == resource.RLIM_INFINITY or limit < hard:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


def _data_bytes() -> int:
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) * 1024
    return 0
