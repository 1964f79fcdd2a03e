"""Metrics of the profile queue, read from the database once a scrape: every replica shows the same."""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

_log = logging.getLogger(__name__)


class QueueFigures(Protocol):
    """What is shown; see ``service.storage.workers.QueueState``."""

    @property
    def profiles(self) -> Mapping[tuple[str, str], int]: ...  # noqa: D102

    @property
    def measured(self) -> Mapping[str, int]: ...  # noqa: D102

    @property
    def failures(self) -> Mapping[str, int]: ...  # noqa: D102

    @property
    def oldest_s(self) -> Mapping[str, float]: ...  # noqa: D102

    @property
    def stalled(self) -> Mapping[str, int]: ...  # noqa: D102

    @property
    def parked_of_late(self) -> Mapping[str, int]: ...  # noqa: D102

    @property
    def live_workers(self) -> Mapping[str, int]: ...  # noqa: D102

    @property
    def heartbeat_s(self) -> Mapping[str, float]: ...  # noqa: D102


class QueueCollector(Collector):
    """Asks for the queue's figures whenever metrics are read; without them it says only that.

    Labels are bounded: hardware comes into these tables only with a worker that serves it.
    """

    def __init__(self, figures: Callable[[], QueueFigures]) -> None:
        """Reads nothing yet; ``figures`` may fail."""
        self._figures = figures

    def describe(self) -> Iterable[Metric]:
        """Nothing: the database need not be there when metrics are set up."""
        return []

    def collect(self) -> Iterable[Metric]:
        """The figures of now."""
        readable = GaugeMetricFamily("shardwright_queue_readable", "Whether the queue's figures could be read.")
        try:
            found = self._figures()
        except Exception as error:
            _log.warning("the queue's figures cannot be read", extra={"fields": {"cause": str(error)}})
            readable.add_metric([], 0)
            yield readable
            return
        readable.add_metric([], 1)
        yield readable
        yield from _families(found)


def _families(found: QueueFigures) -> Iterable[Metric]:
    profiles = GaugeMetricFamily(
        "shardwright_profiles", "Profiles by state; queued is the queue's depth.", labels=["hardware", "state"]
    )
    for (hardware, state), count in found.profiles.items():
        profiles.add_metric([hardware, state], count)
    yield profiles
    counters = [
        ("shardwright_profiles_measured", "Times that a profile was measured.", found.measured),
        ("shardwright_profile_failures", "Tries to measure a profile that failed.", found.failures),
    ]
    for name, text, counts in counters:
        counter = CounterMetricFamily(name, text, labels=["hardware"])
        for hardware, count in counts.items():
            counter.add_metric([hardware], count)
        yield counter
    gauges: list[tuple[str, str, Mapping[str, float]]] = [
        (
            "shardwright_workers_live",
            "Workers with a heartbeat; 0 where there was one within a week.",
            found.live_workers,
        ),
        (
            "shardwright_worker_heartbeat_age_seconds",
            "Since the last heartbeat of any worker; without one while all have ended.",
            found.heartbeat_s,
        ),
        (
            "shardwright_profile_oldest_seconds",
            "Age of the oldest profile that waits or is being measured; 0 without any.",
            found.oldest_s,
        ),
        (
            "shardwright_profiles_stalled",
            "Profiles whose job is gone, or with a worker without heartbeats; the next sweep finds them.",
            found.stalled,
        ),
        (
            "shardwright_profiles_parked_within_day",
            "Profiles that failed at every try, the last of them within a day, and were not asked for again.",
            found.parked_of_late,
        ),
    ]
    for name, text, values in gauges:
        gauge = GaugeMetricFamily(name, text, labels=["hardware"])
        for hardware, value in values.items():
            gauge.add_metric([hardware], value)
        yield gauge
