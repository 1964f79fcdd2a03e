"""Metrics of plans, of the processes that make them, and of the tables that they are of."""

from collections.abc import Sequence
from math import isfinite

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from service.domain.plan import Algorithm
from service.telemetry.request_metrics import LATENCY_BUCKETS

_NOVELTY_BUCKETS = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0)


class PlanMetrics:
    """What is counted of plans."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Registers them."""
        self._plans = Counter(
            "shardwright_plans",
            "Planning questions by outcome: a plan's status, stored, shared with another request, given to the same "
            "launch before, or a kind of error.",
            ["algorithm", "outcome"],
            registry=registry,
        )
        self._planning = Histogram(
            "shardwright_planning_seconds",
            "From a planning question's arrival to its plan; stored answers are left out.",
            ["algorithm"],
            buckets=LATENCY_BUCKETS,
            registry=registry,
        )
        self._novelty = Histogram(
            "shardwright_table_novelty",
            "How far the tables of new plans are from what was measured, where anything was.",
            ["hardware"],
            buckets=_NOVELTY_BUCKETS,
            registry=registry,
        )
        self._unmeasured = Counter(
            "shardwright_tables_unmeasured",
            "Tables of new plans for hardware on which nothing was measured.",
            ["hardware"],
            registry=registry,
        )
        self._unsaved = Counter(
            "shardwright_plans_unsaved",
            "Plans answered without being stored: the database was away.",
            registry=registry,
        )
        self._novel = Counter(
            "shardwright_novel_tables",
            "Tables of answers that are unlike those measured, by what became of measuring them: queued, left_out "
            "(known, or beyond the quota), no_worker, failed, or dropped.",
            ["outcome"],
            registry=registry,
        )
        self.planner_running = Gauge(
            "shardwright_planner_running", "Requests in a planning process.", registry=registry
        )
        self.planner_waiting = Gauge(
            "shardwright_planner_waiting", "Requests that wait for a planning process.", registry=registry
        )
        self.planner_deaths = Counter(
            "shardwright_planner_deaths", "Planning processes that died or were stuck.", registry=registry
        )

    def plan_made(self, algorithm: Algorithm, outcome: str, seconds: float) -> None:
        """Counts a plan that was made now, and the time that it took."""
        self.plan_outcome(algorithm, outcome)
        self._planning.labels(algorithm.value).observe(seconds)

    def plan_outcome(self, algorithm: Algorithm, outcome: str) -> None:
        """Counts a planning question by how it ended; outcomes are statuses, ``stored`` and kinds of errors."""
        self._plans.labels(algorithm.value, outcome).inc()

    def tables_planned(self, hardware: str, novelty: Sequence[float]) -> None:
        """Counts the tables of a plan that was made now by their novelty.

        Args:
            hardware: that cost models are loaded for, so one of few.
            novelty: of each table; infinite ones are counted by themselves, as they have no sum.
        """
        histogram, unmeasured = self._novelty.labels(hardware), self._unmeasured.labels(hardware)
        for score in novelty:
            if isfinite(score):
                histogram.observe(score)
            else:
                unmeasured.inc()

    def novel_tables(self, outcome: str, count: int) -> None:
        """Counts tables that are unlike those measured by what became of measuring them."""
        self._novel.labels(outcome).inc(count)

    def plan_unsaved(self) -> None:
        """Counts a plan that the database could not take."""
        self._unsaved.inc()
