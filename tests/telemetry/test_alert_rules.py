"""Each alert fires on the series that it is about and on no healthy ones; all queries are of metrics that exist."""

import re
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.api.support import request
from tests.telemetry.rules import (
    ALERTS,
    CONFIGURATION,
    DASHBOARD,
    alert_rules,
    dashboard_queries,
    needs_prometheus,
    promtool,
)

UP = {'up{job="shardwright",instance="a"}': "1x"}
GROWING = "0+1x"
# Series that make each alert fire, beside those of a healthy service, which they replace. 5x is 5 all the time.
CAUSES: dict[str, list[dict[str, str]]] = {
    "ShardwrightDown": [
        {'up{job="shardwright",instance="a"}': "0x"},
        {'up{job="shardwright",instance="a"}': "_x"},
    ],
    "ShardwrightNotReady": [{'shardwright_ready{instance="a",part="models"}': "0x"}],
    "ShardwrightDatabaseAway": [{'shardwright_ready{instance="a",part="database"}': "0x"}],
    "ShardwrightHighErrorRate": [{'shardwright_http_requests_total{route="/plan",status="500"}': GROWING}],
    "ShardwrightShedding": [{'shardwright_problems_total{kind="planner_busy"}': GROWING}],
    "ShardwrightSlowPlans": [
        {
            'shardwright_http_request_seconds_bucket{method="POST",route="/plan",le="10.0"}': "0+9x",
            'shardwright_http_request_seconds_bucket{method="POST",route="/plan",le="30.0"}': "0+10x",
            'shardwright_http_request_seconds_bucket{method="POST",route="/plan",le="+Inf"}': "0+10x",
        }
    ],
    "ShardwrightPlannersDying": [{'shardwright_planner_deaths_total{instance="a"}': GROWING}],
    "ShardwrightEmbeddedDatabaseRestarted": [
        {'shardwright_embedded_database_restarts_total{instance="a"}': "0x100 1x"}
    ],
    "ShardwrightMemoryHigh": [{'shardwright_planner_resident_memory_bytes{instance="a",job="shardwright"}': "900x"}],
    "ShardwrightFileDescriptorsHigh": [{'process_open_fds{instance="a",job="shardwright"}': "90x"}],
    "ShardwrightModelLoadFailing": [
        {'shardwright_model_load_failures_total{instance="a",hardware="h",kind="compute"}': GROWING}
    ],
    "ShardwrightPredictionDrift": [
        {'shardwright_observed_over_predicted_sum{hardware="h",part="total"}': "0+1.3x"},
        {'shardwright_observed_over_predicted_sum{hardware="h",part="total"}': "0+0.7x"},
    ],
    "ShardwrightTrainingFailed": [{'shardwright_training_last{hardware="h",kind="compute",outcome="failed"}': "1x"}],
    "ShardwrightTrainingOverdue": [{'shardwright_training_age_seconds{hardware="h",kind="compute"}': "172900x"}],
    "ShardwrightTrainingMissing": [{'shardwright_training_age_seconds{hardware="h",kind="compute"}': "_x"}],
    "ShardwrightNoLiveWorker": [
        {'shardwright_profiles{hardware="h",state="queued"}': "2x", 'shardwright_workers_live{hardware="h"}': "0x"},
        {'shardwright_profiles{hardware="h",state="queued"}': "2x", 'shardwright_workers_live{hardware="h"}': "_x"},
    ],
    "ShardwrightProfileQueueOld": [{'shardwright_profile_oldest_seconds{hardware="h"}': "21700x"}],
    "ShardwrightProfilesParked": [{'shardwright_profiles_parked_within_day{hardware="h"}': "1x"}],
    "ShardwrightProfilesStalled": [{'shardwright_profiles_stalled{hardware="h"}': "1x"}],
}
HEALTHY = {
    **UP,
    'shardwright_ready{instance="a",part="models"}': "1x",
    'shardwright_ready{instance="a",part="database"}': "1x",
    'shardwright_http_requests_total{route="/plan",status="200"}': "0+10x",
    # The database is away now and then: not what an unexpected error is.
    'shardwright_http_requests_total{route="/plan",status="503"}': GROWING,
    'shardwright_http_requests_total{route="/plan",status="500"}': "0x",
    'shardwright_problems_total{kind="planner_busy"}': "0x",
    'shardwright_problems_total{kind="invalid_request"}': GROWING,
    'shardwright_http_request_seconds_bucket{method="POST",route="/plan",le="10.0"}': "0+10x",
    'shardwright_http_request_seconds_bucket{method="POST",route="/plan",le="30.0"}': "0+10x",
    'shardwright_http_request_seconds_bucket{method="POST",route="/plan",le="+Inf"}': "0+10x",
    'shardwright_planner_deaths_total{instance="a"}': "1x",
    'shardwright_embedded_database_restarts_total{instance="a"}': "3x",
    'process_resident_memory_bytes{instance="a",job="shardwright"}': "100x",
    'shardwright_planner_resident_memory_bytes{instance="a",job="shardwright"}': "300x",
    'shardwright_memory_limit_bytes{instance="a",job="shardwright"}': "1000x",
    'process_open_fds{instance="a",job="shardwright"}': "30x",
    'process_max_fds{instance="a",job="shardwright"}': "100x",
    'shardwright_model_load_failures_total{instance="a",hardware="h",kind="compute"}': "7x",
    'shardwright_observed_over_predicted_sum{hardware="h",part="total"}': "0+1.1x",
    'shardwright_observed_over_predicted_count{hardware="h",part="total"}': GROWING,
    'shardwright_training_last{hardware="h",kind="compute",outcome="refused"}': "1x",
    'shardwright_training_age_seconds{hardware="h",kind="compute"}': "80000x",
    'shardwright_profiles_measured_total{hardware="h"}': "40x",
    'shardwright_profiles{hardware="h",state="queued"}': "5x",
    # Parked long ago, and looked at.
    'shardwright_profiles{hardware="h",state="parked"}': "3x",
    'shardwright_profiles_parked_within_day{hardware="h"}': "0x",
    'shardwright_workers_live{hardware="h"}': "1x",
    'shardwright_profile_oldest_seconds{hardware="h"}': "60x",
    'shardwright_profiles_stalled{hardware="h"}': "0x",
}
MINUTES = 130
LONG = {"ShardwrightTrainingMissing": 2 * 24 * 60 + MINUTES}
"""Longer than a rule waits; by alert where it waits longer than an hour."""


