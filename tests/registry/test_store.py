"""Model versions: what is written is what is loaded, and what was damaged is refused by name."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from service.domain.errors import DamagedArtifact, UnknownHardware
from service.registry.store import ModelStore, Version
from tests.cost_models.small_model import COMMUNICATION_FACTS, FACTS, LINES, weights


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    made = ModelStore(str(tmp_path / "models"))
    made.write("cpu-x", "compute", weights(), FACTS)
    made.write("cpu-x", "communication", LINES, COMMUNICATION_FACTS)
    return made


def test_versions_count_up_and_the_newest_is_loaded(store: ModelStore) -> None:
    second = store.write("cpu-x", "compute", weights(seed=1), FACTS)
    assert second == Version("cpu-x", "compute", 2)
    models = store.cost_models("cpu-x")
    assert models.versions == {"compute": "cpu-x/compute/2", "communication": "cpu-x/communication/1"}


def test_the_same_name_for_other_weights_has_another_digest(store: ModelStore, tmp_path: Path) -> None:
    other = ModelStore(str(tmp_path / "other"))
    other.write("cpu-x", "compute", weights(seed=1), FACTS)
    other.write("cpu-x", "communication", LINES, COMMUNICATION_FACTS)
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
    assert error.value.data["known"] == ["cpu-x"]


def test_hardware_with_only_one_kind_of_model_is_not_known(tmp_path: Path) -> None:
    store = ModelStore(str(tmp_path))
    store.write("cpu-x", "compute", weights(), FACTS)
    assert store.hardware() == []


def test_an_empty_or_missing_store_knows_nothing(tmp_path: Path) -> None:
    assert ModelStore(str(tmp_path / "nowhere")).hardware() == []


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
    wrong = {**weights(), "head.2.bias": np.zeros(3, dtype=np.float32)}
    with pytest.raises(DamagedArtifact, match=r"head\.2\.bias"):
        store.compute_model(store.write("cpu-x", "compute", wrong, FACTS))
    with pytest.raises(DamagedArtifact, match="features version 99"):
        store.compute_model(store.write("cpu-x", "compute", weights(), FACTS | {"features_version": 99}))
    broken = {**weights(), "table.2.bias": np.full(8, np.nan, dtype=np.float32)}
    with pytest.raises(DamagedArtifact, match="not finite"):
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
        assert np.array_equal(store.read(version)[1]["table.0.weight"], weights(seed)["table.0.weight"])


def test_a_manifest_with_nan_is_refused(store: ModelStore, tmp_path: Path) -> None:
    path = tmp_path / "models" / "cpu-x" / "compute" / "1" / "manifest.json"
    path.write_text(path.read_text().replace('"format": 1', '"format": 1, "mse": NaN'))
    with pytest.raises(DamagedArtifact, match="not JSON"):
        store.cost_models("cpu-x")


def test_a_write_that_fails_leaves_no_version(store: ModelStore, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        store.write("cpu-x", "compute", weights(), FACTS | {"metric": float("nan")})
    assert [p.name for p in (tmp_path / "models" / "cpu-x" / "compute").iterdir()] == ["1"]
