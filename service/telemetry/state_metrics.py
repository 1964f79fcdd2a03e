"""Metrics of the state that the service is in, looked at once a scrape."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

import psutil
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

_log = logging.getLogger(__name__)


class _Check(Protocol):
    @property
    def usable(self) -> bool: ...


class ReadinessCollector(Collector):
    """Shows what /readyz says; its parts are the closed set of labels. A part that cannot be looked at is not ready."""

    def __init__(self, checks: Mapping[str, Callable[[], _Check]]) -> None:
        """Looks at nothing yet."""
        self._checks = checks

    def describe(self) -> Iterable[Metric]:
        """Nothing: no part is looked at before it is asked for."""
        return []

    def collect(self) -> Iterable[Metric]:
        """Each part as it is now."""
        ready = GaugeMetricFamily("shardwright_ready", "Whether a part of the service can be used.", labels=["part"])
        for part, check in self._checks.items():
            ready.add_metric([part], _usable(part, check))
        yield ready


def _usable(part: str, check: Callable[[], _Check]) -> bool:
    try:
        return check().usable
    except Exception as error:
        _log.warning("a part cannot be looked at", extra={"fields": {"part": part, "cause": str(error)}})
        return False


class MemoryCollector(Collector):
    """Memory of the planning processes together, and what the whole service may take.

    Processes have no series of their own, so that none outlives one.
    """

    def __init__(self, pids: Callable[[], Sequence[int]], limit_bytes: int) -> None:
        """Looks at nothing yet.

        Args:
            pids: of the planning processes.
            limit_bytes: what the service may take.
        """
        self._pids = pids
        self._limit_bytes = limit_bytes

    def describe(self) -> Iterable[Metric]:
        """Nothing: there may be no planning process yet."""
        return []

    def collect(self) -> Iterable[Metric]:
        """The figures of now."""
        pids = self._pids()
        yield GaugeMetricFamily(
            "shardwright_planner_processes", "Planning processes.", value=sum(map(psutil.pid_exists, pids))
        )
        yield GaugeMetricFamily(
            "shardwright_planner_resident_memory_bytes",
            "Resident memory of all planning processes.",
            value=sum(map(_resident_bytes, pids)),
        )
        yield GaugeMetricFamily(
            "shardwright_memory_limit_bytes",
            "What the service's process and the planning processes may take together.",
            value=self._limit_bytes,
        )


def _resident_bytes(pid: int) -> int:
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.NoSuchProcess:
        return 0
