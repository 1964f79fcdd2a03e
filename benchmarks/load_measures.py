"""Load on two servers in turn, at half of what they take, and beyond what they take."""

import math
import statistics
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from benchmarks.load_generator import Load, send
from benchmarks.servers import Server

_CONNECTIONS = 16
_HALF_LOAD_CONNECTIONS = 8
OVERLOAD_CONNECTIONS = 1_024
"""Open at the same time beyond what the service takes."""

_OVERLOAD = 3.0


@dataclass(frozen=True, slots=True)
class Route:
    """Something to put load on.

    Attributes:
        name: for people.
        path: of the resource.
        bodies: file of what is sent in turn.
        bare: whether it is the bare route rather than the service's.
        connections: open at the same time where it gets all that it can take.
    """

    name: str
    path: str
    bodies: Path
    bare: bool = False
    connections: int = _CONNECTIONS


@dataclass(slots=True)
class Measured:
    """What a route took, slice by slice.

    Attributes:
        loads: one for each slice of time.
        cpu_ms: processor time of all the server's processes for a request, in each slice.
    """

    loads: list[Load] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Requests a second, the median over the slices."""
        return statistics.median(load.rate for load in self.loads)


@dataclass(frozen=True, slots=True)
class Overload:
    """What came of more requests than the service can take.

    Attributes:
        load: as wrk saw it.
        counted: answers 200 of the route by the service's own metrics.
        health_ms: times that /healthz took meanwhile; infinite where it did not answer.
        ready: whether the service was ready after it.
    """

    load: Load
    counted: int
    health_ms: list[float]
    ready: bool


def measured(
    servers: Mapping[bool, Server], routes: Sequence[Route], rounds: int, seconds: float, core: int
) -> dict[str, Measured]:
    """Throughput of each route, in short slices in turn, so that what else the machine does meets all alike."""
    found = {route.name: Measured() for route in routes}
    for _ in range(rounds):
        for route in routes:
            server = servers[route.bare]
            before = server.cpu_s()
            load = send(
                server.address, route.path, route.bodies, seconds=seconds, connections=route.connections, core=core
            )
            found[route.name].loads.append(load)
            found[route.name].cpu_ms.append(1e3 * (server.cpu_s() - before) / max(load.requests, 1))
    return found


def at_half_load(server: Server, route: Route, rate: float, seconds: float, core: int) -> Load:
    """Requests at half the rate that a route was found to take, at random times."""
    delay_ms = 2e3 * _HALF_LOAD_CONNECTIONS / rate
    return send(
        server.address,
        route.path,
        route.bodies,
        seconds=seconds,
        connections=_HALF_LOAD_CONNECTIONS,
        core=core,
        delay_ms=delay_ms,
    )


def overloaded(server: Server, route: Route, rate: float, seconds: float, core: int) -> Overload:
    """Three times the requests that a route was found to take, with a look at the service's health meanwhile."""
    over, health = threading.Event(), list[float]()

    def watch() -> None:
        while not over.wait(0.05):
            health.append(_health_ms(server))

    watcher = threading.Thread(target=watch)
    before = _answered(server, route.path)
    watcher.start()
    load = send(
        server.address,
        route.path,
        route.bodies,
        seconds=seconds,
        connections=OVERLOAD_CONNECTIONS,
        core=core,
        # Less than the whole pause: answers take time too.
        delay_ms=0.7e3 * OVERLOAD_CONNECTIONS / (_OVERLOAD * rate),
        count=True,
    )
    over.set()
    watcher.join()
    time.sleep(1.0)
    ready = httpx.get(f"{server.address}/readyz", timeout=10).status_code == 200
    return Overload(load, _answered(server, route.path) - before, health, ready)


def _health_ms(server: Server) -> float:
    """How long /healthz takes on a connection of its own, which an HTTP client's start would be counted into."""
    url, began = urlsplit(server.address), time.perf_counter()
    connection = HTTPConnection(url.hostname or "", url.port, timeout=5)
    try:
        connection.request("GET", "/healthz")
        status = connection.getresponse().status
        return 1e3 * (time.perf_counter() - began) if status == 200 else math.inf
    except OSError:
        return math.inf
    finally:
        connection.close()


def _answered(server: Server, path: str) -> int:
    text = httpx.get(f"{server.address}/metrics", timeout=10).text
    wanted = f'shardwright_http_requests_total{{method="POST",route="{path}",status="200"}}'
    return next((int(float(line.split()[-1])) for line in text.splitlines() if line.startswith(wanted)), 0)
