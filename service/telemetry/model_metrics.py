"""Metrics of the models that serve, and of how their costs compare with what was observed."""

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from service.domain.versions import Version

_RATIO_BUCKETS = (0.25, 0.5, 0.67, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.25, 1.5, 2.0, 4.0)


class ModelMetrics:
    """What is counted of models."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Registers them."""
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
