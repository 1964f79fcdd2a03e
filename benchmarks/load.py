"""The service beside routes that only parse and return the same bodies, both on one core, under wrk on another.

Run: python -m benchmarks.load --write benchmarks/results
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

import httpx

from benchmarks.load_generator import write_bodies
from benchmarks.load_measures import Route, at_half_load, measured, overloaded
from benchmarks.load_report import BARE_ESTIMATE, BARE_PLAN, FRESH, PLACEMENTS, REPEATED, SAME, report
from benchmarks.machine import machine_line
from benchmarks.random_bodies import estimate_body, plan_body
from benchmarks.servers import Server, bare_routes, service

_PACKAGES = ("fastapi", "uvicorn", "pydantic", "numpy")
_JSON = {"content-type": "application/json"}


def routes(folder: Path) -> list[Route]:
    """What is compared; a bare route is followed by those of the service that it is compared with."""
    one = write_bodies(folder / "estimate-bodies", [estimate_body()])
    many = write_bodies(folder / "placements-bodies", [estimate_body(placement) for placement in range(1, 1_001)])
    plan = write_bodies(folder / "plan-bodies", [plan_body(algorithm="dim_greedy")])
    fresh = write_bodies(folder / "fresh-bodies", [plan_body(seed=seed) for seed in range(1, 1_001)])
    return [
        Route(BARE_ESTIMATE, "/estimate", many, bare=True),
        Route(SAME, "/estimate", one),
        Route(PLACEMENTS, "/estimate", many),
        Route(BARE_PLAN, "/plan", plan, bare=True),
        Route(REPEATED, "/plan", plan),
        Route(FRESH, "/plan", fresh, connections=2),
    ]


def _write_answers(folder: Path, server: Server, all_routes: list[Route]) -> None:
    """Has the bare routes return what the service does."""
    for route in all_routes:
        body = route.bodies.read_text().splitlines()[0]
        answer = httpx.post(f"{server.address}{route.path}", content=body, headers=_JSON, timeout=60).raise_for_status()
        if route.bare:
            (folder / f"{route.path[1:]}.json").write_bytes(answer.content)


def main() -> None:
    """Prints what was measured, and writes it where that is wanted; the exit status says whether all of it holds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="slices of time for each route")
    parser.add_argument("--seconds", type=float, default=5.0, help="of a slice")
    parser.add_argument("--core", type=int, default=0, help="of the servers, all their processes")
    parser.add_argument("--generator-core", type=int, default=1, help="of wrk")
    parser.add_argument("--write", type=Path, help="folder for load.md")
    given = parser.parse_args()
    if given.write and not given.write.is_dir():
        parser.error(f"--write: there is no folder {given.write}")
    machine = machine_line(_PACKAGES)
    os.sched_setaffinity(0, {given.generator_core})
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        all_routes = routes(folder)
        with service(folder, given.core) as served:
            _write_answers(folder, served, all_routes)
            with bare_routes(folder, given.core) as bare:
                servers = {False: served, True: bare}
                found = measured(servers, all_routes, given.rounds, given.seconds, given.generator_core)
                half = {
                    route.name: at_half_load(
                        servers[route.bare], route, found[route.name].rate, 4 * given.seconds, given.generator_core
                    )
                    for route in all_routes[:-1]
                }
                placements = all_routes[2]
                rate = found[placements.name].rate
                overload = overloaded(served, placements, rate, 4 * given.seconds, given.generator_core)
    text, holds = report(found, half, overload, machine)
    print(text)
    if given.write:
        (given.write / "load.md").write_text(text)
    sys.exit(0 if holds else 1)


if __name__ == "__main__":
    main()
