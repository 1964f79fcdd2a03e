"""A server that is there and does nothing: its processes are stopped, and the kernel takes what they are sent."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from service.storage.embedded import EmbeddedPostgres


@contextmanager
def frozen(data_dir: Path) -> Iterator[None]:
    """Stops all processes of the embedded server of a folder, the one that would start more first."""
    server = EmbeddedPostgres(data_dir)._postmaster()
    assert server is not None
    stopped: list[int] = []
    try:
        stopped.append(server.pid)
        os.kill(server.pid, signal.SIGSTOP)
        for child in Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split():
            stopped.append(int(child))
            os.kill(int(child), signal.SIGSTOP)
        yield
    finally:
        for pid in stopped:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
