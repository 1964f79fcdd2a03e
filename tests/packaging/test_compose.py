"""docker-compose.yml starts commands that exist with settings that exist, and publishes little."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.settings import Settings
from tests.packaging.service_facts import ROOT, is_command, project, setting_names

FILE = ROOT / "docker-compose.yml"
TEXT = FILE.read_text()
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load(TEXT)["services"]
OURS = ("migrate", "api", "worker")
PASSWORDS = ("POSTGRES_PASSWORD", "GRAFANA_PASSWORD")


def _seconds(text: str) -> int:
    return int(text.removesuffix("s"))


def test_all_parts_are_there() -> None:
    assert set(SERVICES) == {"postgres", "migrate", "api", "proxy", "worker", "prometheus", "grafana"}


@pytest.mark.parametrize("name", OURS)
def test_a_part_of_ours_runs_a_command_that_exists(name: str) -> None:
    part = SERVICES[name]
    assert is_command(part["command"])
    assert part["image"] == f"shardwright:${{IMAGE_TAG:-{project()['version']}}}"
    assert part["build"]["target"] == "cpu"


@pytest.mark.parametrize("name", OURS)
def test_a_part_of_ours_is_given_settings_with_values_that_they_take(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = SERVICES[name]["environment"]
    assert set(environment) <= setting_names()
    for variable, value in environment.items():
        monkeypatch.setenv(variable, re.sub(r"\$\{\w+(?::-([^}]*)|:\?[^}]*)\}", r"\1", value))
    assert Settings().database_url == "postgresql://shardwright:@postgres:5432/shardwright"


@pytest.mark.parametrize("name", OURS)
def test_a_part_of_ours_has_no_rights_and_writes_to_volumes_only(name: str) -> None:
    part = SERVICES[name]
    assert part["read_only"] is True
    assert part["cap_drop"] == ["ALL"]
    assert part["security_opt"] == ["no-new-privileges:true"]
    assert not {"privileged", "user", "cap_add", "ports"} & set(part)


def test_nothing_of_ours_starts_before_the_schema_is_there() -> None:
    assert SERVICES["migrate"]["command"] == ["db", "upgrade"]
    assert SERVICES["migrate"]["depends_on"] == {"postgres": {"condition": "service_healthy"}}
    for name in ("api", "worker"):
        assert SERVICES[name]["depends_on"] == {"migrate": {"condition": "service_completed_successfully"}}


def test_a_stop_waits_for_as_long_as_the_settings_let_work_finish() -> None:
    fields = Settings.model_fields
    assert _seconds(SERVICES["api"]["stop_grace_period"]) >= fields["shutdown_timeout_s"].default + 10
    assert _seconds(SERVICES["worker"]["stop_grace_period"]) >= fields["worker_shutdown_s"].default + 20


def test_what_the_worker_trains_is_what_the_api_serves() -> None:
    (store,) = re.findall(r"SHARDWRIGHT_MODEL_STORE=(\S+)", (ROOT / "Dockerfile").read_text())
    for name in ("api", "worker"):
        assert SERVICES[name]["volumes"] == [f"models:{store}"]
        assert "SHARDWRIGHT_MODEL_STORE" not in SERVICES[name]["environment"]
    assert "models" in yaml.safe_load(TEXT)["volumes"]


def test_only_the_proxy_and_grafana_are_published_and_on_loopback() -> None:
    ports = {name: port for name, part in SERVICES.items() for port in part.get("ports", [])}
    assert set(ports) == {"proxy", "grafana"}
    assert all(port.startswith("127.0.0.1:") for port in ports.values())


def test_only_what_is_published_has_a_way_out() -> None:
    networks = yaml.safe_load(TEXT)["networks"]
    outside = {name for name, network in networks.items() if not (network or {}).get("internal")}
    assert outside == {"edge"}
    assert {name for name, part in SERVICES.items() if outside & set(part["networks"])} == {"proxy", "grafana"}
    assert "data" not in SERVICES["proxy"]["networks"]


def test_there_are_two_replicas_and_no_port_is_tied_to_one() -> None:
    assert SERVICES["api"]["deploy"] == {"replicas": 2}


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_files_that_are_mounted_exist(name: str) -> None:
    mounted = [volume.split(":")[0] for volume in SERVICES[name].get("volumes", []) if volume.startswith("./")]
    assert [path for path in mounted if not (ROOT / path).exists()] == []


def test_no_password_has_a_default() -> None:
    assert set(re.findall(r"\$\{(\w*PASSWORD\w*)[^}]*\}", TEXT)) == set(PASSWORDS)
    assert len(re.findall(r"\$\{\w*PASSWORD:\?[^}]+\}", TEXT)) == len(re.findall(r"\$\{\w*PASSWORD", TEXT))
    example = (ROOT / ".env.example").read_text().splitlines()
    assert {f"{name}=" for name in PASSWORDS} <= set(example)
    assert ".env" in (ROOT / ".gitignore").read_text().splitlines()


def test_the_example_environment_has_every_variable_with_its_default() -> None:
    defaults = dict(re.findall(r"\$\{(\w+):-([^}]*)\}", TEXT))
    shown = dict(
        line.lstrip("#").split("=", 1)
        for line in (ROOT / ".env.example").read_text().splitlines()
        if re.match(r"#?[A-Z_]+=", line)
    )
    assert shown == defaults | dict.fromkeys(PASSWORDS, "")


def test_prometheus_finds_the_replicas_by_their_name() -> None:
    (job,) = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())["scrape_configs"]
    (names,) = job["dns_sd_configs"]
    assert (names["names"], names["port"]) == (["api"], Settings.model_fields["port"].default)
    assert set(SERVICES["prometheus"]["networks"]) & set(SERVICES["api"]["networks"]) == {"api"}


def test_the_dashboards_source_is_the_prometheus_beside_it() -> None:
    provisioned = yaml.safe_load((ROOT / "deploy/compose/grafana/datasources/prometheus.yml").read_text())
    (source,) = provisioned["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert set(SERVICES["grafana"]["networks"]) & set(SERVICES["prometheus"]["networks"]) == {"monitoring"}


def _compose() -> list[str]:
    if shutil.which("docker-compose"):
        return ["docker-compose"]
    plugin = ["docker", "compose", "version"]
    if shutil.which("docker") and subprocess.run(plugin, capture_output=True, check=False).returncode == 0:
        return ["docker", "compose"]
    pytest.skip("neither docker compose nor docker-compose is here")


def _config(folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ} | variables
    (folder / "docker-compose.yml").write_text(TEXT)
    command = [*_compose(), "-f", "docker-compose.yml", "config"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_compose_takes_the_file(tmp_path: Path) -> None:
    done = _config(tmp_path, POSTGRES_PASSWORD="one", GRAFANA_PASSWORD="two")
    assert done.returncode == 0, done.stderr
    assert yaml.safe_load(done.stdout)["services"].keys() == SERVICES.keys()


@pytest.mark.parametrize("missing", PASSWORDS)
def test_compose_refuses_to_start_without_a_password(tmp_path: Path, missing: str) -> None:
    given = dict.fromkeys(PASSWORDS, "one") | {missing: ""}
    done = _config(tmp_path, **given)
    assert done.returncode != 0
    assert "set it in .env" in done.stderr
