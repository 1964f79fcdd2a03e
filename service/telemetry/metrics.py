"""Prometheus metrics. Every label comes from a closed set, so that no request can add series without bound."""

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.registry import Collector

from service.domain.plan import Algorithm
from service.domain.versions import Version

_LATENCY_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_NOVELTY_BUCKETS = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0)
_RATIO_BUCKETS = (0.25, 0.5, 0.67, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.25, 1.5, 2.0, 4.0)
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

# They would double the number of series, and tell what the process's start tells.
disable_created_metrics()  # type: ignore[no-untyped-call]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """What the service counts, in a registry of its own."""

    def __init__(self, registry: CollectorRegistry, version: str) -> None:
        """Registers all metrics.

        Args:
            registry: where; one service to a registry.
            version: of the service.
        """
        self._registry = registry
        self._requests = Counter(
            "shardwright_http_requests", "HTTP requests.", ["method", "route", "status"], registry=registry
        )
        self._latency = Histogram(
            "shardwright_http_request_seconds",
            "From a request's arrival to the end of its response.",
            ["method", "route"],
            buckets=_LATENCY_BUCKETS,
            registry=registry,
        )
        self._problems = Counter(
            "shardwright_problems",
            "Problem details answered, by kind; planner_busy is what was shed.",
            ["kind"],
            registry=registry,
        )
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
            buckets=_LATENCY_BUCKETS,
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
        self._observed = Counter(
            "shardwright_observed_costs",
            "Costs that launchers measured, by whether they are within the 90% interval: yes, no, or untold.",
            ["hardware", "part", "within"],
            registry=registry,
        )
        self._drift = Histogram(
            "shardwright_observed_over_predicted",
            "What launchers measured over what was predicted when the plan was made.",
            ["hardware", "part"],
            buckets=_RATIO_BUCKETS,
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
        self._models = Gauge(
            "shardwright_model_info", "Versions that serve.", ["hardware", "kind", "version"], registry=registry
        )
        self._followed = Counter(
            "shardwright_promotions_followed",
            "Promotions and rollbacks after which another version serves here.",
            ["hardware", "kind"],
            registry=registry,
        )
        self._refused = Counter(
            "shardwright_model_load_failures",
            "Failures to load a promoted version, which is tried again every few seconds; another serves meanwhile.",
            ["hardware", "kind"],
            registry=registry,
        )
        self._calls_refused = Counter(
            "shardwright_calls_refused",
            "Calls that were not let in: without a key (missing), with one that is malformed, unknown, revoked or "
            "expired, or that lacks the scope or was used too often (rate), or through a proxy or a page where keys "
            "are not required.",
            ["reason"],
            registry=registry,
        )
        self.embedded_restarts = Counter(
            "shardwright_embedded_database_restarts",
            "Times that the embedded database was gone and was started again.",
            registry=registry,
        )
        ProcessCollector(registry=registry)
        Info("shardwright_build", "The running service.", registry=registry).info({"version": version})

    def request_done(self, method: str, route: str | None, status: int, seconds: float) -> None:
        """Counts a request.

        Args:
            method: as sent; those that HTTP does not name count as ``other``.
            route: template of the route; None counts as ``unmatched``.
            status: of the response.
            seconds: from arrival to the end of the response.
        """
        method, route = method if method in _METHODS else "other", route or "unmatched"
        self._requests.labels(method, route, str(status)).inc()
        self._latency.labels(method, route).observe(seconds)

    def problems_known(self, kinds: Iterable[str]) -> None:
        """Shows each kind of problem from the beginning, so that the first one is seen as an increase."""
        for kind in kinds:
            self._problems.labels(kind)

    def problem_answered(self, kind: str) -> None:
        """Counts a problem; kinds are those of errors, so a closed set."""
        self._problems.labels(kind).inc()

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

    def add(self, collector: Collector) -> None:
        """Has each exposition ask a collector too."""
        self._registry.register(collector)

    def plan_unsaved(self) -> None:
        """Counts a plan that the database could not take."""
        self._unsaved.inc()

    def model_serves(self, version: Version, before: Version | None) -> None:
        """Shows a version that serves in the place of another one."""
        self._models.labels(*version.of, str(version)).set(1)
        if before is not None:
            self._models.remove(*before.of, str(before))

    def promotion_followed(self, hardware: str, kind: str) -> None:
        """Counts a promotion that took effect here."""
        self._followed.labels(hardware, kind).inc()

    def promotion_refused(self, hardware: str, kind: str) -> None:
        """Counts a failure to load a promoted version."""
        self._refused.labels(hardware, kind).inc()

    def refusals(self, reasons: Iterable[str]) -> None:
        """Shows reasons why calls are not let in, of which no other may be counted, as none yet."""
        for reason in reasons:
            self._calls_refused.labels(reason)

    def refused(self, reason: str) -> None:
        """Counts a call that was not let in."""
        self._calls_refused.labels(reason).inc()

    def plan_observed(self, hardware: str, costs: Mapping[str, tuple[float | None, bool | None]]) -> None:
        """Counts a new observation of a rank.

        Args:
            hardware: of a stored plan, so one of few.
            costs: by part, measured over predicted (None where nothing was predicted), and whether what was measured
                is within its interval (None where none was told).
        """
        for part, (ratio, within) in costs.items():
            told = "untold" if within is None else "yes" if within else "no"
            self._observed.labels(hardware, part, told).inc()
            if ratio is not None:
                self._drift.labels(hardware, part).observe(ratio)

    def exposition(self) -> bytes:
        """All metrics in the text format of Prometheus."""
        return generate_latest(self._registry)
