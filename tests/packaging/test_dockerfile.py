"""The images hold what pyproject.toml names, run what the command line has, as a user without rights."""

import json
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.packaging.service_facts import ROOT, is_command, project, routes, setting_names

DOCKERFILE = (ROOT / "Dockerfile").read_text()
STAGES = {
    found["name"]: found["body"]
    for found in re.finditer(r"^FROM \S+ AS (?P<name>\S+)\n(?P<body>.*?)(?=^FROM |\Z)", DOCKERFILE, re.M | re.S)
}


def _copied() -> set[str]:
    """What is copied from the repository."""
    lines = re.findall(r"^COPY (?!--from)(?:--chown=\S+ )?(.+)$", DOCKERFILE, re.M)
    return {source for line in lines for source in line.split()[:-1]}


def _exec_form(instruction: str) -> list[str]:
    (text,) = re.findall(rf"^{instruction} (\[.+\])$", STAGES["runtime"], re.M)
    arguments: list[str] = json.loads(text)
    return arguments


@pytest.fixture
def requirements(tmp_path: Path) -> dict[str, list[str]]:
    """The lists of packages that the Dockerfile's own script makes."""
    (script,) = re.findall(r'^RUN python <<"EOF"\n(.+?)^EOF$', DOCKERFILE, re.M | re.S)
    (tmp_path / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True)
    return {extra: (tmp_path / f"{extra}.txt").read_text().split() for extra in ("cpu", "gpu")}


@pytest.mark.parametrize(("extra", "other"), [("cpu", "gpu"), ("gpu", "cpu")])
def test_a_target_installs_the_project_and_its_extra_but_no_postgres(
    requirements: dict[str, list[str]], extra: str, other: str
) -> None:
    listed = project()
    wanted = {name for name in listed["dependencies"] if "pgserver" not in name}
    assert len(wanted) == len(listed["dependencies"]) - 1
    assert set(requirements[extra]) == wanted | set(listed["optional-dependencies"][extra])
    assert f"-c constraints.txt -r {extra}.txt" in STAGES[f"packages-{extra}"]
    assert f"--from=packages-{extra} " in STAGES[extra]
    assert f"packages-{other}" not in STAGES[extra]


def test_the_last_stage_and_so_the_default_is_for_cpus() -> None:
    assert list(STAGES)[-1] == "cpu"


@pytest.mark.parametrize("target", ["cpu", "gpu"])
def test_an_image_ends_as_the_user_without_rights(target: str) -> None:
    assert re.findall(r"^USER (.+)$", STAGES[target], re.M) == ["10001:10001"]
    assert STAGES[target].rstrip().endswith("USER 10001:10001")
    assert "--uid 10001 --gid 10001" in STAGES["runtime"]


def test_what_is_copied_is_there_and_not_ignored() -> None:
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert _copied() == allowed
    assert all((ROOT / source).exists() for source in allowed)


def test_the_base_image_is_a_python_that_the_project_takes() -> None:
    (image,) = re.findall(r"^ARG PYTHON_IMAGE=python:([\d.]+)-\S+$", DOCKERFILE, re.M)
    assert project()["requires-python"].startswith(f">={'.'.join(image.split('.')[:2])},")


def test_the_command_is_one_and_listens_for_others() -> None:
    entry, command = _exec_form("ENTRYPOINT"), _exec_form("CMD")
    assert (entry, command[0]) == (["tini", "--", "shardwright"], "serve")
    assert is_command(command)
    assert command[command.index("--host") + 1] == "0.0.0.0"
    assert not is_command([*command, "--no-such-option"])


def test_every_variable_of_an_image_is_a_setting_or_known() -> None:
    named = {name for name in re.findall(r"\b([A-Z_]+)=", STAGES["runtime"]) if name.startswith("SHARDWRIGHT_")}
    assert named == {"SHARDWRIGHT_MODEL_STORE", "SHARDWRIGHT_DATA_DIR"}
    assert named <= setting_names()
    (store,) = re.findall(r"SHARDWRIGHT_MODEL_STORE=(\S+)", STAGES["runtime"])
    (folder,) = re.findall(r"^WORKDIR (\S+)$", STAGES["runtime"], re.M)
    assert store == f"{folder}/model_store"


def test_the_model_store_is_the_users_own_so_that_a_volume_filled_from_it_can_be_written() -> None:
    assert "COPY --chown=10001:10001 model_store model_store\n" in STAGES["runtime"]


def test_nothing_names_a_registry_or_a_password() -> None:
    assert "://" not in re.sub(r"http://127\.0\.0\.1", "", DOCKERFILE)
    assert not re.search(r"(?i)password|token|secret", DOCKERFILE)


def _health_command() -> list[str]:
    (text,) = re.findall(r"^HEALTHCHECK .*\\\n\s+CMD (\[.+\])$", STAGES["runtime"], re.M)
    arguments: list[str] = json.loads(text)
    return [sys.executable, *arguments[1:]]


def test_the_health_check_asks_a_real_route() -> None:
    (path,) = re.findall(r"\)\}(/\w+)'", _health_command()[2])
    assert path == "/healthz"
    assert path in routes()


@pytest.mark.parametrize("variable", ["PORT", "SHARDWRIGHT_PORT"])
def test_the_health_check_asks_where_the_service_listens(variable: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        environment = {"PORT": "1", variable: str(listener.getsockname()[1])}
        asking = subprocess.Popen(_health_command(), env=environment)
        listener.settimeout(30)
        connection, _ = listener.accept()
        with connection:
            assert connection.recv(1_000).startswith(b"GET /healthz ")
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        assert asking.wait(30) == 0
