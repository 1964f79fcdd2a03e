"""The proxy in front of two real replicas: nothing that they can answer is lost."""

import json
import os
import re
import shutil
import socket
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import yaml

from service.api.problems import BodyTooLarge, problem_of
from service.settings import Settings
from tests.api.processes import wait_for
from tests.api.replicas import Replica, two_replicas
from tests.api.small_store import priced, small_store
from tests.packaging.service_facts import ROOT, routes

CONFIGURATION = (ROOT / "deploy" / "compose" / "nginx.conf").read_text()


def _number(directive: str) -> int:
    (text,) = re.findall(rf"^ +{directive} (\d+)s?;$", CONFIGURATION, re.M)
    return int(text)


def _program() -> str:
    found = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    if found is None:
        pytest.skip("nginx is not here")
    return found


def _configuration(folder: Path, port: int, replicas: Sequence[int]) -> Path:
    """The configuration as it is, but for its own port and folder, and its replicas, which Docker's DNS would say."""
    text, found = re.subn(r"^ +resolver .*\n", "", CONFIGURATION, flags=re.M)
    servers = "\n".join(rf"server 127.0.0.1:{replica}\1;" for replica in replicas)
    text, also_found = re.subn(r"server api:8000 resolve( .*);", servers, text)
    assert found == also_found == 1
    text = text.replace("listen 8080", f"listen 127.0.0.1:{port}").replace("/tmp/", f"{folder}/")
    path = folder / "nginx.conf"
    path.write_text(re.sub(r"/dev/std(out|err)", rf"{folder}/\1", text))
    return path


def test_the_proxy_takes_its_configuration(tmp_path: Path) -> None:
    path = _configuration(tmp_path, 8080, [8000, 8001])
    command = [_program(), "-t", "-c", str(path), "-e", str(tmp_path / "err")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_proxy_has_the_limits_of_the_service() -> None:
    fields = Settings.model_fields
    limit = fields["max_body_bytes"].default
    assert _number("client_max_body_size") == limit
    assert _number("client_body_timeout") == fields["body_timeout_s"].default
    assert _number("proxy_read_timeout") > fields["max_time_limit_ms"].default / 1000
    (text,) = re.findall(r"return 413 '(.+)';", CONFIGURATION)
    wanted = problem_of(BodyTooLarge(f"at most {limit} bytes are taken", max_body_bytes=limit), "$id")
    assert json.loads(text) == wanted


def test_the_proxy_sends_only_real_routes_again() -> None:
    (again,) = re.findall(r"location ~ \^/\((.+)\)\$ \{\n.+non_idempotent", CONFIGURATION)
    assert {f"/{path}" for path in again.split("|")} == {"/plan", "/estimate"}
    assert CONFIGURATION.count("non_idempotent") == 1
    assert {"/plan", "/estimate"} <= routes()


def test_the_proxy_listens_and_connects_where_compose_says() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    (bound,) = re.findall(r"listen (\d+);", CONFIGURATION)
    (port,) = services["proxy"]["ports"]
    assert port.endswith(f":{bound}")
    ((name, served),) = re.findall(r"server (\w+):(\d+) resolve", CONFIGURATION)
    assert name in services
    assert int(served) == Settings.model_fields["port"].default


def test_the_proxy_is_one_that_can_follow_names() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    (version,) = re.findall(r"^nginx:(\d+\.\d+)", services["proxy"]["image"])
    assert tuple(map(int, version.split("."))) >= (1, 28)


def _port(replica: Replica) -> int:
    port = replica.client.base_url.port
    assert port is not None
    return port


@contextmanager
def _proxy(folder: Path, replicas: Sequence[Replica]) -> Iterator[httpx.Client]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    path = _configuration(folder, port, [_port(replica) for replica in replicas])
    process = subprocess.Popen([_program(), "-c", path, "-e", folder / "err", "-g", "daemon off;"])
    try:
        with httpx.Client(
            base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False, headers={"Connection": "close"}
        ) as client:
            wait_for(lambda: _answers(client))
            yield client
    finally:
        process.terminate()
        process.wait(30)


def _answers(client: httpx.Client) -> bool:
    try:
        return client.get("/healthz").status_code == 200
    except httpx.TransportError:
        return False


class _Load:
    """Requests from several threads until it is stopped; counts their answers' statuses."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(3)]
        self.counts: Counter[int | str] = Counter()

    def __enter__(self) -> "_Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while not self._over.wait(0.02):
            try:
                self.counts[self._client.post("/estimate", json=priced()).status_code] += 1
            except httpx.TransportError as error:
                self.counts[repr(error)] += 1

    def more(self, number: int) -> None:
        """Waits for so many more answers."""
        wanted = self.counts.total() + number
        wait_for(lambda: self.counts.total() >= wanted, 60)


@pytest.mark.slow
def test_ids_and_refusals_go_through_and_a_replica_that_goes_costs_no_answer(database_url: str, tmp_path: Path) -> None:
    models = tmp_path / "model_store"
    small_store(str(models))
    with two_replicas(database_url, models) as replicas, _proxy(tmp_path, replicas) as client:
        answer = client.get("/readyz", headers={"X-Request-ID": "from-a-client"})
        assert (answer.status_code, answer.headers["X-Request-ID"]) == (200, "from-a-client")

        limit = Settings.model_fields["max_body_bytes"].default
        large = b" " * (limit + 1)
        for body in (large, iter([large])):
            answer = client.post("/plan", content=body, headers={"Content-Type": "application/json"})
            assert answer.status_code == 413
            assert answer.headers["Content-Type"] == "application/problem+json"
            assert answer.json()["instance"] == answer.headers["X-Request-ID"]

        with _Load(client) as load:
            load.more(30)
            replicas[0].process.terminate()
            replicas[0].process.wait(60)
            load.more(60)
        assert set(load.counts) == {200}

        again = Replica(database_url, models, tmp_path / "again.log", _port(replicas[0]))
        try:
            wait_for(again.answers, 60)
            with _Load(client) as load:
                load.more(30)
                replicas[1].process.kill()
                load.more(60)
            assert set(load.counts) == {200}
            again.process.kill()
            again.process.wait(60)
            answer = client.get("/models")
            assert (answer.status_code, answer.headers["Content-Type"]) == (503, "application/problem+json")
            assert answer.headers["Retry-After"] == "2"
            assert answer.json()["instance"] == answer.headers["X-Request-ID"]
        finally:
            again.end()
