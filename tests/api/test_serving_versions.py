"""Which versions answer: those promoted last that can be loaded, all as of the request's beginning."""

import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from service.api.model_versions import ModelVersions
from service.domain.errors import DamagedArtifact, InvalidRequest, UnknownHardware, UnsupportedAlgorithm
from service.domain.plan import Algorithm
from service.domain.versions import Promotion, Standing
from service.policies.table_features import POLICY_FEATURES_VERSION
from service.registry.store import ModelStore
from service.telemetry.metrics import Metrics
from tests.cost_models.small_model import COMMUNICATION_FACTS, FACTS, exchange_weights, weights
from tests.policies.random_networks import random_arrays


class Served:
    """A store with two versions of each cost model and of a policy, and what serves of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = ModelStore(str(folder))
        for seed in range(2):
            self.store.write("cpu-x", "compute", weights(seed), FACTS)
            self.store.write("cpu-x", "communication", exchange_weights(seed), COMMUNICATION_FACTS)
            features = {"features_version": POLICY_FEATURES_VERSION}
            self.store.write("cpu-x", "dreamshard", random_arrays(seed), features)
        self.metrics = Metrics(CollectorRegistry(), "test")
        self.versions = ModelVersions(self.store, self.metrics)

    def damage(self, model: str, number: int) -> None:
        (self.folder / "cpu-x" / model / str(number) / "weights.safetensors").write_bytes(b"")

    def follow(self, **stacks: list[int | None]) -> None:
        self.versions.follow(_standing("cpu-x", stacks))

    def names(self, algorithm: Algorithm = Algorithm.AUTO, pinned: Mapping[str, str] | None = None) -> dict[str, str]:
        names = self.versions.of("cpu-x", algorithm, pinned).versions
        return {kind: name.removeprefix("cpu-x/") for kind, name in names.items()}

    def shown(self, series: str) -> str | None:
        lines = self.metrics.exposition().decode().splitlines()
        return next((line.rpartition(" ")[2] for line in lines if line.startswith(series)), None)


def _standing(hardware: str, stacks: Mapping[str, list[int | None]]) -> Standing:
    when = datetime.now(UTC)
    return {
        (hardware, model): [Promotion(9 - i, hardware, model, n, when, "a test", "") for i, n in enumerate(numbers)]
        for model, numbers in stacks.items()
    }


@pytest.fixture
def served(tmp_path: Path) -> Served:
    return Served(tmp_path)


def test_the_newest_versions_that_were_found_first_serve_where_nothing_was_promoted(served: Served) -> None:
    wanted = {"compute": "compute/2", "communication": "communication/2"}
    assert served.names() == wanted
    served.store.write("cpu-x", "compute", weights(3), FACTS)
    served.follow()
    assert served.names() == wanted
    assert served.names(Algorithm.DREAMSHARD) == {**wanted, "dreamshard": "dreamshard/2"}


def test_what_was_promoted_serves_and_the_metrics_show_it_alone(served: Served) -> None:
    served.names(Algorithm.DREAMSHARD)
    served.follow(compute=[1, 2], dreamshard=[1])
    assert served.names(Algorithm.DREAMSHARD) == {
        "compute": "compute/1",
        "communication": "communication/2",
        "dreamshard": "dreamshard/1",
    }
    series = 'shardwright_model_info{hardware="cpu-x",kind="compute",version="cpu-x/compute/'
    assert (served.shown(series + "1"), served.shown(series + "2")) == ("1.0", None)
    followed = 'shardwright_promotions_followed_total{hardware="cpu-x",kind="compute"}'
    assert served.shown(followed) == "1.0"
    served.follow(compute=[1, 2])
    assert served.shown(followed) == "1.0"


def test_what_a_request_got_stays_as_it_is(served: Served) -> None:
    before = served.versions.of("cpu-x")
    kept = dict(before.identity)
    served.follow(compute=[1], communication=[1])
    assert before.identity == kept
    after = served.versions.of("cpu-x")
    assert after.digest != before.digest
    assert after.digest == served.store.cost_models("cpu-x", after.versions).digest


def test_a_promoted_version_that_is_damaged_leaves_the_old_one_serving(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    served.follow(compute=[1])
    served.damage("compute", 2)
    for _ in range(3):
        served.follow(compute=[2, 1])
        assert served.names()["compute"] == "compute/1"
    assert served.shown('shardwright_model_load_failures_total{hardware="cpu-x",kind="compute"}') == "3.0"
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.__dict__["fields"]["version"] for record in errors] == ["cpu-x/compute/2"]
    check = served.versions.check()
    assert check.usable
    assert check.state == "cpu-x/compute/2 was promoted and cannot be used"
    served.follow(compute=[1])
    assert served.versions.check().state == "ok"


def test_a_version_that_is_restored_serves_after_all(served: Served) -> None:
    served.follow(compute=[1])
    path = served.folder / "cpu-x" / "compute" / "2" / "weights.safetensors"
    sound = path.read_bytes()
    served.damage("compute", 2)
    served.follow(compute=[2, 1])
    path.write_bytes(sound)
    served.follow(compute=[2, 1])
    assert served.names()["compute"] == "compute/2"


def test_a_service_that_starts_serves_what_running_ones_do_though_the_last_is_damaged(served: Served) -> None:
    served.damage("compute", 2)
    served.follow(compute=[7, 2, 1])
    assert served.names()["compute"] == "compute/1"


def test_where_nothing_that_was_promoted_can_be_loaded_the_newest_serves(served: Served) -> None:
    served.damage("communication", 2)
    served.follow(compute=[7], communication=[2])
    with pytest.raises(DamagedArtifact, match="cpu-x/communication/2"):
        served.names()
    served.store.write("cpu-x", "communication", exchange_weights(), COMMUNICATION_FACTS)
    assert served.names() == {"compute": "compute/2", "communication": "communication/3"}


def test_promotions_of_what_is_not_in_the_store_do_no_harm(served: Served) -> None:
    served.versions.follow(_standing("gone", {"compute": [3], "communication": [None]}))
    assert served.names()["compute"] == "compute/2"
    with pytest.raises(UnknownHardware):
        served.versions.of("gone")


def test_an_analytic_version_that_was_promoted_serves_beside_trained_ones(tmp_path: Path) -> None:
    store = ModelStore(str(tmp_path))
    store.write("h100", "compute", weights(), FACTS)
    versions = ModelVersions(store, Metrics(CollectorRegistry(), "test"))
    versions.follow(_standing("h100", {"compute": [None, 1]}))
    assert versions.of("h100").versions["compute"] == "h100/compute/analytic-2"


def test_nothing_is_read_where_nothing_changed(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    served.follow(compute=[1], communication=[1])
    served.names()

    def read(*_: object) -> None:
        raise AssertionError

    for name in ("read", "check", "facts", "cost_models", "newest", "versions"):
        monkeypatch.setattr(served.store, name, read)
    served.follow(compute=[1], communication=[1])
    assert served.names() == {"compute": "compute/1", "communication": "communication/1"}


def test_no_request_waits_for_a_version_to_be_read_that_was_promoted(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.follow(compute=[1], communication=[1], dreamshard=[1])
    monkeypatch.setattr(served.store, "cost_models", None)
    assert served.names(Algorithm.DREAMSHARD)["dreamshard"] == "dreamshard/1"
    assert served.names()["compute"] == "compute/1"


def test_a_pinned_version_takes_the_place_of_the_one_that_serves(served: Served) -> None:
    served.follow(compute=[1])
    assert served.names(pinned={"compute": "cpu-x/compute/2"}) == {
        "compute": "compute/2",
        "communication": "communication/2",
    }
    assert served.names()["compute"] == "compute/1"
    pinned = {"dreamshard": "cpu-x/dreamshard/1", "communication": "cpu-x/communication/1"}
    assert served.names(Algorithm.DREAMSHARD, pinned) == {
        "compute": "compute/1",
        "communication": "communication/1",
        "dreamshard": "dreamshard/1",
    }


def test_pinned_versions_that_cannot_be_are_all_named_with_those_that_there_are(served: Served) -> None:
    pinned = {
        "compute": "cpu-y/compute/1",
        "communication": "cpu-x/compute/1",
        "dreamshard": "cpu-x/dreamshard/9",
        "autoshard": "cpu-x/autoshard/1",
    }
    with pytest.raises(InvalidRequest) as caught:
        served.names(Algorithm.DREAMSHARD, pinned)
    told = {fault.pointer: fault.message for fault in caught.value.faults}
    assert told.keys() == {f"/models/{kind}" for kind in pinned}
    assert "'cpu-y/compute/1'" in told["/models/compute"]
    assert "cpu-x/compute/1, cpu-x/compute/2" in told["/models/compute"]
    assert "cpu-x/communication/1, cpu-x/communication/2" in told["/models/communication"]
    assert "cpu-x/dreamshard/1, cpu-x/dreamshard/2" in told["/models/dreamshard"]
    assert "leave it out" in told["/models/autoshard"]


def test_a_pinned_version_that_is_damaged_is_said_to_be(served: Served) -> None:
    served.follow(compute=[1])
    served.damage("compute", 2)
    with pytest.raises(DamagedArtifact, match="cpu-x/compute/2"):
        served.names(pinned={"compute": "cpu-x/compute/2"})
    assert served.names()["compute"] == "compute/1"


def test_damage_of_what_serves_is_not_laid_to_the_version_that_is_pinned(served: Served) -> None:
    served.damage("communication", 2)
    with pytest.raises(DamagedArtifact, match="cpu-x/communication/2") as caught:
        served.names(pinned={"compute": "cpu-x/compute/2"})
    assert not caught.value.data


def test_an_algorithm_without_a_policy_is_told_of_those_that_have_one(served: Served) -> None:
    with pytest.raises(UnsupportedAlgorithm) as caught:
        served.names(Algorithm.AUTOSHARD)
    assert {"auto", "dreamshard"} <= set(caught.value.data["available"])
    assert "autoshard" not in caught.value.data["available"]


def test_unknown_hardware_is_that_whatever_is_pinned(served: Served) -> None:
    pinned = {kind: f"abacus/{kind}/1" for kind in ("compute", "communication")}
    for given in (None, pinned):
        with pytest.raises(UnknownHardware):
            served.versions.of("abacus", pinned=given)
