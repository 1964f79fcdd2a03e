"""Prometheus metrics. Every label comes from a closed set, so that no request can add series without bound."""

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Info,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.registry import Collector

from service.telemetry.model_metrics import ModelMetrics
from service.telemetry.plan_metrics import PlanMetrics
from service.telemetry.request_metrics import RequestMetrics

# They would double the number of series, and tell what the process's start tells.
disable_created_metrics()  # type: ignore[no-untyped-call]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics(RequestMetrics, PlanMetrics, ModelMetrics):
    """What the service counts, in a registry of its own."""

    def __init__(self, registry: CollectorRegistry, version: str) -> None:
        """Registers all metrics.

        Args:
            registry: where; one service to a registry.
            version: of the service.
        """
        for theme in (RequestMetrics, PlanMetrics, ModelMetrics):
            theme.__init__(self, registry)
        self._registry = registry
        self.embedded_restarts = Counter(
            "shardwright_embedded_database_restarts",
            "Times that the embedded database was gone and was started again.",
            registry=registry,
        )
        ProcessCollector(registry=registry)
        Info("shardwright_build", "The running service.", registry=registry).info({"version": version})

    def add(self, collector: Collector) -> None:
        """Has each exposition ask a collector too."""
        self._registry.register(collector)

    def exposition(self) -> bytes:
        """All metrics in the text format of Prometheus."""
        return generate_latest(self._registry)
