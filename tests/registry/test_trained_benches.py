import json
from pathlib import Path

import pytest

from service.domain.errors import DamagedArtifact
from service.domain.retention import TrainedBench
from service.registry.store import ModelStore
from service.registry.trained_benches import trained_benches
from tests.cost_models.small_model import COMMUNICATION_FACTS, FACTS, exchange_weights, weights

SHIPPED = Path(__file__).resolve().parents[2] / "model_store"


def test_the_shipped_versions_say_what_they_were_trained_on() -> None:
    assert trained_benches(str(SHIPPED)) == {
        TrainedBench("cpu-fbgemm", "compute", 1), TrainedBench("cpu-fbgemm", "communication", 2),
    }  # fmt: skip


@pytest.mark.parametrize("where", ["{}", "file://{}", "{}/not/there"])
def test_a_store_without_versions_has_none(tmp_path: Path, where: str) -> None:
    assert trained_benches(where.format(tmp_path)) == set()


def test_every_version_counts_and_policies_do_not(tmp_path: Path) -> None:
    store = ModelStore(str(tmp_path))
    for said in ({"bench": "3"}, {"bench": "7"}, {}):
        store.write("cpu-x", "compute", weights(), {**FACTS, "environments": [{**said, "rows": 9}]})
    exchanged = {**COMMUNICATION_FACTS, "environments": [{"bench": "2"}, {"bench": "4"}]}
    store.write("h200", "communication", exchange_weights(), exchanged)
    store.write("h200", "dreamshard", weights(), {})
    assert trained_benches(f"file://{tmp_path}") == {
        *(TrainedBench("cpu-x", "compute", bench) for bench in (1, 3, 7)),
        *(TrainedBench("h200", "communication", bench) for bench in (2, 4)),
    }


@pytest.mark.parametrize(
    "manifest",
    ["{", "[]", "{}", '{"environments": 3}', '{"environments": ["1"]}', '{"environments": [{"bench": "a"}]}'],
)
def test_a_version_that_does_not_say_is_named(tmp_path: Path, manifest: str) -> None:
    folder = tmp_path / "cpu-x" / "compute" / "4"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text(manifest)
    with pytest.raises(DamagedArtifact, match="cpu-x/compute/4"):
        trained_benches(str(tmp_path))
    (folder / "manifest.json").write_text(json.dumps({"environments": []}))
    assert trained_benches(str(tmp_path)) == set()
