"""Requests by wrk, which costs a tenth of what any generator in Python does: the server is what is measured.

Clients in Python (locust, httpx) cost as much for a request as the routes that are compared here.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_SCRIPT = Path(__file__).with_name("load.lua")


@dataclass(frozen=True, slots=True)
class Load:
    """What came of a while of requests.

    Attributes:
        requests: answered.
        seconds: that it lasted.
        median_ms: latency.
        p99_ms: latency.
        largest_ms: latency.
        refused: answers that are no 2xx or 3xx.
        broken: connections that were refused, broke, or timed out.
        accepted: answers 200; this and what follows only where answers were counted.
        shed: answers 503 with Retry-After.
        shed_without_retry_after: other answers 503.
        other: answers of any other status.
    """

    requests: int
    seconds: float
    median_ms: float
    p99_ms: float
    largest_ms: float
    refused: int
    broken: int
    accepted: int
    shed: int
    shed_without_retry_after: int
    other: int

    @property
    def rate(self) -> float:
        """Requests a second."""
        return self.requests / self.seconds


def write_bodies(path: Path, bodies: Iterable[object]) -> Path:
    """Writes request bodies as ``send`` takes them, one a line."""
    path.write_text("".join(json.dumps(body) + "\n" for body in bodies))
    return path


def send(
    address: str,
    path: str,
    bodies: Path,
    *,
    seconds: float,
    connections: int,
    core: int,
    delay_ms: float = 0.0,
    count: bool = False,
) -> Load:
    """Sends bodies in turn for a while, over connections that each wait for their answer.

    Args:
        address: of the server.
        path: of the resource.
        bodies: file of ``write_bodies``.
        seconds: for which requests are sent.
        connections: open at the same time.
        core: that wrk runs on.
        delay_ms: mean pause of a connection before each request, from half to one and a half of it; 0 for none.
        count: whether answers are counted by what they say.
    """
    wrk = shutil.which("wrk")
    if wrk is None:
        sys.exit("this benchmark needs wrk: apt-get install wrk")
    command = ["taskset", "-c", str(core), wrk, "-t1", f"-c{connections}", f"-d{seconds:g}s", "--timeout", "60s"]
    arguments = [str(bodies), path, f"{delay_ms:g}", "count" if count else "-"]
    run = subprocess.run(
        [*command, "-s", str(_SCRIPT), address, "--", *arguments], capture_output=True, text=True, check=True
    )
    return Load(**json.loads(run.stdout.splitlines()[-1]))
