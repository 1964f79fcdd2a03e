"""A real Prometheus, in a hurry: it scrapes every two seconds, judges twice a second, and alerts wait for nothing."""

import json
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx
import yaml

from tests.api.processes import wait_for
from tests.telemetry.rules import ALERTS

_HURRY, _PATIENCE = "500ms", "2s"


class Prometheus:
    """What it has been told and what it makes of it."""

    def __init__(self, port: int) -> None:
        self._client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30, trust_env=False)

    def answers(self) -> bool:
        try:
            return self._client.get("/-/ready").status_code == 200
        except httpx.TransportError:
            return False

    def close(self) -> None:
        """Closes the connections to it."""
        self._client.close()

    def value(self, query: str) -> float | None:
        """The first value that a query comes to now."""
        found = self._client.get("/api/v1/query", params={"query": query}).json()["data"]["result"]
        return float(found[0]["value"][1]) if found else None

    def firing(self) -> set[str]:
        """Names of the alerts that fire, or would if they waited no longer."""
        return {alert["labels"]["alertname"] for alert in self._client.get("/api/v1/alerts").json()["data"]["alerts"]}


def _hurried_rules() -> str:
    rules = yaml.safe_load(ALERTS.read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            rule["for"] = "0s"
    return yaml.safe_dump(rules)


@contextmanager
def prometheus(folder: Path, targets: Mapping[str, int]) -> Iterator[Prometheus]:
    """One that has the shipped rules and scrapes services by instance and port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (folder / "alerts.yml").write_text(_hurried_rules())
    labelled = [{"targets": [f"127.0.0.1:{at}"], "labels": {"instance": name}} for name, at in targets.items()]
    configuration = {
        "global": {"scrape_interval": _PATIENCE, "scrape_timeout": _PATIENCE, "evaluation_interval": _HURRY},
        "rule_files": ["alerts.yml"],
        "scrape_configs": [
            {"job_name": "shardwright", "static_configs": labelled},
        ],
    }
    path = folder / "prometheus.json"
    path.write_text(json.dumps(configuration))
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={path}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stderr=log,
        )
    found = Prometheus(port)
    try:
        wait_for(found.answers, 60)
        yield found
    finally:
        found.close()
        process.terminate()
        process.wait(60)
