"""The manifests run commands, settings and routes that exist, without rights, and stop as the service does."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.settings import Settings
from tests.packaging.service_facts import ROOT, is_command, project, routes, setting_names

FOLDER = ROOT / "deploy" / "kubernetes"
MANIFESTS: list[dict[str, Any]] = [
    manifest
    for path in sorted([*FOLDER.glob("base/*.yaml"), *FOLDER.glob("components/*/*.yaml")])
    if path.name != "kustomization.yaml"
    for manifest in yaml.safe_load_all(path.read_text())
]
WITH_PODS = {m["metadata"]["name"]: m for m in MANIFESTS if m["kind"] in ("Deployment", "Job")}


def _one(kind: str, name: str) -> dict[str, Any]:
    (found,) = [m for m in MANIFESTS if (m["kind"], m["metadata"]["name"]) == (kind, name)]
    return found


def _pod(name: str) -> dict[str, Any]:
    pod: dict[str, Any] = WITH_PODS[name]["spec"]["template"]["spec"]
    return pod


def _container(name: str) -> dict[str, Any]:
    (container,) = _pod(name)["containers"]
    found: dict[str, Any] = container
    return found


def _api() -> dict[str, Any]:
    return _container("shardwright-api")


def test_each_part_has_its_manifest() -> None:
    assert set(WITH_PODS) == {"shardwright-api", "shardwright-migrate", "shardwright-worker", "shardwright-gpu-worker"}


@pytest.mark.parametrize("path", [*FOLDER.glob("base"), *FOLDER.glob("components/*")], ids=lambda path: path.name)
def test_every_file_is_listed(path: Path) -> None:
    listed = yaml.safe_load((path / "kustomization.yaml").read_text())["resources"]
    assert sorted(listed) == sorted(p.name for p in path.glob("*.yaml") if p.name != "kustomization.yaml")


@pytest.mark.parametrize("name", sorted(WITH_PODS))
def test_a_pod_runs_a_command_that_exists(name: str) -> None:
    assert is_command(_container(name)["args"])


@pytest.mark.parametrize("name", sorted(WITH_PODS))
def test_a_pod_has_no_rights_and_writes_to_tmp_only(name: str) -> None:
    pod, container = _pod(name), _container(name)
    assert pod["automountServiceAccountToken"] is False
    security = pod["securityContext"]
    assert (security["runAsNonRoot"], security["runAsUser"], security["runAsGroup"]) == (True, 10001, 10001)
    assert f"USER {security['runAsUser']}:{security['runAsGroup']}" in (ROOT / "Dockerfile").read_text()
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert [mount["mountPath"] for mount in container["volumeMounts"]] == ["/tmp"]
    assert all("emptyDir" in volume for volume in pod["volumes"])


@pytest.mark.parametrize("name", sorted(WITH_PODS))
def test_a_pod_gets_the_shared_settings_and_the_secret_and_no_addresses_of_services(name: str) -> None:
    assert _container(name)["envFrom"] == [
        {"configMapRef": {"name": "shardwright"}},
        {"secretRef": {"name": "shardwright"}},
    ]
    assert _pod(name)["enableServiceLinks"] is False


@pytest.mark.parametrize("name", sorted(WITH_PODS))
def test_a_pod_asks_for_memory_and_has_a_limit(name: str) -> None:
    resources = _container(name)["resources"]
    assert {"cpu", "memory"} <= set(resources["requests"])
    assert "memory" in resources["limits"]


def test_the_shared_settings_are_settings_with_values_that_they_take(monkeypatch: pytest.MonkeyPatch) -> None:
    data = _one("ConfigMap", "shardwright")["data"]
    assert set(data) <= setting_names()
    for name, value in data.items():
        monkeypatch.setenv(name, value)
    settings = Settings()
    for name, value in data.items():
        assert str(getattr(settings, name.removeprefix("SHARDWRIGHT_").lower())).removesuffix(".0") == value


def test_the_database_is_in_no_manifest() -> None:
    assert "Secret" not in {manifest["kind"] for manifest in MANIFESTS}
    assert "DATABASE_URL" not in _one("ConfigMap", "shardwright")["data"]


def test_probes_ask_real_routes_on_the_port_that_is_served() -> None:
    api = _api()
    paths = {probe: api[probe]["httpGet"]["path"] for probe in ("startupProbe", "readinessProbe", "livenessProbe")}
    # With its database away a replica still plans: /readyz would take all of them out.
    assert paths == {"startupProbe": "/readyz", "readinessProbe": "/healthz", "livenessProbe": "/healthz"}
    assert set(paths.values()) <= routes()
    assert {api[probe]["httpGet"]["port"] for probe in paths} == {"http"}
    assert api["ports"] == [{"name": "http", "containerPort": Settings.model_fields["port"].default}]
    (endpoint,) = _one("ServiceMonitor", "shardwright-api")["spec"]["endpoints"]
    assert endpoint["path"] in routes()


def test_a_pod_is_given_the_time_that_its_work_may_take_to_end() -> None:
    data = _one("ConfigMap", "shardwright")["data"]
    assert int(data["SHARDWRIGHT_DRAIN_S"]) >= 5
    running = int(data["SHARDWRIGHT_DRAIN_S"]) + int(data["SHARDWRIGHT_SHUTDOWN_TIMEOUT_S"])
    assert _pod("shardwright-api")["terminationGracePeriodSeconds"] >= running + 10
    for name in ("shardwright-worker", "shardwright-gpu-worker"):
        # Ten seconds after that it is killed.
        job = int(data["SHARDWRIGHT_WORKER_SHUTDOWN_S"]) + 10
        assert _pod(name)["terminationGracePeriodSeconds"] >= job + 10


@pytest.mark.parametrize("kind", ["Service", "PodDisruptionBudget", "ServiceMonitor", "NetworkPolicy"])
def test_what_selects_the_api_selects_its_pods_and_no_others(kind: str) -> None:
    spec = _one(kind, "shardwright-api")["spec"]
    selector = spec["podSelector"] if kind == "NetworkPolicy" else spec["selector"]
    wanted = selector.get("matchLabels", selector)
    chosen = {
        name
        for name, manifest in WITH_PODS.items()
        if wanted.items() <= manifest["spec"]["template"]["metadata"]["labels"].items()
    }
    assert chosen == {"shardwright-api"}


def test_a_disruption_leaves_a_replica() -> None:
    budget = _one("PodDisruptionBudget", "shardwright-api")["spec"]["maxUnavailable"]
    assert budget < WITH_PODS["shardwright-api"]["spec"]["replicas"]


def test_one_worker_has_one_gpu() -> None:
    container = _container("shardwright-gpu-worker")
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert container["args"].count("--device") == 1
    assert container["image"] == "shardwright-gpu"
    hardware = container["args"][container["args"].index("--hardware") + 1]
    (product,) = _pod("shardwright-gpu-worker")["nodeSelector"].values()
    assert hardware in product.lower()


@pytest.fixture(scope="module")
def built() -> list[dict[str, Any]]:
    """What kustomize makes of the example."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not here")
    command = ["kubectl", "kustomize", str(FOLDER / "example")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def test_the_example_has_every_manifest_in_its_namespace(built: list[dict[str, Any]]) -> None:
    assert len(built) == len(MANIFESTS)
    assert {manifest["metadata"]["namespace"] for manifest in built} == {"shardwright"}


def test_the_example_runs_the_images_of_this_version(built: list[dict[str, Any]]) -> None:
    images = {
        manifest["metadata"]["name"]: manifest["spec"]["template"]["spec"]["containers"][0]["image"]
        for manifest in built
        if manifest["kind"] in ("Deployment", "Job")
    }
    version = project()["version"]
    assert images.pop("shardwright-gpu-worker") == f"shardwright:{version}-gpu"
    assert set(images.values()) == {f"shardwright:{version}"}


def test_selectors_stay_as_they_are_when_labels_are_added(built: list[dict[str, Any]]) -> None:
    for manifest in built:
        if manifest["kind"] == "Deployment":
            wanted = manifest["spec"]["selector"]["matchLabels"]
            assert wanted == manifest["spec"]["template"]["metadata"]["labels"]


def _deployments(built: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [manifest["spec"]["template"]["spec"] for manifest in built if manifest["kind"] == "Deployment"]


def test_what_workers_train_is_what_the_api_serves(built: list[dict[str, Any]]) -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    (store,) = re.findall(r"SHARDWRIGHT_MODEL_STORE=(\S+)", dockerfile)
    (claim,) = [manifest for manifest in built if manifest["kind"] == "PersistentVolumeClaim"]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    assert len(_deployments(built)) == 3
    for pod in _deployments(built):
        volumes = {v["name"]: v["persistentVolumeClaim"]["claimName"] for v in pod["volumes"] if "emptyDir" not in v}
        assert set(volumes.values()) == {claim["metadata"]["name"]}
        mounted = {mount["name"]: mount for mount in pod["containers"][0]["volumeMounts"]}
        assert mounted[volumes.popitem()[0]]["mountPath"] == store
        assert f"--chown={pod['securityContext']['fsGroup']}:" in dockerfile


def test_a_pod_brings_what_the_volume_lacks_and_replaces_nothing(built: list[dict[str, Any]], tmp_path: Path) -> None:
    image, volume = tmp_path / "image" / "model_store", tmp_path / "volume"
    volume.mkdir()
    for number in ("1", "2"):
        (image / number).mkdir(parents=True)
        (image / number / "manifest.json").write_text("shipped")
    (trained := volume / "model_store" / "2" / "manifest.json").parent.mkdir(parents=True)
    trained.write_text("trained")
    for pod in _deployments(built):
        (first,) = pod["initContainers"]
        (mounted,) = [mount["mountPath"] for mount in first["volumeMounts"]]
        named = {"/opt/shardwright/model_store": str(image), mounted: str(volume), f"{mounted}/lock": f"{volume}/lock"}
        subprocess.run([named.get(word, word) for word in first["command"]], check=True)
        kept = pod["containers"][0]["volumeMounts"][-1]["subPath"]
        found = {path.parent.name: path.read_text() for path in (volume / kept).glob("*/manifest.json")}
        assert found == {"1": "shipped", "2": "trained"}


def test_the_monitor_names_the_job_as_the_alerts_do(built: list[dict[str, Any]]) -> None:
    (service,) = [manifest for manifest in built if manifest["kind"] == "Service"]
    (monitor,) = [manifest for manifest in built if manifest["kind"] == "ServiceMonitor"]
    named = set(re.findall(r'job="([^"]+)"', (ROOT / "deploy/prometheus/alerts.yml").read_text()))
    assert named == {service["metadata"]["labels"][monitor["spec"]["jobLabel"]]}
