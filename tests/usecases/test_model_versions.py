"""Promotion, rollback and pruning over a real store and a real database."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, text

from service.domain.errors import DamagedArtifact, NothingToRollBackTo, StorageUnavailable, UnknownModelVersion
from service.domain.version_ports import PromotionChange
from service.domain.versions import Promotion, Version
from service.registry.store import ModelStore
from service.storage.promotions import PromotionRepository
from service.usecases.model_versions import (
    ListedVersion,
    Old,
    listed,
    named,
    promote,
    prune,
    rollback,
    serving_version,
    write_down,
)
from tests.cost_models.small_model import COMMUNICATION_FACTS, FACTS, exchange_weights, weights
from tests.policies.random_networks import random_arrays

MODEL = ("cpu-x", "compute")
METRICS = {"metrics": {"total": {"mape": 0.08}, "forward": {"mape": 0.09}, "forward_2": {"mape": 0.5}}}


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    """Three compute versions, and one of exchanges."""
    made = ModelStore(str(tmp_path))
    for seed in range(3):
        made.write("cpu-x", "compute", weights(seed), FACTS)
    made.write("cpu-x", "communication", exchange_weights(), COMMUNICATION_FACTS)
    return made


@pytest.fixture
def promotions(engine: Engine) -> PromotionRepository:
    return PromotionRepository(engine)


def _promote(store: ModelStore, promotions: PromotionRepository, *numbers: int) -> list[Promotion]:
    return [promote(store, promotions, Version(*MODEL, number), "a test", "") for number in numbers]


def _serves(store: ModelStore, promotions: PromotionRepository) -> str:
    return str(serving_version(store, promotions.standing(), MODEL))


def test_the_newest_serves_until_another_is_promoted(store: ModelStore, promotions: PromotionRepository) -> None:
    assert _serves(store, promotions) == "cpu-x/compute/3"
    _promote(store, promotions, 1)
    assert _serves(store, promotions) == "cpu-x/compute/1"


def test_promoting_what_serves_writes_nothing(store: ModelStore, promotions: PromotionRepository) -> None:
    first, again = _promote(store, promotions, 2, 2)
    assert first == again
    assert promotions.history(*MODEL, 10) == [first]


def test_rollbacks_go_back_one_promotion_after_the_other(store: ModelStore, promotions: PromotionRepository) -> None:
    _promote(store, promotions, 1, 2, 3)
    for wanted in (2, 1):
        assert rollback(store, promotions, MODEL, "a test", "it is worse").number == wanted
        assert _serves(store, promotions) == f"cpu-x/compute/{wanted}"
    with pytest.raises(NothingToRollBackTo, match="cpu-x/compute"):
        rollback(store, promotions, MODEL, "a test", "")
    _promote(store, promotions, 3)
    assert rollback(store, promotions, MODEL, "a test", "").number == 1


def test_a_version_that_is_not_there_or_damaged_is_not_promoted(
    store: ModelStore, promotions: PromotionRepository, tmp_path: Path
) -> None:
    with pytest.raises(UnknownModelVersion, match="cpu-x/compute/4") as caught:
        _promote(store, promotions, 4)
    assert caught.value.data["known"] == [f"cpu-x/compute/{number}" for number in (1, 2, 3)]
    (tmp_path / "cpu-x" / "compute" / "2" / "weights.safetensors").write_bytes(b"")
    with pytest.raises(DamagedArtifact, match="cpu-x/compute/2"):
        _promote(store, promotions, 2)
    assert promotions.standing() == {}


def test_a_rollback_to_what_is_gone_or_damaged_changes_nothing(
    store: ModelStore, promotions: PromotionRepository, tmp_path: Path
) -> None:
    _promote(store, promotions, 1, 2)
    before = promotions.history(*MODEL, 10)
    (tmp_path / "cpu-x" / "compute" / "1" / "weights.safetensors").write_bytes(b"")
    with pytest.raises(DamagedArtifact, match="cpu-x/compute/1"):
        rollback(store, promotions, MODEL, "a test", "")
    store.delete("cpu-x", "compute", 1)
    with pytest.raises(UnknownModelVersion, match="cpu-x/compute/1"):
        rollback(store, promotions, MODEL, "a test", "")
    assert promotions.history(*MODEL, 10) == before


def test_an_analytic_version_can_be_promoted_and_rolled_back_to(
    tmp_path: Path, promotions: PromotionRepository
) -> None:
    store = ModelStore(str(tmp_path))
    store.write("h100", "compute", weights(), FACTS)
    model = ("h100", "compute")
    promote(store, promotions, named(store, *model, "analytic"), "a test", "")
    assert str(serving_version(store, promotions.standing(), model)) == "h100/compute/analytic-2"
    promote(store, promotions, named(store, *model, "1"), "a test", "")
    assert rollback(store, promotions, model, "a test", "").number is None


@pytest.mark.parametrize("number", ["0", "4", "x", "", "1/2", "-1", "analytic", "analytic-2", "01"])
def test_numbers_of_no_version_are_unknown(store: ModelStore, number: str) -> None:
    with pytest.raises(UnknownModelVersion) as caught:
        named(store, *MODEL, number)
    assert "cpu-x/compute/3" in caught.value.detail


def test_an_unknown_model_names_the_models_that_there_are(store: ModelStore) -> None:
    for model in (("cpu-y", "compute"), ("cpu-x", "dreamshard"), ("cpu-x", "measurements"), ("..", "compute")):
        with pytest.raises(UnknownModelVersion) as caught:
            listed(store, model)
        assert "cpu-x/communication" in caught.value.data["known"]


def test_what_serves_undecided_is_written_down_once(store: ModelStore, promotions: PromotionRepository) -> None:
    serving = {MODEL: Version(*MODEL, 3), ("h100", "compute"): Version("h100", "compute", 2, analytic=True)}
    for _ in range(2):
        write_down(store, promotions, serving, "a test")
    assert {model: [p.number for p in stack] for model, stack in promotions.standing().items()} == {
        MODEL: [3],
        ("h100", "compute"): [None],
    }
    store.write("cpu-x", "compute", weights(9), FACTS)
    write_down(store, promotions, {MODEL: Version(*MODEL, 4)}, "a test")
    assert _serves(store, promotions) == "cpu-x/compute/3"


def test_where_nothing_is_left_of_what_was_promoted_what_serves_takes_its_place(
    store: ModelStore, promotions: PromotionRepository
) -> None:
    _promote(store, promotions, 1, 2)
    store.delete("cpu-x", "compute", 2)
    write_down(store, promotions, {MODEL: Version(*MODEL, 1)}, "a test")
    assert len(promotions.history(*MODEL, 10)) == 2
    store.delete("cpu-x", "compute", 1)
    write_down(store, promotions, {MODEL: Version(*MODEL, 3)}, "a test")
    assert _serves(store, promotions) == "cpu-x/compute/3"


def test_versions_are_listed_with_what_their_manifests_say(tmp_path: Path) -> None:
    store = ModelStore(str(tmp_path))
    store.write("h100", "compute", weights(), {**FACTS, **METRICS, "created_at": "2026-11-29T22:02:27+00:00"})
    store.write("h100", "compute", weights(), FACTS)
    (tmp_path / "h100" / "compute" / "2" / "manifest.json").write_text("{}")
    held_out = {"dlrm": {"cost_by_best_heuristics": {"policy": 0.97, "sampled": 0.95}}}
    store.write("h100", "dreamshard", random_arrays(1), {"held_out": held_out})
    analytic, first, second = listed(store, ("h100", "compute"))
    assert analytic == ListedVersion(Version("h100", "compute", 2, analytic=True), None, None, {}, None)
    assert (str(first.version), first.created_at) == ("h100/compute/1", "2026-11-29T22:02:27+00:00")
    assert first.metrics == {"mape": {"total": 0.08, "forward": 0.09}}
    assert "h100/compute/2" in (second.fault or "")
    (policy,) = listed(store, ("h100", "dreamshard"))
    assert policy.metrics == {"cost_by_best_heuristics": {"dlrm": 0.97}}


def test_pruning_spares_the_newest_what_serves_the_rollback_and_what_plans_name(
    store: ModelStore, promotions: PromotionRepository, tmp_path: Path
) -> None:
    for seed in range(3, 8):
        store.write("cpu-x", "compute", weights(seed), FACTS)
    _promote(store, promotions, 1, 2, 4)
    would = prune(store, promotions, {"cpu-x/compute/5", "cpu-y/compute/3"}, keep=2, dry_run=True)
    assert [v.number for v in store.versions(*MODEL)] == list(range(1, 9))
    assert prune(store, promotions, {"cpu-x/compute/5", "cpu-y/compute/3"}, keep=2) == would
    assert would == [
        Old("cpu-x/compute/1", None),
        Old("cpu-x/compute/2", "a rollback would bring it back"),
        Old("cpu-x/compute/3", None),
        Old("cpu-x/compute/4", "it serves"),
        Old("cpu-x/compute/5", "named by a stored plan"),
        Old("cpu-x/compute/6", None),
    ]
    assert [v.number for v in store.versions(*MODEL)] == [2, 4, 5, 7, 8]
    assert sorted(path.name for path in (tmp_path / "cpu-x" / "compute").iterdir()) == ["2", "4", "5", "7", "8"]
    assert rollback(store, promotions, MODEL, "a test", "").number == 2
    assert store.versions("cpu-x", "communication") == [Version("cpu-x", "communication", 1)]


def test_what_an_ended_prune_left_is_deleted_by_the_next(
    store: ModelStore, promotions: PromotionRepository, tmp_path: Path
) -> None:
    (tmp_path / "cpu-x" / "compute" / "1" / "manifest.json").unlink()
    assert prune(store, promotions, set(), keep=1) == [Old("cpu-x/compute/1", None), Old("cpu-x/compute/2", None)]
    assert [path.name for path in (tmp_path / "cpu-x" / "compute").iterdir()] == ["3"]


def test_a_prune_that_the_database_ended_deletes_nothing_more(
    store: ModelStore, promotions: PromotionRepository, engine: Engine, tmp_path: Path
) -> None:
    class Slow(ModelStore):
        """Takes so long over a deletion that the database ends the change, and others may promote again."""

        def delete(self, hardware: str, model: str, number: int) -> None:
            super().delete(hardware, model, number)
            with engine.connect() as other:
                others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
                other.execute(text(f"{others} AND pid <> pg_backend_pid()"))

    for seed in (4, 5):
        store.write(*MODEL, weights(seed), FACTS)
    with pytest.raises(StorageUnavailable):
        prune(Slow(str(tmp_path)), promotions, set(), keep=1)
    assert [version.number for version in store.versions(*MODEL)] == [2, 3, 4, 5]
    # What it would have deleted next can be promoted.
    _promote(store, promotions, 2)


def test_the_newest_version_is_never_pruned(store: ModelStore, promotions: PromotionRepository) -> None:
    with pytest.raises(ValueError, match="newest"):
        prune(store, promotions, set(), keep=0)
    prune(store, promotions, set(), keep=1)
    assert store.write("cpu-x", "compute", weights(), FACTS) == Version(*MODEL, 4)


def test_versions_are_loaded_before_others_are_kept_out(
    store: ModelStore, promotions: PromotionRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    changing, inside = promotions.changing, [False]
    checked: list[tuple[int, bool]] = []

    @contextmanager
    def watched(*given: Any) -> Iterator[PromotionChange]:
        with changing(*given) as change:
            inside[0] = True
            yield change
        inside[0] = False

    monkeypatch.setattr(promotions, "changing", watched)
    monkeypatch.setattr(store, "check", lambda version: checked.append((version.number, inside[0])))
    for number in (1, 2):
        promote(store, promotions, Version(*MODEL, number), "me", "better")
    rollback(store, promotions, MODEL, "me", "worse")
    assert checked == [(1, False), (2, False), (1, False)]


def test_a_version_that_is_pruned_while_it_is_loaded_is_not_promoted(
    store: ModelStore, promotions: PromotionRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "check", lambda version: store.delete(*MODEL, version.number))
    with pytest.raises(UnknownModelVersion):
        promote(store, promotions, Version(*MODEL, 1), "me", "better")
    assert promotions.standing() == {}


def test_a_rollback_that_another_came_before_loads_what_it_then_brings_back(
    store: ModelStore, promotions: PromotionRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2, 3):
        promote(store, promotions, Version(*MODEL, number), "me", "better")
    checked: list[int] = []

    def check(version: Version) -> None:
        checked.append(version.number)
        if len(checked) == 1:
            rollback(store, promotions, MODEL, "another", "worse")

    monkeypatch.setattr(store, "check", check)
    assert rollback(store, promotions, MODEL, "me", "worse").number == 1
    assert checked == [2, 2, 1]
