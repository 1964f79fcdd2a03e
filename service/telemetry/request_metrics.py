"""Metrics of requests and of what was answered to them."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram

LATENCY_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Seconds; of whatever a caller waits for."""

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class RequestMetrics:
    """What is counted of requests."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Registers them."""
        self._requests = Counter(
            "shardwright_http_requests", "HTTP requests.", ["method", "route", "status"], registry=registry
        )
        self._latency = Histogram(
            "shardwright_http_request_seconds",
            "From a request's arrival to the end of its response.",
            ["method", "route"],
            buckets=LATENCY_BUCKETS,
            registry=registry,
        )
        self._problems = Counter(
            "shardwright_problems",
            "Problem details answered, by kind; planner_busy is what was shed.",
            ["kind"],
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

    def refusals(self, reasons: Iterable[str]) -> None:
        """Shows reasons why calls are not let in, of which no other may be counted, as none yet."""
        for reason in reasons:
            self._calls_refused.labels(reason)

    def refused(self, reason: str) -> None:
        """Counts a call that was not let in."""
        self._calls_refused.labels(reason).inc()
