"""A service as a process, with a known key and a known database password: neither is anywhere but where it belongs."""

import json
import subprocess
import sys
from pathlib import Path

import httpx
from sqlalchemy import Engine, text
from sqlalchemy.engine import make_url

from service.domain.access import NewKey, secret_hash
from service.domain.callers import Scope
from service.storage.api_keys import ApiKeyRepository
from service.storage.audit import AuditTrail
from tests.api.keyed import hostile_headers, hostile_values, raw_answer
from tests.api.processes import planning_processes, wait_for
from tests.api.support import kind, request
from tests.api.test_process import Served, started

PASSWORD = "hunter2-of-the-database"


def _failures(client: httpx.Client, key: str) -> dict[str, int]:
    """Every kind of error that a caller with a key can bring about, by what it is called, and its status."""
    body = request()
    asked = {
        "not_found": client.get(f"/none/{'x' * 9}"),
        "method_not_allowed": client.put("/plan"),
        "invalid_request": client.post("/plan", json={"tables": []}),
        "unsupported_media_type": client.post("/plan", content=b"x", headers={"content-type": "text/plain"}),
        "body_too_large": client.post(
            "/plan", content=b'"' + b"x" * 9_000_000, headers={"content-type": "application/json"}
        ),
        "unknown_hardware": client.post("/plan", json=request(devices={**body["devices"], "hardware": "none"})),
        "internal_error": client.post("/plan", json=request(devices={**body["devices"], "hardware": "broken"})),
        "infeasible": client.post("/plan", json=request(devices={**body["devices"], "memory_bytes": 1})),
        "plan_not_found": client.get(f"/plans/{'0' * 32}"),
        "profile_request_not_found": client.get(f"/profiles/{'0' * 32}"),
        "no_worker": client.post("/profiles", json={**_profiles(), "hardware": "fake"}),
        "unknown_model_version": client.post("/models/fake/compute/99/promote", json={}),
        "nothing_to_roll_back_to": client.post("/models/fake/compute/rollback", json={}),
    }
    for name, answer in asked.items():
        assert kind(answer) == name, answer.text
        assert key not in answer.text
    return {name: answer.status_code for name, answer in asked.items()}


def _profiles() -> dict[str, object]:
    body = request()
    return {name: body[name] for name in ("tables", "global_batch_size", "optimizer")}


def test_no_key_and_no_password_is_in_a_log_an_error_a_metric_or_a_title(
    database_url: str, engine: Engine, tmp_path: Path
) -> None:
    with_password = make_url(database_url).set(password=PASSWORD).render_as_string(hide_password=False)
    keys = ApiKeyRepository(engine, AuditTrail(engine))
    with started(tmp_path / "data", DATABASE_URL=with_password, SHARDWRIGHT_REQUIRE_KEYS="true") as served:
        wait_for(served.answers, 60)
        assert "there is none: run `shardwright keys create NAME --scope admin`" in served.log.read_text()
        admin, secret = keys.create(NewKey("ops", frozenset({Scope.ADMIN})), "a test")
        _, observer = keys.create(NewKey("seer", frozenset({Scope.OBSERVE}), burst=2, requests_per_minute=1), "a test")
        served.client.headers["Authorization"] = f"Bearer {secret}"
        assert served.client.post("/plan", json=request()).json()["saved"] is True
        assert _failures(served.client, secret)["internal_error"] == 500
        told = _refusals(served, secret, observer)
        told += served.client.get("/metrics").text + served.client.get("/readyz").text
        _break_the_schema(served, engine)
        keys.revoke(admin.id, "a test")
        wait_for(lambda: served.client.get("/models").status_code == 401, 10)
        pids = (served.process.pid, *planning_processes(served.process.pid))
        told += "".join(
            Path(f"/proc/{pid}/cmdline").read_text() + Path(f"/proc/{pid}/comm").read_text() for pid in pids
        )
        assert served.stop() == 0
    log = served.log.read_text()
    assert all(json.loads(line)["level"] for line in log.splitlines())
    assert "Traceback" in log
    assert "ops" in log
    for hidden in (secret, observer, PASSWORD, secret_hash(secret.encode()), secret[4:24]):
        assert hidden not in log + told
    with engine.connect() as connection:
        tables = [connection.execute(text(f"SELECT * FROM {name}")).all() for name in ("api_keys", "audit_log")]
    rows = str(tables)
    assert "ops" in rows
    assert secret not in rows
    assert observer not in rows


def _refusals(served: Served, secret: str, observer: str) -> str:
    """Hostile keys, 64 KiB among them, and keys that are not for the call or are used too often; what was answered."""
    values = [*hostile_values(secret.encode()), b"x" * 65_536]
    answers = [raw_answer(served.port, headers) for headers in [[], *hostile_headers(secret.encode(), values)]]
    assert set(answers) == {answers[0]}
    assert answers[0][0] == 401
    assert b"server" not in answers[0][1]
    seer = {"Authorization": f"Bearer {observer}"}
    path = f"/plans/{'0' * 32}/observations"
    others = [served.client.get(path, headers=seer) for path in ("/models", path, path)]
    assert [answer.status_code for answer in others] == [403, 404, 429]
    assert raw_answer(served.port, [(b"X-API-Key", b"\x00" + secret.encode())])[0] == 400
    return "".join(answer.text for answer in others) + str(answers[0])


def _break_the_schema(served: Served, engine: Engine) -> None:
    """What the database says about statements, in a traceback."""
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE profile_requests RENAME TO gone"))
    assert served.client.get(f"/profiles/{'0' * 32}").status_code == 500


def test_a_key_is_told_once_on_standard_output_alone(database_url: str, engine: Engine) -> None:
    command = [sys.executable, "-m", "service", "keys", "create", "ci", "--scope", "plan"]
    made = subprocess.run(
        command, env={"DATABASE_URL": database_url, "PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=True
    )
    secret = made.stdout.removesuffix("\n")
    found = ApiKeyRepository(engine, AuditTrail(engine)).all()
    assert found[secret_hash(secret.encode())].name == "ci"
    assert secret not in made.stderr
