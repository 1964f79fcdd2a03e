"""Versions are written and deleted whole or not at all, on the local disk as on another file system."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fsspec
import numpy as np
import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from service.domain.errors import DamagedArtifact, ModelStoreUnwritable
from service.domain.versions import Version
from service.registry.artifacts import Artifacts
from service.registry.store import ModelStore
from tests.cost_models.small_model import COMMUNICATION_FACTS, FACTS, exchange_weights, weights

MODEL = ("cpu-x", "compute")
SYSTEMS = {"file": LocalFileSystem, "memory": MemoryFileSystem}


class Cut(Exception):
    """Stands for the end of the process in the middle of things."""


@pytest.fixture(params=SYSTEMS)
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty place on either file system."""
    url = f"{request.param}://{tmp_path}/models"
    yield url
    fsspec.filesystem("memory").store.clear()
    fsspec.filesystem("memory").pseudo_dirs[:] = [""]


def _fail_at(monkeypatch: pytest.MonkeyPatch, root: str, method: str, ending: str) -> None:
    """Has a method of the file system fail for paths with an ending, once."""
    system = SYSTEMS[root.partition(":")[0]]
    made = getattr(system, method)
    failed = False

    def failing(self: fsspec.AbstractFileSystem, path: str, *args: object, **kwargs: object) -> object:
        nonlocal failed
        if str(path).endswith(ending) and not failed:
            failed = True
            raise Cut
        return made(self, path, *args, **kwargs)

    monkeypatch.setattr(system, method, failing)


def test_whether_a_store_can_be_written_to_is_known_without_a_trace(root: str) -> None:
    Artifacts(root).refuse_unwritable()
    fs, path = fsspec.core.url_to_fs(root)
    assert fs.ls(path) == []


def test_a_store_that_cannot_be_written_to_says_why(tmp_path: Path) -> None:
    (tmp_path / "models").touch()
    with pytest.raises(ModelStoreUnwritable, match=f"{tmp_path}/models/theirs cannot be written to: .*Not a directory"):
        ModelStore(str(tmp_path / "models" / "theirs")).refuse_unwritable()


def test_a_store_works_on_any_file_system(root: str) -> None:
    store = ModelStore(root)
    assert store.newest("cpu-x", "compute") is None
    for seed in range(2):
        store.write("cpu-x", "compute", weights(seed), FACTS)
    store.write("cpu-x", "communication", exchange_weights(), COMMUNICATION_FACTS)
    assert store.cost_models("cpu-x").versions == {
        "compute": "cpu-x/compute/2",
        "communication": "cpu-x/communication/1",
    }
    assert store.versions("cpu-x", "compute") == [Version(*MODEL, 1), Version(*MODEL, 2)]
    assert np.array_equal(store.read(Version(*MODEL, 1))[1]["table.0.growing"], weights(0)["table.0.growing"])
    store.delete("cpu-x", "compute", 1)
    assert (store.has(Version(*MODEL, 1)), store.has(Version(*MODEL, 2))) == (False, True)
    with pytest.raises(DamagedArtifact, match="cpu-x/compute/1"):
        store.check(Version(*MODEL, 1))


@pytest.mark.parametrize(
    ("method", "ending"),
    [("pipe_file", "weights.safetensors"), ("pipe_file", ".manifest.json"), ("mv", ".manifest.json")],
)
def test_a_write_that_is_cut_leaves_nothing(
    root: str, method: str, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifacts = Artifacts(root)
    artifacts.write(MODEL, weights(), FACTS)
    _fail_at(monkeypatch, root, method, ending)
    with pytest.raises(Cut):
        artifacts.write(MODEL, weights(1), FACTS)
    assert artifacts.numbers(MODEL) == [1]
    assert artifacts.write(MODEL, weights(2), FACTS) == Version(*MODEL, 2)
    assert np.array_equal(artifacts.read(Version(*MODEL, 2))[1]["table.0.growing"], weights(2)["table.0.growing"])


def test_a_deletion_that_is_cut_leaves_no_version_and_can_be_finished(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifacts = Artifacts(root)
    for seed in range(2):
        artifacts.write(MODEL, weights(seed), FACTS)
    _fail_at(monkeypatch, root, "rm", "compute/1")
    with pytest.raises(Cut):
        artifacts.delete(MODEL, 1)
    assert (artifacts.has(MODEL, 1), artifacts.numbers(MODEL)) == (False, [1, 2])
    artifacts.delete(MODEL, 1)
    artifacts.delete(MODEL, 1)
    assert artifacts.numbers(MODEL) == [2]


def test_writers_at_the_same_time_get_a_version_each(root: str) -> None:
    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(lambda seed: Artifacts(root).write(MODEL, weights(seed), FACTS), range(8)))
    assert sorted(version.number for version in made) == list(range(1, 9))
    for seed, version in enumerate(made):
        stored = Artifacts(root).read(version)[1]["table.0.growing"]
        assert np.array_equal(stored, weights(seed)["table.0.growing"])


def test_writers_share_no_number_where_folders_are_made_by_nobody(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on object stores, where making a folder never fails."""
    system = SYSTEMS[root.partition(":")[0]]
    made = system.makedirs

    def makedirs(self: fsspec.AbstractFileSystem, path: str, exist_ok: bool = False) -> None:
        made(self, path, exist_ok=True)

    monkeypatch.setattr(system, "makedirs", makedirs)
    artifacts, numbers = Artifacts(root), Artifacts.numbers
    artifacts.write(MODEL, weights(), FACTS)
    stale: Iterator[list[int]] = iter([[], []])
    monkeypatch.setattr(Artifacts, "numbers", lambda self, model: next(stale, None) or numbers(self, model))
    assert Artifacts(root).write(MODEL, weights(1), FACTS) == Version(*MODEL, 2)
    assert np.array_equal(artifacts.read(Version(*MODEL, 1))[1]["table.0.growing"], weights(0)["table.0.growing"])
