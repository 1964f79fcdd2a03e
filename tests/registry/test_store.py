"""Model versions: what is written is what is loaded, and what was damaged is refused by name."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest

from service.cost_models.analytic import ANALYTIC_VERSION
from service.cost_models.communication import CommunicationModel
from service.cost_models.compute import ComputeModel
from service.cost_models.data_sheets import DATA_SHEETS, PROCESSORS, Figure
from service.domain.deadline import Deadline
from service.domain.errors import DamagedArtifact, ModelsUnavailable, UnknownHardware
from service.domain.plan import Algorithm, Problem
from service.domain.tables import Optimizer, Table
from service.domain.topology import Topology
from service.domain.versions import Version
from service.policies.table_features import POLICY_FEATURES_VERSION
from service.registry.store import ModelStore
from service.usecases.make_plan import PlanStatus, make_plan
from tests.cost_models.small_model import COMMUNICATION_FACTS, FACTS, MEASURED, exchange_weights, weights
from tests.policies.random_networks import random_arrays

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    made = ModelStore(str(tmp_path / "models"))
    made.write("cpu-x", "compute", weights(), FACTS)
    made.write("cpu-x", "communication", exchange_weights(), COMMUNICATION_FACTS)
    return made


def test_versions_count_up_and_the_newest_is_loaded(store: ModelStore) -> None:
    second = store.write("cpu-x", "compute", weights(seed=1), FACTS)
    assert second == Version("cpu-x", "compute", 2)
    models = store.cost_models("cpu-x")
    assert models.versions == {"compute": "cpu-x/compute/2", "communication": "cpu-x/communication/1"}


def test_the_same_name_for_other_weights_has_another_digest(store: ModelStore, tmp_path: Path) -> None:
    other = ModelStore(str(tmp_path / "other"))
    other.write("cpu-x", "compute", weights(seed=1), FACTS)
    other.write("cpu-x", "communication", exchange_weights(), COMMUNICATION_FACTS)
    ours, theirs = store.cost_models("cpu-x"), other.cost_models("cpu-x")
    assert ours.versions == theirs.versions
    assert ours.digest != theirs.digest
    assert ours.digest == store.cost_models("cpu-x").digest


def test_a_version_is_loaded_as_it_was_written(store: ModelStore) -> None:
    manifest, loaded = store.read(Version("cpu-x", "compute", 1))
    assert manifest["measured"] == json.loads(json.dumps(FACTS["measured"]))
    assert all(np.array_equal(loaded[name], array) for name, array in weights().items())


def test_unknown_hardware_names_what_is_known(store: ModelStore) -> None:
    with pytest.raises(UnknownHardware) as error:
        store.cost_models("gpu-y")
    assert error.value.data["known"] == sorted(["cpu-x", *DATA_SHEETS])


@pytest.mark.parametrize("left", ["", "store", "store/lost+found", "store/cpu-x/compute/1"])
def test_a_store_without_any_version_is_the_operators_fault_and_data_sheets_serve_on(tmp_path: Path, left: str) -> None:
    (tmp_path / left).mkdir(parents=True, exist_ok=True)
    store = ModelStore(str(tmp_path / "store"))
    with pytest.raises(ModelsUnavailable, match=f"'cpu-x'.*SHARDWRIGHT_MODEL_STORE: .*{tmp_path}/store") as error:
        store.cost_models("cpu-x")
    assert error.value.data["retry_after_s"] > 0
    assert store.cost_models("h100").versions["compute"].startswith("h100/compute/analytic")


def test_a_store_that_cannot_be_listed_says_why(store: ModelStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> NoReturn:
        raise PermissionError(13, "Permission denied", "/mnt/models")

    monkeypatch.setattr("fsspec.implementations.local.LocalFileSystem.ls", refused)
    for ask in (store.hardware, store.models, lambda: store.cost_models("cpu-x")):
        with pytest.raises(ModelsUnavailable, match=r"cannot be read.*Permission denied: '/mnt/models'"):
            ask()


def test_folders_of_a_volume_that_are_no_hardware_are_not_looked_into(store: ModelStore, tmp_path: Path) -> None:
    (tmp_path / "models" / "lost+found" / "compute" / "1").mkdir(parents=True)
    (tmp_path / "models" / "lost+found" / "compute" / "1" / "manifest.json").touch()
    assert {hardware for hardware, _ in store.models()} == {"cpu-x", *PROCESSORS}


def test_hardware_with_only_one_kind_of_model_is_not_known(tmp_path: Path) -> None:
    store = ModelStore(str(tmp_path))
    store.write("cpu-x", "compute", weights(), FACTS)
    assert "cpu-x" not in store.hardware()


def test_an_empty_or_missing_store_knows_data_sheets_alone(tmp_path: Path) -> None:
    assert ModelStore(str(tmp_path / "nowhere")).hardware() == sorted(DATA_SHEETS)


def test_hardware_with_a_data_sheet_is_priced_by_it_until_there_are_trained_versions(tmp_path: Path) -> None:
    store = ModelStore(str(tmp_path))
    assert store.cost_models("h100").versions == {
        "compute": "h100/compute/analytic-2",
        "communication": "h100/communication/analytic-2",
    }
    store.write("h100", "communication", exchange_weights(), COMMUNICATION_FACTS)
    one_trained = store.cost_models("h100")
    assert one_trained.versions == {"compute": "h100/compute/analytic-2", "communication": "h100/communication/1"}
    assert isinstance(one_trained.communication, CommunicationModel)
    said = one_trained.communication.assumptions(np.full(4, 64.0), np.zeros(4), 8_192)
    assert not any("exchanges of h100 were not measured" in sentence for sentence in said)
    store.write("h100", "compute", weights(), FACTS)
    trained = store.cost_models("h100")
    assert trained.versions == {"compute": "h100/compute/1", "communication": "h100/communication/1"}
    assert isinstance(trained.compute, ComputeModel)
    assert store.hardware() == sorted(DATA_SHEETS)


def test_a_processors_thread_is_priced_by_its_figures_once_its_exchanges_were_measured(tmp_path: Path) -> None:
    store = ModelStore(str(tmp_path))
    assert store.newest("cpu-fbgemm", "compute") == Version("cpu-fbgemm", "compute", ANALYTIC_VERSION, analytic=True)
    assert store.newest("cpu-fbgemm", "communication") is None
    assert "cpu-fbgemm" not in store.hardware()
    with pytest.raises(ModelsUnavailable):
        store.cost_models("cpu-fbgemm")
    store.write("cpu-fbgemm", "communication", exchange_weights(), COMMUNICATION_FACTS)
    assert "cpu-fbgemm" in store.hardware()
    assert store.cost_models("cpu-fbgemm").versions == {
        "compute": "cpu-fbgemm/compute/analytic-2",
        "communication": "cpu-fbgemm/communication/1",
    }
    store.write("cpu-fbgemm", "compute", weights(), FACTS)
    assert store.cost_models("cpu-fbgemm").versions["compute"] == "cpu-fbgemm/compute/1"


def test_an_analytic_version_by_name_is_loaded_though_there_is_a_trained_one(tmp_path: Path) -> None:
    store = ModelStore(str(tmp_path))
    analytic = store.cost_models("h100")
    store.write("h100", "compute", weights(), FACTS)
    again = store.cost_models("h100", analytic.versions)
    assert (again.versions, again.digest) == (analytic.versions, analytic.digest)
    assert store.cost_models("h100").digest != analytic.digest


@pytest.mark.parametrize("name", ["h100/compute/analytic-2", "cpu-x/compute/12", "analytic-x/compute/1"])
def test_names_of_versions_come_back_as_they_were(name: str) -> None:
    assert str(Version.parse(name)) == name
    assert Version.parse(name).analytic is ("/analytic" in name)


@pytest.mark.parametrize("name", ["cpu-x/compute/analytic-2", "h100/compute/analytic-99", "h100/compute/analytic-1"])
def test_an_analytic_version_that_this_code_does_not_have_is_refused_by_name(store: ModelStore, name: str) -> None:
    hardware = name.partition("/")[0]
    with pytest.raises(DamagedArtifact, match=name):
        store.cost_models(hardware, {"compute": name, "communication": f"{hardware}/communication/analytic-2"})


def test_other_figures_have_another_digest(tmp_path: Path) -> None:
    faster = replace(DATA_SHEETS["h100"], memory_gb_s=Figure(3_900.0, "another data sheet"))
    ours, theirs = (ModelStore(str(tmp_path), sheets).cost_models("h100") for sheets in (DATA_SHEETS, {"h100": faster}))
    assert ours.versions == theirs.versions
    assert ours.digest != theirs.digest


def test_a_trained_version_that_is_damaged_is_not_passed_over_for_the_data_sheet(tmp_path: Path) -> None:
    store = ModelStore(str(tmp_path))
    store.write("h100", "compute", weights(), FACTS)
    (tmp_path / "h100" / "compute" / "1" / "weights.safetensors").unlink()
    with pytest.raises(DamagedArtifact, match="h100/compute/1"):
        store.cost_models("h100")


def test_a_version_of_another_release_is_refused_with_the_remedy(store: ModelStore) -> None:
    line = {"latency_ms": np.ones(2, dtype=np.float32), "ms_per_byte": np.ones(2, dtype=np.float32)}
    store.write("cpu-x", "communication", line, {"hardware": "cpu-x", "data": {"ranks": [2]}})
    remedy = "`shardwright train communication --hardware cpu-x`"
    with pytest.raises(DamagedArtifact, match=f"cpu-x/communication/2: .*'measured'.*{remedy}"):
        store.cost_models("cpu-x")
    store.write("cpu-x", "communication", exchange_weights(), COMMUNICATION_FACTS)
    assert store.cost_models("cpu-x").versions["communication"] == "cpu-x/communication/3"
    store.write("cpu-x", "compute", weights(), {"hardware": "cpu-x", "measured": FACTS["measured"]})
    with pytest.raises(DamagedArtifact, match=r"cpu-x/compute/2: .*`shardwright train compute --hardware cpu-x`"):
        store.cost_models("cpu-x")


def test_a_version_that_does_not_tell_what_was_measured_together_is_of_another_release(store: ModelStore) -> None:
    measured = {name: value for name, value in asdict(MEASURED).items() if name != "pairs"}
    store.write("cpu-x", "compute", weights(), FACTS | {"measured": measured})
    with pytest.raises(
        DamagedArtifact, match=r"cpu-x/compute/2: .*pairs.*`shardwright train compute --hardware cpu-x`"
    ):
        store.cost_models("cpu-x")
    store.write("cpu-x", "compute", weights(), FACTS)
    assert isinstance(store.cost_models("cpu-x").compute, ComputeModel)


@pytest.mark.parametrize("kind", ["compute", "communication"])
def test_a_version_that_tells_no_errors_is_of_another_release(store: ModelStore, kind: str) -> None:
    arrays = weights() if kind == "compute" else exchange_weights()
    facts = FACTS if kind == "compute" else COMMUNICATION_FACTS
    without = {name: array for name, array in arrays.items() if not name.startswith("errors.")}
    store.write("cpu-x", kind, without, facts)
    with pytest.raises(DamagedArtifact, match=f"cpu-x/{kind}/2: .*errors.*`shardwright train {kind} --hardware cpu-x`"):
        store.cost_models("cpu-x")
    some = {name: array for name, array in arrays.items() if name != "errors.quantiles"}
    store.write("cpu-x", kind, some, facts)
    with pytest.raises(DamagedArtifact, match=r"array errors\.quantiles is missing"):
        store.cost_models("cpu-x")


@pytest.mark.parametrize("position", [0, 100, -1])
def test_a_flipped_byte_in_the_weights_is_refused(store: ModelStore, tmp_path: Path, position: int) -> None:
    path = tmp_path / "models" / "cpu-x" / "compute" / "1" / "weights.safetensors"
    raw = bytearray(path.read_bytes())
    raw[position] ^= 1
    path.write_bytes(raw)
    with pytest.raises(DamagedArtifact, match=r"cpu-x/compute/1.*sha256"):
        store.cost_models("cpu-x")


def test_truncated_weights_are_refused(store: ModelStore, tmp_path: Path) -> None:
    path = tmp_path / "models" / "cpu-x" / "communication" / "1" / "weights.safetensors"
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(DamagedArtifact, match="cpu-x/communication/1"):
        store.cost_models("cpu-x")


def test_missing_weights_are_refused(store: ModelStore, tmp_path: Path) -> None:
    (tmp_path / "models" / "cpu-x" / "compute" / "1" / "weights.safetensors").unlink()
    with pytest.raises(DamagedArtifact, match=r"weights\.safetensors"):
        store.cost_models("cpu-x")


def test_a_version_that_is_gone_is_refused_by_name(store: ModelStore, tmp_path: Path) -> None:
    named = store.cost_models("cpu-x").versions
    (tmp_path / "models" / "cpu-x" / "compute" / "1" / "manifest.json").unlink()
    with pytest.raises(DamagedArtifact, match=r"cpu-x/compute/1: manifest\.json"):
        store.read(Version("cpu-x", "compute", 1))
    store.write("cpu-x", "compute", weights(), FACTS)
    with pytest.raises(DamagedArtifact, match="cpu-x/compute/1"):
        store.cost_models("cpu-x", named)


def test_an_edited_manifest_is_refused(store: ModelStore, tmp_path: Path) -> None:
    path = tmp_path / "models" / "cpu-x" / "compute" / "1" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["measured"]["dims"] = [4, 4096]
    path.write_text(json.dumps(manifest))
    with pytest.raises(DamagedArtifact, match="altered"):
        store.cost_models("cpu-x")


@pytest.mark.parametrize("text", ["", "[]", "{", '{"format": 99}'])
def test_a_manifest_that_is_none_is_refused(store: ModelStore, tmp_path: Path, text: str) -> None:
    (tmp_path / "models" / "cpu-x" / "compute" / "1" / "manifest.json").write_text(text)
    with pytest.raises(DamagedArtifact, match="manifest"):
        store.cost_models("cpu-x")


def test_a_version_moved_to_another_number_is_refused(store: ModelStore, tmp_path: Path) -> None:
    folder = tmp_path / "models" / "cpu-x" / "compute"
    (folder / "1").rename(folder / "7")
    with pytest.raises(DamagedArtifact, match="cpu-x/compute/7"):
        store.cost_models("cpu-x")


def test_weights_of_the_wrong_shape_or_features_are_refused(tmp_path: Path) -> None:
    store = ModelStore(str(tmp_path))
    wrong = {**weights(), "head.1.bias": np.zeros(3, dtype=np.float32)}
    with pytest.raises(DamagedArtifact, match=r"head\.1\.bias"):
        store.compute_model(store.write("cpu-x", "compute", wrong, FACTS))
    with pytest.raises(DamagedArtifact, match=r"features version 99.*`shardwright train compute --hardware cpu-x`"):
        store.compute_model(store.write("cpu-x", "compute", weights(), FACTS | {"features_version": 99}))
    broken = {**weights(), "table.0.bias": np.full(16, np.nan, dtype=np.float32)}
    with pytest.raises(DamagedArtifact, match="not finite: restore the version or train a new one"):
        store.compute_model(store.write("cpu-x", "compute", broken, FACTS))


def test_a_version_by_name_is_loaded_though_a_newer_one_is_there(store: ModelStore) -> None:
    store.write("cpu-x", "compute", weights(seed=1), FACTS)
    first = {"compute": "cpu-x/compute/1", "communication": "cpu-x/communication/1"}
    assert store.cost_models("cpu-x", first).versions == first


def test_a_folder_without_a_manifest_is_no_version_and_its_number_is_not_taken_again(
    store: ModelStore, tmp_path: Path
) -> None:
    (tmp_path / "models" / "cpu-x" / "compute" / "2").mkdir()
    assert store.latest("cpu-x", "compute") == Version("cpu-x", "compute", 1)
    assert store.write("cpu-x", "compute", weights(), FACTS) == Version("cpu-x", "compute", 3)


def test_writers_at_the_same_time_get_a_version_each(store: ModelStore) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda seed: store.write("cpu-x", "compute", weights(seed), FACTS), range(8)))
    assert sorted(v.number for v in made) == list(range(2, 10))
    for seed, version in enumerate(made):
        assert np.array_equal(store.read(version)[1]["table.0.growing"], weights(seed)["table.0.growing"])


def test_a_manifest_with_nan_is_refused(store: ModelStore, tmp_path: Path) -> None:
    path = tmp_path / "models" / "cpu-x" / "compute" / "1" / "manifest.json"
    path.write_text(path.read_text().replace('"format": 1', '"format": 1, "mse": NaN'))
    with pytest.raises(DamagedArtifact, match="not JSON"):
        store.cost_models("cpu-x")


def test_a_write_that_fails_leaves_no_version(store: ModelStore, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        store.write("cpu-x", "compute", weights(), FACTS | {"metric": float("nan")})
    assert [p.name for p in (tmp_path / "models" / "cpu-x" / "compute").iterdir()] == ["1"]


def test_a_plan_for_hardware_that_nobody_measured_is_made_and_marked(tmp_path: Path) -> None:
    request = json.loads((ROOT / "examples" / "mlperf_dlrm_dcnv2_h100.json").read_text())
    problem = Problem(
        tables=tuple(Table(**table) for table in request["tables"]),
        topology=Topology("h100", (request["devices"]["memory_bytes"],) * 8),
        global_batch_size=request["global_batch_size"],
        optimizer=Optimizer(request["optimizer"]),
    )
    models = ModelStore(str(tmp_path)).cost_models("h100")
    plan = make_plan(problem, models, Algorithm.NEUROSHARD, 0, Deadline())
    assert plan.status is PlanStatus.COMPLETE
    assert plan.models == {"compute": "h100/compute/analytic-2", "communication": "h100/communication/analytic-2"}
    for opening in ("compute of h100 was not measured", "exchanges of h100 were not measured"):
        (said,) = [sentence for sentence in plan.assumptions if sentence.startswith(opening)]
        assert "analytic" in said
    assert not any("memory_bytes" in sentence for sentence in plan.assumptions)
    # A step of this model takes a few milliseconds on such a machine, not a few hundred as on processors.
    assert 0.5 < plan.max_cost_ms < 10
    totals = [report.cost.total for report in plan.devices]
    assert min(totals) > 0.5 * max(totals)


@pytest.mark.parametrize("trained", [False, True])
def test_memory_that_no_such_device_has_is_said_whether_or_not_it_was_measured(tmp_path: Path, trained: bool) -> None:
    store = ModelStore(str(tmp_path))
    if trained:
        store.write("h100", "compute", weights(), FACTS)
    table = Table("t", 5_000, 64, 2.0)
    problem = Problem((table,), Topology("h100", (200 * 10**9,) * 2), 8_192, Optimizer.SGD)
    plan = make_plan(problem, store.cost_models("h100"), Algorithm.DIM_GREEDY, 0, Deadline())
    (said,) = [sentence for sentence in plan.assumptions if "memory_bytes" in sentence]
    assert "200.0 GB" in said
    assert "80 GB" in said


def test_a_policy_comes_with_the_models_that_it_is_asked_for_with(store: ModelStore) -> None:
    assert store.policies("cpu-x") == []
    assert store.cost_models("cpu-x", policy=Algorithm.DREAMSHARD).policy is None
    facts = {"features_version": POLICY_FEATURES_VERSION}
    store.write("cpu-x", "dreamshard", random_arrays(1), facts)
    without = store.cost_models("cpu-x")
    assert without.policy is None
    assert store.policies("cpu-x") == [Algorithm.DREAMSHARD]
    models = store.cost_models("cpu-x", policy=Algorithm.DREAMSHARD)
    assert models.versions == {**without.versions, "dreamshard": "cpu-x/dreamshard/1"}
    assert models.digest != without.digest
    assert store.cost_models("cpu-x", policy=Algorithm.AUTOSHARD).digest == without.digest
    store.write("cpu-x", "dreamshard", random_arrays(2), facts)
    newest = store.cost_models("cpu-x", without.versions, Algorithm.DREAMSHARD)
    assert newest.versions["dreamshard"] == "cpu-x/dreamshard/2"
    named = store.cost_models("cpu-x", models.versions, Algorithm.DREAMSHARD)
    assert (named.versions, named.digest) == (models.versions, models.digest)


def test_a_policy_of_other_features_is_refused_by_name(store: ModelStore) -> None:
    version = store.write("cpu-x", "dreamshard", random_arrays(1), {"features_version": POLICY_FEATURES_VERSION + 1})
    with pytest.raises(DamagedArtifact, match="cpu-x/dreamshard/1 was trained on policy features version"):
        store.policy(version)
    other = store.write("cpu-x", "dreamshard", random_arrays(1), {})
    with pytest.raises(DamagedArtifact, match=r"cpu-x/dreamshard/2.*shardwright train dreamshard --hardware cpu-x"):
        store.policy(other)
