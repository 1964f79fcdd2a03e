"""What a service process writes: lines of JSON, from all of its parts, with what an incident needs and no more."""

import json
from pathlib import Path
from typing import Any

from sqlalchemy import Engine

from service.domain.access import NewKey
from service.domain.callers import Scope
from service.storage.api_keys import ApiKeyRepository
from service.storage.audit import AuditTrail
from tests.api.processes import wait_for
from tests.api.support import GIB, request
from tests.telemetry.served import serving

SECRET = "hunter2-not-to-be-seen"


def _lines(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


def test_every_line_is_json_and_tells_of_a_request_without_its_secrets(
    database_url: str, engine: Engine, tmp_path: Path
) -> None:
    key, secret = ApiKeyRepository(engine, AuditTrail(engine)).create(NewKey("ops", frozenset({Scope.PLAN})), "a test")
    with serving(tmp_path / "log", DATABASE_URL=database_url, SHARDWRIGHT_LOG_LEVEL="debug") as served:
        headers = {"X-Request-ID": "mine", "Authorization": f"Bearer {secret}", "Cookie": SECRET}
        broken = request(
            tables=[{**request()["tables"][0], "name": SECRET}],
            devices={"count": 2, "memory_bytes": GIB, "hardware": "broken"},
        )
        assert served.client.post(f"/plan?key={SECRET}", json=broken, headers=headers).status_code == 500
        served.client.get("/plans/none", headers={"X-Request-ID": "other"})
        assert served.client.get("/models", headers={"Authorization": f"Bearer {SECRET}"}).status_code == 401
        served.client.post("/plan", content=b'{"a": "' + SECRET.encode(), headers={"Content-Type": "application/json"})
        wait_for(lambda: served.log.read_text().count('"service.access"') >= 5)
        assert served.stop() == 0
    lines = _lines(served.log)
    for hidden in (SECRET, secret):
        assert hidden not in served.log.read_text()
    assert {"uvicorn.error", "service.wiring", "service.access"} <= {line["logger"] for line in lines}
    assert all(line.keys() >= {"time", "level", "logger", "message"} for line in lines)

    (access,) = [line for line in lines if line["logger"] == "service.access" and line.get("request_id") == "mine"]
    assert (access["method"], access["route"], access["status"]) == ("POST", "/plan", 500)
    assert (access["client"], access["problem"]) == ("127.0.0.1", "internal_error")
    assert access["duration_ms"] > 0
    assert (access["caller"], access["key"]) == ("ops", key.id)
    (error,) = [line for line in lines if line["level"] == "error"]
    assert error["request_id"] == "mine"
    assert error["exception"].startswith("Traceback")
    assert "LookupError" in error["exception"]
    (missed,) = [line for line in lines if line.get("request_id") == "other"]
    assert (missed["problem"], missed["caller"], missed["key"]) == ("plan_not_found", "anonymous", None)