def _case(alert: str, cause: dict[str, str], firing: bool) -> dict[str, Any]:
    series, minutes = HEALTHY | cause, LONG.get(alert, MINUTES)
    return {
        "interval": "1m",
        "input_series": [
            {"series": name, "values": values + (str(minutes) if values.endswith("x") else "")}
            for name, values in series.items()
        ],
        "promql_expr_test": [
            {
                "expr": f'count(ALERTS{{alertname=~"{alert}",alertstate="firing"}}) > bool 0',
                "eval_time": f"{minutes - 10}m",
                "exp_samples": [{"labels": "{}", "value": 1}] if firing else [],
            }
        ],
    }


@needs_prometheus
def test_every_alert_fires_for_its_cause_and_none_does_without_one(tmp_path: Path) -> None:
    assert {rule["alert"] for rule in alert_rules()} == CAUSES.keys()
    cases = [_case(alert, cause, True) for alert, causes in CAUSES.items() for cause in causes]
    tests = {"rule_files": [str(ALERTS)], "evaluation_interval": "5m", "tests": [_case(".+", {}, False), *cases]}
    path = tmp_path / "alerts.yml"
    path.write_text(yaml.safe_dump(tests))
    promtool("test", "rules", str(path))


@needs_prometheus
def test_the_shipped_files_are_valid() -> None:
    promtool("check", "rules", str(ALERTS))
    promtool("check", "config", str(CONFIGURATION))


@needs_prometheus
def test_what_a_running_service_serves_is_by_convention(client: httpx.Client) -> None:
    client.post("/plan", json=request())
    client.get("/plans/none")
    assert promtool("check", "metrics", given=client.get("/metrics").text) == ""


@needs_prometheus
def test_queries_of_the_dashboard_are_valid(tmp_path: Path) -> None:
    rules = [{"record": f"panel_{i}", "expr": query} for i, query in enumerate(dashboard_queries())]
    path = tmp_path / "dashboard.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    promtool("check", "rules", str(path))


def _metrics(query: str) -> set[str]:
    return set(re.findall(r"\b(?:shardwright|process)_[a-z_]+\b", query))


@pytest.mark.parametrize("where", [ALERTS, DASHBOARD], ids=lambda path: path.name)
def test_queries_are_of_metrics_that_a_running_service_has(client: httpx.Client, where: Path) -> None:
    queries = dashboard_queries() if where is DASHBOARD else [str(rule["expr"]) for rule in alert_rules()]
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", client.get("/metrics").text, re.MULTILINE))
    known = set(kinds)
    ends = ("_bucket", "_sum", "_count")
    known |= {name + end for name, kind in kinds.items() if kind == "histogram" for end in ends}
    named = set().union(*map(_metrics, queries))
    assert len(named) > 15
    assert named <= known
