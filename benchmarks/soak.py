"""A service under mixed load at about half of what it takes, for as long as wanted: what grows, and what does not.

Requests are plans, fresh and repeated, estimates, reads, observations, faulty ones, and clients that hang up.
Run: python -m benchmarks.soak --minutes 60 --write benchmarks/results/soak.md
"""

import argparse
import json
import os
import random
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

from benchmarks.machine import command_line, machine_line
from benchmarks.random_bodies import estimate_body, plan_body
from benchmarks.servers import Server, service
from benchmarks.soak_samples import Sample, sample, verdict

_WARM_UP = 0.25
"""Of the time, after which nothing is to grow."""

_JSON = {"content-type": "application/json"}
_CLIENTS = 4
_PACKAGES = ("fastapi", "uvicorn", "pydantic", "numpy")


class Clients:
    """A few clients that each ask for something at random, then pause."""

    def __init__(self, server: Server, rate: float) -> None:
        """Prepares them; all together ask ``rate`` times a second."""
        self._server = server
        self._pause_s = _CLIENTS / rate
        self._over = threading.Event()
        self._threads = ThreadPoolExecutor(_CLIENTS)
        self._running: list[Future[None]] = []
        self.answers: Counter[str] = Counter()

    def __enter__(self) -> "Clients":
        """Starts them."""
        self._running = [self._threads.submit(self._run, number) for number in range(_CLIENTS)]
        return self

    def __exit__(self, *_: object) -> None:
        """Ends them after what they are at; raises what ended one before."""
        self._over.set()
        self._threads.shutdown()
        for client in self._running:
            client.result()

    def _run(self, number: int) -> None:
        rng = random.Random(number)
        with httpx.Client(base_url=self._server.address, timeout=60) as client:
            plans: list[str] = []
            while not self._over.wait(rng.uniform(0.5, 1.5) * self._pause_s):
                try:
                    said = self._ask(client, rng, plans)
                except httpx.TransportError as error:
                    said = type(error).__name__
                self.answers[said] += 1

    def _ask(self, client: httpx.Client, rng: random.Random, plans: list[str]) -> str:
        kind = rng.choices(list(_KINDS), weights=list(_KINDS.values()))[0]
        seed = rng.randrange(10**9)
        if kind == "hung up":
            self._hang_up(rng)
            return kind
        if kind in ("read", "observe") and plans:
            plan_id = rng.choice(plans)
            response = client.get(f"/plans/{plan_id}") if kind == "read" else _observed(client, plan_id, seed)
        elif kind == "faulty":
            response = client.post("/plan", content=rng.choice(_FAULTY), headers=_JSON)
        elif kind == "estimate":
            response = client.post("/estimate", json=estimate_body(placement=rng.randrange(200), table_seed=seed % 50))
        elif kind == "other tables":
            response = client.post("/estimate", json=estimate_body(table_seed=seed))
        else:
            fresh = kind == "fresh"
            response = client.post(
                "/plan", json=plan_body(seed % 20, algorithm="dim_greedy", seed=seed if fresh else 0)
            )
            if response.status_code == 200:
                plans[:] = [*plans[-99:], response.json()["plan_id"]]
        return f"{kind} {response.status_code}"

    def _hang_up(self, rng: random.Random) -> None:
        """Sends a part of a request, or all of it, and does not wait for the answer."""
        body = json.dumps(plan_body(rng.randrange(10**9))).encode()
        head = (
            f"POST /plan HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        url = httpx.URL(self._server.address)
        with socket.create_connection((url.host, url.port or 80), timeout=10) as connection:
            connection.sendall((head.encode() + body)[: rng.randrange(1, len(head) + len(body) + 1)])


_KINDS = {
    "estimate": 40,
    "repeated": 20,
    "read": 10,
    "fresh": 8,
    "other tables": 6,
    "faulty": 6,
    "observe": 5,
    "hung up": 5,
}
"""What is asked how often, in percent."""

_FAULTY = (
    b"",
    b"{",
    b'{"tables": []}',
    b"\xff",
    b"[" * 5_000,
    b'{"a": 1, "a": 2}',
    b'{"tables": [{"name": "\\ud800"}]}',
)


def _observed(client: httpx.Client, plan_id: str, seed: int) -> httpx.Response:
    times: dict[str, Any] = {
        "rank": 0,
        "steps": [seed, seed + 10],
        "forward_compute_ms": 1.0,
        "backward_compute_ms": 2.0,
    }
    return client.post(f"/plans/{plan_id}/observations", json={"observations": [times]})


def is_error(said: str) -> bool:
    """Whether a request came to something else than it is to: a refusal of what is faulty, a success of the rest."""
    kind, _, status = said.rpartition(" ")
    return said != "hung up" and status[0] != ("4" if kind == "faulty" else "2")


def _samples(server: Server, seconds: float, every_s: float) -> Iterator[Sample]:
    began = time.monotonic()
    while (elapsed := time.monotonic() - began) < seconds:
        yield sample(server, elapsed)
        time.sleep(every_s)
    yield sample(server, seconds)


def report(samples: Sequence[Sample], answers: Counter[str], seconds: float, machine: str) -> tuple[str, bool]:
    """What came of it as Markdown, and whether it is good."""
    errors = sum(count for said, count in answers.items() if is_error(said))
    text, good = verdict([one for one in samples if one.at_s >= _WARM_UP * seconds], errors)
    lines = [
        "# The service under mixed load",
        "",
        f"`{command_line('benchmarks.soak')}` on {machine}",
        "",
        "All processes of the service and its database are on one core. What comes after a warm-up of "
        f"{_WARM_UP * seconds / 60:g} minutes is compared, its first and its last quarter: medians of memory, the most "
        "of the rest.",
        "",
        f"{answers.total() / seconds:.1f} requests a second; by what was asked and what came of it:",
        "",
        *(f"- {said}: {count:,}" for said, count in sorted(answers.items())),
        "",
        text,
        "",
    ]
    return "\n".join(lines), good


def main() -> None:
    """Prints a line for each look at the processes, and the verdict; the exit status says whether it is good."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=30.0, help="requests a second, of all clients")
    parser.add_argument("--core", type=int, default=0, help="of the service, all its processes")
    parser.add_argument("--client-core", type=int, default=1)
    parser.add_argument("--write", type=Path, help="file for the report")
    given = parser.parse_args()
    if given.write and not given.write.parent.is_dir():
        parser.error(f"--write: there is no folder {given.write.parent}")
    machine = machine_line(_PACKAGES)
    os.sched_setaffinity(0, {given.client_core})
    seconds = 60 * given.minutes
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        service(Path(folder), given.core) as server,
        Clients(server, given.rate) as clients,
    ):
        samples = []
        for found in _samples(server, seconds, seconds / 40):
            samples.append(found)
            print(found.line(), flush=True)
    text, good = report(samples, clients.answers, seconds, machine)
    print(text)
    if given.write:
        given.write.write_text(text)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
