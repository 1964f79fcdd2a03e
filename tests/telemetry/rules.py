"""The shipped alert rules and dashboard, and Prometheus's own tool to check them with."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
ALERTS = ROOT / "deploy/prometheus/alerts.yml"
CONFIGURATION = ROOT / "deploy/prometheus/prometheus.yml"
DASHBOARD = ROOT / "deploy/grafana/dashboard.json"
RUNBOOK = ROOT / "docs/operations.md"

needs_prometheus = pytest.mark.skipif(
    not (shutil.which("prometheus") and shutil.which("promtool")),
    reason="prometheus and promtool are not installed (Debian's package prometheus has both)",
)


def alert_rules() -> list[dict[str, Any]]:
    """All alerts, in their order."""
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def dashboard_queries() -> list[str]:
    """All queries of the dashboard, with its rate interval as Grafana would fill it in."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    found = [target["expr"] for panel in panels for target in panel.get("targets", [])]
    return [query.replace("$__rate_interval", "1m") for query in found]


def promtool(*arguments: str, given: str = "") -> str:
    """What promtool says; fails where it finds fault."""
    done = subprocess.run(["promtool", *arguments], input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr
