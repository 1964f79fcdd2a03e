"""What the load benchmark found, in words: a table, and whether each thing holds that it is to show."""

import math
import statistics
from collections.abc import Mapping

import numpy as np

from benchmarks.load_generator import Load
from benchmarks.load_measures import OVERLOAD_CONNECTIONS, Measured, Overload
from benchmarks.machine import command_line

BARE_ESTIMATE, SAME, PLACEMENTS = (
    "/estimate, bare",
    "/estimate, the same plan",
    "/estimate, another placement each time",
)
BARE_PLAN, REPEATED, FRESH = "/plan, bare", "/plan, repeated", "/plan, fresh (auto)"
"""Names of the routes."""


def report(
    found: Mapping[str, Measured], half: Mapping[str, Load], overload: Overload, machine: str
) -> tuple[str, bool]:
    """The report as Markdown, and whether all of it holds."""
    checks = _checks(found, half, overload)
    lines = [
        "# The service under load",
        "",
        f"`{command_line('benchmarks.load')}` on {machine}",
        "",
        "All processes of the service (API, planning, database) share one core, and so does the bare FastAPI",
        "application, which parses the same bodies with the same schemas and returns the service's answers; wrk runs",
        "on another core. Slices of time are in turn; rates are medians over the slices, with the lowest and the",
        "highest.",
        "Bodies have 100 tables without histograms on 8 devices. *Of bare* compares rates, then processor time for a",
        "request, which other work on the machine disturbs less; what is to hold must do so by both. How far the p99",
        "of the bare routes is from their median says how busy the machine was with other things.",
        "",
        "| route | requests/s | of bare | CPU ms a request | of bare | median ms | p99 ms |",
        "|---|---|---|---|---|---|---|",
        *(_row(name, found) for name in found),
        "",
        "At half of these rates, at random times:",
        "",
        "| route | requests/s | median ms | p99 ms | p99 / median |",
        "|---|---|---|---|---|",
        *(_half_row(name, load) for name, load in half.items()),
        "",
        _overload_text(found, overload),
        "",
        *(f"- {'holds' if holds else '**does not hold**'}: {text}" for text, holds in checks),
        "",
    ]
    return "\n".join(lines), all(holds for _, holds in checks)


def _bare(name: str) -> str:
    return BARE_ESTIMATE if name.startswith("/estimate") else BARE_PLAN


def _row(name: str, found: Mapping[str, Measured]) -> str:
    one, bare = found[name], found[_bare(name)]
    rates = [load.rate for load in one.loads]
    cpu, bare_cpu = statistics.median(one.cpu_ms), statistics.median(bare.cpu_ms)
    median, p99 = (statistics.median(getattr(load, part) for load in one.loads) for part in ("median_ms", "p99_ms"))
    digits = 0 if one.rate >= 10 else 2
    return (
        f"| {name} | {one.rate:.{digits}f} ({min(rates):.{digits}f} to {max(rates):.{digits}f}) | "
        f"{one.rate / bare.rate:.0%} | {cpu:.2f} | "
        f"{cpu / bare_cpu:.1f} x | {median:.1f} | {p99:.1f} |"
    )


def _share(one: Measured, bare: Measured) -> float:
    """What a route takes of what a bare one does: by rate or by processor time, whichever says less."""
    return min(one.rate / bare.rate, statistics.median(bare.cpu_ms) / statistics.median(one.cpu_ms))


def _half_row(name: str, load: Load) -> str:
    return (
        f"| {name} | {load.rate:.0f} | {load.median_ms:.2f} | {load.p99_ms:.2f} | {load.p99_ms / load.median_ms:.1f} |"
    )


def _overload_text(found: Mapping[str, Measured], overload: Overload) -> str:
    load, took, rate = overload.load, np.array(overload.health_ms), found[PLACEMENTS].rate
    return (
        f"At {load.rate / rate:.1f} x the rate of other placements that the service takes ({load.rate:.0f} requests/s "
        f"over {OVERLOAD_CONNECTIONS} connections): {load.accepted} were answered 200, {load.shed} 503 with "
        f"Retry-After, {load.shed_without_retry_after + load.other} otherwise, {load.broken} broke off; "
        f"{load.accepted / load.seconds / rate:.0%} of the rate without overload was kept up. "
        f"/healthz took {np.median(took):.0f} ms, at most {took.max():.0f} ms, in {len(took)} looks."
    )


def _checks(found: Mapping[str, Measured], half: Mapping[str, Load], overload: Overload) -> list[tuple[str, bool]]:
    load, share = overload.load, {name: _share(one, found[_bare(name)]) for name, one in found.items()}
    spread = {name: one.p99_ms / one.median_ms for name, one in half.items()}
    healthy = all(math.isfinite(took) and took <= 1_000 for took in overload.health_ms) and overload.ready
    refused = sum(load.refused + load.broken for one in found.values() for load in one.loads)
    return [
        ("/estimate of the same plan at 50% or more of the bare route's rate", share[SAME] >= 0.5),
        ("/estimate of other placements at 50% or more of the bare route's rate", share[PLACEMENTS] >= 0.5),
        ("p99 of /estimate of the same plan within 3 x its median at half load", spread[SAME] <= 3),
        ("p99 of /estimate of other placements within 3 x its median at half load", spread[PLACEMENTS] <= 3),
        ("a repeated /plan within 2 x of the bare route", share[REPEATED] >= 0.5),
        ("no request was refused or broke off without overload", refused == 0),
        ("three times what it takes was offered", load.rate >= 3 * found[PLACEMENTS].rate),
        (
            "beyond what it takes the service sheds with 503 and Retry-After, and nothing else goes wrong",
            load.shed > 0 and load.shed_without_retry_after == load.other == load.broken == 0,
        ),
        # What was under way when wrk closed its connections is counted by the service alone.
        (
            "what the service says that it answered came to the client",
            0 <= overload.counted - load.accepted <= OVERLOAD_CONNECTIONS,
        ),
        ("/healthz answers within a second all the while, and the service is ready after it", healthy),
    ]
