"""Metrics of trainings, read from the database once a scrape: every replica shows the same."""

import logging
from collections.abc import Callable, Iterable, Sequence

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from service.domain.trainings import Outcome

_log = logging.getLogger(__name__)


class TrainingCollector(Collector):
    """Asks for the last outcomes whenever metrics are read; without them it says only that.

    Labels are bounded: hardware has outcomes only where there is a model or a measurement of it.
    """

    def __init__(self, last: Callable[[], Sequence[tuple[Outcome, float]]]) -> None:
        """Reads nothing yet.

        Args:
            last: the last outcome of each model, and how many seconds ago that was; may fail.
        """
        self._last = last

    def describe(self) -> Iterable[Metric]:
        """Nothing: the database need not be there when metrics are set up."""
        return []

    def collect(self) -> Iterable[Metric]:
        """The outcomes of now."""
        readable = GaugeMetricFamily("shardwright_trainings_readable", "Whether outcomes of trainings could be read.")
        try:
            found = self._last()
        except Exception as error:
            _log.warning("outcomes of trainings cannot be read", extra={"fields": {"cause": str(error)}})
            readable.add_metric([], 0)
            yield readable
            return
        readable.add_metric([], 1)
        yield readable
        last = GaugeMetricFamily(
            "shardwright_training_last",
            "What the last training of a model came to: promoted, refused, failed or nothing_new.",
            labels=["hardware", "kind", "outcome"],
        )
        age = GaugeMetricFamily(
            "shardwright_training_age_seconds", "Since the last training of a model ended.", labels=["hardware", "kind"]
        )
        for outcome, seconds in found:
            last.add_metric([outcome.hardware, outcome.model, outcome.ended.value], 1)
            age.add_metric([outcome.hardware, outcome.model], seconds)
        yield last
        yield age
